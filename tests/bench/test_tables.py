import io

import pytest
from rich.console import Console

from posenc.tools.bench.cells import Table, number
from posenc.tools.bench.report import markdown
from posenc.tools.bench.tables import show, tables
from posenc.tools.kit.report import Cell
from tests.bench.made_up import disturbed, everything, limit, prices, record, taking


def table(title: str, records: list[dict]) -> Table:  # type: ignore[type-arg]
    return next(each for each in tables(records) if each.title == title)


def test_the_price_is_the_ratio_of_what_auto_takes() -> None:
    found = table("The price of position: forward", everything())
    assert found.header == ("scheme", "auto takes", "512", "1,024")
    assert found.rows == [
        ("plain, ms", "", "1", "4"),
        ("nope", "sdpa", "1.00 ± 0.15", "1.00 ± 0.15"),
        ("alibi", "sdpa", "2.00 ± 0.15", "2.00 ± 0.15"),
    ]
    assert "plain causal scaled_dot_product_attention" in found.lead
    assert table("The price of position: a training step", everything()).rows[0] == ("plain, ms", "", "4", "16")


def test_what_auto_takes_may_change_with_length() -> None:
    short, long = prices(("alibi",))[0], prices(("alibi",))[2]
    long["results"]["chunked"] = taking(1, 1.1, 1.0, 1.2)
    long["auto"] = "chunked"
    found = table("The price of position: forward", [short, long])
    assert found.rows[1] == ("alibi", "sdpa → chunked", "1.00 ± 0.15", "1.10 ± 0.10")


def test_by_backend_a_dash_says_why() -> None:
    found = table("By backend: forward", everything())
    assert found.rows[2:] == [
        ("alibi", "sdpa", Cell("2.00 ± 0.15", mark="best"), Cell("2.00 ± 0.15", mark="best")),
        ("alibi", "reference", "– (1)", "– (1)"),
    ]
    assert found.notes == ["too slow for words"]


def test_time_and_memory_grow() -> None:
    records = everything()
    assert table("Growth of time, ms: forward", records).rows == [
        ("plain", "1", "4"),
        ("nope", "1", "4"),
        ("alibi", "2", "8"),
    ]
    assert table("Growth of peak memory, MiB: a training step", records).rows == [
        ("plain", "0.5", "0.5"),
        ("nope", "1", "2"),
        ("alibi", "1", "2"),
    ]


def test_growth_has_records_of_its_own_where_there_are_no_prices() -> None:
    records = [{**each, "kind": each["kind"].replace("price", "growth")} for each in prices()]
    assert [each.title for each in tables(records)] == [
        "Environment",
        *(
            f"Growth of {what}: {step}"
            for step in ("forward", "a training step")
            for what in ("time, ms", "peak memory, MiB")
        ),
    ]


def test_rope_says_its_bandwidth() -> None:
    found = table("RoPE on queries and keys", everything())
    # 1.2 GB in 10 and in 12 ms
    assert found.rows[:3] == [
        ("float32", "clone", "10", "1", "120.0"),
        ("float32", "posenc", "12", "1.20 ± 0.15", "100.0"),
        ("float32", "transformers", "– (1)", "", ""),
    ]
    assert found.notes == ["No module named 'transformers'"]


LIMIT = "100 × 10⁹ a second, the most that PyTorch's products of matrices made in this run on as many threads"


def test_beside_rows_of_the_kernel_stands_how_far_the_limit_is() -> None:
    found = table("RoPE in attention: forward", everything())
    assert found.header == ("what", "takes", "128", "1,024", "share of peak")
    # 10⁹ multiply-adds in 40 and in 20 ms, where 10¹¹ a second are possible.
    assert found.rows == [
        ("plain, ms", "", "1", "40", "25%"),
        ("rope", "sdpa → native", "0.50 ± 0.10", "0.50 ± 0.10", "50%"),
        ("rope by sdpa", "sdpa", "1.50 ± 0.10", "1.50 ± 0.10", ""),
        ("rope by native", "native", "– (1)", "– (1)", ""),
    ]
    assert found.notes == ["nobody built it"]
    assert f"over {LIMIT}. Multiply-adds are head_dim times 2 for" in found.lines[-1]
    assert "times 1 for a vector in scores and 1 for one in the output" in found.lines[-1]
    training = table("RoPE in attention: a training step", everything()).lines[-1]
    assert "head_dim times 7 for" in training
    assert "times 4 for a vector in scores and 3 for one in the output" in training


