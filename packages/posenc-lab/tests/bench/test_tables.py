import pytest
from rich.console import Console

from posenc_lab.bench.tables import Table, show, tables
from posenc_lab.kit.report import as_markdown
from tests.bench.synthetic_records import mine, prices, taking


def table(title: str, records: list[dict]) -> Table:  # type: ignore[type-arg]
    return next(each for each in tables(records) if each.title == title)


def test_the_price_is_the_ratio_of_what_auto_takes() -> None:
    found = table("The price of position: forward", prices())
    assert found.header == ("scheme", "auto takes", "512", "1,024", "regret")
    assert found.rows == [
        ("plain, ms", "", "1", "4", ""),
        ("NoPE", "sdpa", "1.00 ± 0.15", "1.00 ± 0.15", ""),
        ("", "reference", "– (1)", "– (1)", ""),
        ("ALiBi", "sdpa", "2.00 ± 0.15", "2.00 ± 0.15", ""),
        ("", "reference", "– (1)", "– (1)", ""),
    ]
    assert found.notes == ["too slow for words"]
    assert "plain causal scaled_dot_product_attention" in found.lead
    assert table("The price of position: a training step", prices()).rows[0] == ("plain, ms", "", "4", "16", "")
    assert table("Peak memory, MiB: a training step", prices()).rows == [
        ("plain", "0.5", "0.5"),
        ("NoPE", "1", "2"),
        ("ALiBi", "1", "2"),
    ]


def test_regret_is_the_largest_ratio_to_the_fastest_backend() -> None:
    short, long = prices(("alibi",))[0], prices(("alibi",))[2]
    short["results"]["native"] = taking(0.0008, 0.8, 0.7, 0.9)  # where auto's takes 1 ms
    long["results"]["chunked"] = taking(0.008, 2.0, 1.9, 2.1)
    long["auto"] = "chunked"  # which takes 8 ms, and sdpa 4
    found = table("The price of position: forward", [short, long])
    assert found.header[-1] == "regret"
    assert found.rows[1] == ("ALiBi", "sdpa → chunked", "1.00 ± 0.15", "2.00 ± 0.10", "2.00")
    assert [row[:3] for row in found.rows[2:4]] == [("", "sdpa", "1.00 ± 0.15"), ("", "reference", "– (1)")]
    found = table("The price of position: forward", [short])
    assert found.rows[1][-1] == "1.25"
    assert "the fastest one" in found.foot


def test_regrets_are_gathered_by_what_the_calls_have_in_common() -> None:
    """Those of calls that one backend alone can run say nothing."""
    short, single, long, _ = prices(("alibi",))
    for record, seen in ((short, "causal"), (single, "causal"), (long, "both ways")):
        record["kind"] = f"regret forward {seen}"
    short["results"]["native"] = taking(0.0005, 0.5, 0.4, 0.6)  # where auto's takes 1 ms
    long["results"]["chunked"] = taking(0.008, 2.0, 1.9, 2.1)  # where it takes 4
    found = table("Regret of auto", [short, single, long])
    assert [tuple(row) for row in found.rows] == [
        ("all", "1.414", "2.00", "1", "2"),
        ("forward", "1.414", "2.00", "1", "2"),
        ("causal", "2.000", "2.00", "1", "1"),
        ("both ways", "1.000", "1.00", "0", "1"),
        ("512 tokens", "2.000", "2.00", "1", "1"),
        ("1,024 tokens", "1.000", "1.00", "0", "1"),
        ("ALiBi", "1.414", "2.00", "1", "2"),
    ]
    worst = table("The largest", [short, single, long])
    assert [tuple(row) for row in worst.rows] == [
        ("ALiBi, forward causal, 512 tokens", "sdpa", "1", "native", "0.5", "2.00")
    ]


def test_an_attention_of_ones_own_is_shown_to_be_equal_first() -> None:
    found = table("my.py:attention beside posenc's ALiBi", mine())
    assert found.header == ("phase", "tokens", "what", "off by", "ms", "over plain", "over posenc", "peak, MiB")
    assert [tuple(row) for row in found.rows[:3]] == [
        ("forward", "2,048", "plain", "", "2", "1", "", "1"),
        ("forward", "2,048", "posenc (native)", "3e-07", "3", "1.50 ± 0.10", "", "2"),
        ("forward", "2,048", "my.py:attention", "1e-06", "9", "4.50 ± 0.30", "3.00 ± 0.00", "64"),
    ]
    assert "0.0001 is allowed" in found.lead
    wrong = mine()[:1]
    wrong[0]["results"]["mine"] = {"left_out": "it is another function"}
    wrong[0]["off"]["mine"]["output"] = None  # not finite
    found = table("my.py:attention beside posenc's ALiBi", wrong)
    assert tuple(found.rows[2]) == ("forward", "2,048", "my.py:attention", "∞", "– (1)", "", "", "")
    assert found.lines == ["(1) it is another function"]


def test_the_terminal_and_markdown_have_every_table(capsys: pytest.CaptureFixture[str]) -> None:
    records = [*prices(), *mine()]
    show(records, Console(width=120))
    shown = capsys.readouterr().out
    for each in tables(records):
        assert each.title in shown
        lines = [line for line in as_markdown(each).splitlines() if line.startswith("|")]
        assert len(lines) == len(each.rows) + 2
        assert {line.count("|") for line in lines} == {len(each.header) + 1}
    assert "(1) too slow for words" in shown
    assert "**" not in shown