def test_prices_have_shares_where_they_were_counted() -> None:
    records = [limit(), *prices(("nope", "alibi"), (512, 1024))]
    for each in records[1:]:
        each["multiply_adds"] = {"plain": 10**8}
    forward = [each for each in records if each["kind"] in ("limit", "price forward")]
    forward[-1]["multiply_adds"]["sdpa"] = 2 * 10**8  # as if that were the kernel
    found = table("The price of position: forward", forward)
    assert found.header[-1] == "share of peak"
    assert [row[-1] for row in found.rows] == ["25%", "", "25%"]  # 10⁸ in 4 ms, and twice as many in 8
    assert table("The price of position: forward", prices()).header[-1] == "1,024"


def test_neighbours_cost_so_many_times_what_they_cost_plain_attention() -> None:
    records = everything()
    found = table("Busy neighbours: forward", records)
    assert found.header == ("what", "takes", "1,024, quiet", "1,024, busy", "1,024, costs")
    assert found.rows == [
        ("plain, ms", "", "10", "20", "2.00"),
        ("alibi", "native", "1.00 ± 0.00", "1.50 ± 0.00", "1.50"),
    ]
    assert found.lines == []  # who is busy is known


def test_without_quiet_times_nobody_knows_what_neighbours_cost() -> None:
    found = table("Busy neighbours: forward", [each for each in disturbed() if each["kind"] == "busy forward"])
    assert found.rows[1] == ("alibi", "native", "– (1)", "1.50 ± 0.00", "")
    assert found.notes == ["not measured"]


def test_peers_and_decoding() -> None:
    records = everything()
    found = table("Other ways to alibi", records)
    assert found.header == ("way", "forward, 2,048", "training, 2,048")
    assert found.rows == [
        ("plain", "1", "1"),
        ("posenc", "1.50 ± 0.10", "1.50 ± 0.10"),
        ("x-transformers", "– (1)", "– (1)"),
    ]
    assert table("One token against a cache of 16,384", records).rows == [("alibi", "sdpa", "1", "2.00 ± 0.10")]


def test_an_attention_of_ones_own_is_shown_to_be_equal_first() -> None:
    found = table("my.py:attention beside posenc's alibi", everything())
    assert found.header == ("phase", "tokens", "what", "off by", "ms", "over plain", "over posenc", "peak, MiB")
    assert [tuple(row) for row in found.rows[:3]] == [
        ("forward", "2,048", "plain", "", "2", "1", "", "1"),
        ("forward", "2,048", "posenc (native)", "3e-07", "3", "1.50 ± 0.10", "", "2"),
        ("forward", "2,048", "my.py:attention", "1e-06", "9", "4.50 ± 0.30", "3.00 ± 0.00", "64"),
    ]
    assert "0.0001 is allowed" in found.lead


def test_one_that_is_not_equal_has_no_time() -> None:
    records = [each for each in everything() if each["kind"] == "mine forward"]
    records[0]["results"]["mine"] = {"left_out": "it is another function"}
    records[0]["off"]["mine"]["output"] = None  # not finite
    found = table("my.py:attention beside posenc's alibi", records)
    assert tuple(found.rows[2]) == ("forward", "2,048", "my.py:attention", "∞", "– (1)", "", "", "")
    assert found.lines == ["(1) it is another function"]


def test_what_was_not_measured_is_a_dash() -> None:
    found = table("The price of position: forward", [*prices(("nope",), (512, 1024)), *prices(("t5",), (512,))])
    assert found.rows[-1] == ("t5", "sdpa", "1.00 ± 0.15", "– (1)")
    assert found.notes == ["not measured"]


def test_a_baseline_that_was_left_out_leaves_dashes() -> None:
    gone = {"plain": {"left_out": "no"}, "posenc": {"left_out": "plain, which it is compared with, was left out"}}
    found = table("One token against a cache of 64", [record("decode", "rope", 64, gone, auto="sdpa")])
    assert found.rows == [("rope", "sdpa", "–", "– (1)")]


def test_the_environment_stands_first() -> None:
    first = tables(everything())[0]
    assert first.title == "Environment"
    rows = dict(first.rows)
    assert rows["tensors"] == "1 × 8 × length × 64, float32"
    assert rows["memory"] == "8.0 GiB"
    assert rows["threads"] == "2"
    assert rows["transformers"] == "not installed"
    assert rows["other processes"] == "kept 0.1 to 0.1 of 2 cores busy"
    assert rows["kernel, float"] == "v4, by a compiler"
    assert rows["kernel, bfloat16"] == "none: nobody built it"
    assert rows["the peak"] == "100 × 10⁹ multiply-adds a second"
    assert rows["rounds"] == "5 or more, until ratios are known to a tenth or 30 s are over"


def test_where_others_are_not_told_it_is_said() -> None:
    rows = dict(tables([{**each, "others": None} for each in everything()])[0].rows)
    assert rows["other processes"] == "not known: this system does not tell"


def test_what_others_made_doubtful_is_marked_and_said() -> None:
    short, long = prices(("alibi",))[0], prices(("alibi",))[2]
    records = [{**short, "others": 0.2}, {**long, "others": 0.9}]  # of 2 cores: a tenth of them is no more than 0.2
    note = "† timed while other processes kept over 10% of the cores busy"
    found = table("The price of position: forward", records)
    assert found.rows[1] == ("alibi", "sdpa", "1.00 ± 0.15", "1.00 ± 0.15 †")
    assert found.lines == [note]
    assert table("By backend: forward", records).lines == ["(1) too slow for words", note]
    assert table("Growth of time, ms: forward", records).rows[1] == ("alibi", "1", "4 †")
    memory = table("Growth of peak memory, MiB: forward", records)
    assert (memory.rows[1], memory.lines) == (("alibi", "1", "2"), [])  # which no other process changes
    said = (
        "Other processes kept up to 0.9 of 2 cores busy. The times of 1 of 2 groups are marked † and say little: "
        "measure again, into another folder."
    )
    page = markdown(records)
    assert page.startswith(f"# What position costs\n\n**{said}**\n")
    assert f"\n{note}  \n" in page
    console = Console(width=200, file=io.StringIO(), color_system=None)
    show(records, console)
    assert isinstance(console.file, io.StringIO)
    assert console.file.getvalue().startswith(said)
    assert note in console.file.getvalue()
    assert "Other processes kept" not in markdown(everything())


def test_as_markdown() -> None:
    records = everything()
    page = markdown(records, ["price"])
    assert page.startswith("# What position costs\n\n## Environment\n")
    assert "| alibi | sdpa | 2.00 ± 0.15 | 2.00 ± 0.15 |\n" in page
    assert "| alibi | sdpa | **2.00 ± 0.15** | **2.00 ± 0.15** |\n" in page
    assert "(1) too slow for words" in page
    assert page.endswith("![price](figures/price.png)\n")
    widths: dict[int, list[str]] = {}
    for line in page.splitlines():
        if line.startswith("|"):
            widths.setdefault(len(line.split("|")), []).append(line)
    assert sum(len(lines) for lines in widths.values()) == sum(len(each.rows) + 2 for each in tables(records))


def test_a_bar_in_a_cell_does_not_end_it() -> None:
    results = {"plain": taking(1, 1, 1, 1), "a|b": taking(1, 1, 1, 1)}
    assert "| a/b |" in markdown([record("peers forward", "alibi", 64, results)])


def test_the_terminal_has_every_table(capsys: pytest.CaptureFixture[str]) -> None:
    show(everything(), Console(width=120))
    shown = capsys.readouterr().out
    for each in tables(everything()):
        assert each.title in shown
    assert "(1) too slow for words" in shown
    assert "**" not in shown


def test_numbers() -> None:
    assert [number(x) for x in (0.01234, 5.678, 56.78, 999.6, 5678.9, 0)] == [
        "0.0123",
        "5.68",
        "56.8",
        "1,000",
        "5,679",
        "0",
    ]


def test_nothing_measured_is_no_table() -> None:
    assert tables([]) == []
