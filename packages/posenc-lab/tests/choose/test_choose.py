"""posenc choose: every way through the questions ends in Python that runs and a command that measures."""

import json
import re
import shlex
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch

import posenc
from posenc.command import cli
from posenc.schemes.catalog import entries_of
from posenc.schemes.entry import GIVEN
from posenc_lab.choose import questions as asking
from posenc_lab.choose.evidence import STRENGTHS, claims, statements, tables
from posenc_lab.choose.presentation import NO_TABLE, TRIALS, UNTESTED, claims_of, statements_of, tables_of, tuning
from posenc_lab.compare.command import _configuration
from posenc_lab.compare.compare import check as check_comparison
from posenc_lab.compare.tuning import trials
from posenc_lab.extend.run import check as check_extension
from posenc_lab.extend.settings import Extension
from posenc_lab.kit.command import given as given_by
from tests.examples.scripts import load

QUESTIONS, ANSWERS = asking.questions(), asking.answers()
NAMES = tuple(question.name for question in QUESTIONS)
ALL = [dict(zip(NAMES, values, strict=True)) for values in product(*(question.values for question in QUESTIONS))]
ROOT = Path(__file__).parents[4]
PAGE = (ROOT / "docs" / "choose.md").read_text(encoding="utf-8")
EACH = pytest.mark.parametrize("answer", ANSWERS, ids=lambda answer: answer.name)


@pytest.fixture
def choose(capsys: pytest.CaptureFixture[str]) -> Any:
    """Runs it; gives the exit code, stdout and stderr."""

    def run(*options: str) -> tuple[int, str, str]:
        code = cli.main(["choose", *options])
        return code, *capsys.readouterr()

    return run


def options(given: dict[str, str]) -> list[str]:
    return [word for name, value in given.items() for word in (f"--{name}", value)]


# --- where the questions lead ---------------------------------------------------------------------------------------


def test_every_set_of_answers_leads_to_one_and_every_one_is_reached() -> None:
    assert {asking.answer_to(given, ANSWERS).name for given in ALL} == {answer.name for answer in ANSWERS}


def test_weights_keep_their_scheme_and_no_other_is_recommended(choose: Any) -> None:
    """Where nothing is to be changed, neither the line of Python nor a command names another scheme."""
    for weights in ("yes", "tune"):
        out = choose("--weights", weights, "--longer", "no")[1]
        assert "Start with its own scheme:\n\n    import posenc\n\n    posenc.huggingface.scheme_from_config" in out
        assert not [word for word in ("Compare it", "posenc compare", "posenc extend", "YaRN", "RoPE(") if word in out]


@pytest.fixture
def checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model at path/to/model, with heads of 128 channels, and the examples."""
    transformers = pytest.importorskip("transformers")
    monkeypatch.chdir(tmp_path)
    Path("examples").symlink_to(ROOT / "examples")
    config = transformers.LlamaConfig(
        hidden_size=256, num_attention_heads=2, num_hidden_layers=1, intermediate_size=64, vocab_size=64
    )
    transformers.LlamaForCausalLM(config).save_pretrained("path/to/model")


@EACH
@pytest.mark.usefixtures("checkpoint")
def test_the_python_of_an_answer_runs(answer: asking.Answer) -> None:
    names: dict[str, Any] = {"transformers": pytest.importorskip("transformers")}
    channels = re.search(r"RoPE\((\d+)", answer.code)
    exec(GIVEN.replace("64, 64)", f"64, {channels[1]})", 1) if channels else GIVEN, names)
    *before, last = answer.code.splitlines()
    exec("\n".join(before), names)
    if last.startswith("x = "):
        old = names["x"]
        exec(last, names)
        assert names["x"].shape == old.shape
        assert not torch.equal(names["x"], old)
    elif "scheme_from_config" in last:
        assert len(eval(last, names).schedule) > 0
    elif "transformers" in answer.code:
        exec(last, names)
        config = names["model"].config
        (rope,) = posenc.huggingface.scheme_from_config(config).schedule.schemes
        put_in = {"long_checkpoint": (10_000.0, "YaRN(factor=8.0"), "tuned_checkpoint": (1_000_000.0, "")}
        base, record = put_in[answer.name]
        assert rope.base == base
        assert record in str(getattr(config, "posenc_patch", ""))
    else:
        (*lead, tokens, channels), of_all = eval(last, names).shape, names["q"].shape
        assert (*lead, channels) == (*of_all[:2], of_all[3])
        assert tokens == (1 if "q[:, :, -1:]" in last else of_all[2])


def lowest(rope: posenc.RoPE, length: int) -> float:
    """The lowest sum of cosines over the pairs of a head at any distance within the length, as docs/extend.md."""
    pairs = rope.frequencies()[0]
    return min(float((m[:, None] * pairs).cos().sum(1).min()) for m in torch.arange(length).double().split(2048))


def test_a_base_that_is_recommended_is_large_enough_for_its_heads() -> None:
    texts = (PAGE, *(answer.code for answer in ANSWERS))
    named = {found for text in texts for found in re.findall(r"RoPE\((\d+), base=([\d_]+)", text)}
    assert named == {("128", "1_000_000")}
    assert {found for text in texts for found in re.findall(r'"rope_theta"\] = ([\d_]+)', text)} == {"1_000_000"}
    assert lowest(posenc.RoPE(128, base=1_000_000.0), 16_384) > 0
    said = {words for answer in ANSWERS for words in re.findall(r"heads of (\d+) need ([\d,]+)", answer.why)}
    assert said == {("64", "5,000,000")}
    assert lowest(posenc.RoPE(64, base=5_000_000.0), 16_384) > 0 > lowest(posenc.RoPE(64, base=1_000_000.0), 16_384)
    small = load("larger_base").LargerBase(96 // 4)  # as the commands compare it
    assert lowest(small, 1024) > 0 > lowest(posenc.RoPE(96 // 4), 1024)


@EACH
@pytest.mark.usefixtures("checkpoint")
def test_the_command_of_an_answer_is_one_that_works(answer: asking.Answer) -> None:
    assert bool(answer.command) == bool(answer.compare_with)
    if not answer.command:
        assert "weights" in answer.when  # whose scheme is kept, so that there is nothing to compare
        return
    program, *words = shlex.split(answer.command)
    assert program == "posenc"
    arguments = cli._parsers()[0].parse_args(words)
    if words[0] == "compare":
        config = _configuration(arguments)
        check_comparison(config)
        assert len(config.seeds) >= 3
        every = len(config.schemes) * len(trials(config, learns=True))
        said = f"--tune runs {TRIALS} trial trainings per scheme, here {every} in all" if config.tune else ""
        assert tuning(answer).partition(":")[0] == said
    elif words[0] == "extend":
        check_extension(Extension.from_mapping({**given_by(arguments, Extension), "model": arguments.model}))
    else:
        assert words[0] == "laws"
        assert all(entries_of(name) for name in arguments.schemes)


@EACH
def test_an_answer_says_all_that_it_should(answer: asking.Answer, choose: Any) -> None:
    given = {name: answer.when[name][0] for name in NAMES if name in answer.when}
    code, out, err = choose(*options(given))
    assert (code, err) == (0, "")
    flat = " ".join(out.split())
    for words in (answer.begin, answer.code, answer.command, answer.why, answer.unknown):
        assert " ".join(words.split()) in flat
    assert tuning(answer) in flat
    assert ("in a clone of posenc" in flat) == ("examples/" in answer.command)
    for table in tables_of(answer):
        assert table.title in flat
        assert table.where in flat
        assert all(figure in flat for row in table.rows for figure in row.figures)
    for claim in claims_of(answer):
        assert claim["published"]["claim"] in flat
        assert claim["published"]["url"] in flat
    is_open = answer.strength != "certain"
    assert (NO_TABLE in flat) == (is_open and not answer.evidence)
    assert (UNTESTED in flat) == (is_open and not answer.claims)
    for statement in statements_of(answer):
        assert statement.says in flat
        assert statement.where in flat
    instead = "; for T5 or stick-breaking instead: measured here repeatedly, with intervals"  # where a paper differs
    strength = STRENGTHS[answer.strength] + instead * (answer.name == "long_decoder")
    assert f"Strength of the evidence for it: {strength}." in flat
    nulls = sum(found is None for claim in claims_of(answer) for found in claim["ours"].values())
    assert flat.count("no verdict here yet") == nulls


def test_every_combination_leads_to_one_answer_whose_evidence_exists() -> None:
    known = {
        "when": {question.name for question in QUESTIONS},
        "evidence": {table.name for table in tables()},
        "claims": {claim["name"] for claim in claims()},
        "statements": {each.name for each in statements()},
    }
    for answer in ANSWERS:
        assert answer.rests_on
        rests_on = {*answer.rests_on, *(name for names in answer.instead.values() for name in names)}
        assert rests_on <= {*answer.evidence, *answer.statements}, answer.name
        for part, names in known.items():
            assert set(getattr(answer, part)) <= names, (answer.name, part)
    for given in ALL:
        assert len([answer for answer in ANSWERS if answer.fits(given)]) == 1, given


# --- the command ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("given", [{}, {"weights": "no", "tokens": "image"}, {"for": "encoder"}, {"longer": "far"}])
def test_open_questions_are_printed_and_with_answers_the_cases(given: dict[str, str], choose: Any) -> None:
    code, out, err = choose(*options(given))
    assert (code, err) == (0, "")
    head, *parts = out.strip().split("\n\n")
    assert head.startswith(f"Answer by options, such as: posenc choose {' '.join(options(given))}".rstrip())
    still = asking.open_questions(given, QUESTIONS, ANSWERS)
    questions, cases = parts[: len(still)], parts[len(still) :]
    assert [each.split("?")[0] + "?" for each in questions] == [question.asks for question in still]
    for question, said in zip(still, questions, strict=True):
        assert all(f"    --{question.name} {option.value}: {option.label}" in said for option in question.options)
    left = [answer for answer in ANSWERS if answer.fits(given)]
    if not given:
        assert cases == []
        cases = choose("--cases")[1].strip().split("\n\n")
    lines = cases[0].splitlines()
    assert lines[::2] == [f"{answer.case}: {answer.begin}" for answer in left]
    for answer, line in zip(left, lines[1::2], strict=True):
        program, *words = shlex.split(line)
        assert program == "posenc"
        assert f"Start with {answer.begin}:\n\n    import " in choose(*words[1:])[1]


def test_json_holds_the_answer_with_its_evidence(choose: Any) -> None:
    given = {"weights": "no", "tokens": "line", "for": "decoder", "longer": "yes"}
    said = json.loads(choose("--json", *options(given))[1])
    answer = asking.answer_to(given, ANSWERS)
    assert said["given"] == given
    assert (said["name"], said["code"], said["command"]) == (answer.name, answer.code, answer.command)
    assert [table["name"] for table in said["evidence"]] == list(answer.evidence)
    assert said["evidence"][0]["rows"][3]["figures"][-1] == "18.31"
    assert said["claims"] == claims_of(answer)


@pytest.mark.parametrize("tokens", ["image", "line"])
def test_a_stream_of_images_is_said_to_be_taken_as_larger_ones(tokens: str, choose: Any) -> None:
    given = {"weights": "no", "tokens": tokens, "for": "decoder", "longer": "stream", "cost": "some"}
    taken = "--longer stream leads to the same answer here as --longer yes." in choose(*options(given))[1]
    assert taken == (tokens == "image")


# --- the page -------------------------------------------------------------------------------------------------------


def test_the_page_has_the_same_answers() -> None:
    table = re.search(r"^\| your case .*\n\|.*\n((?:\|.*\n)+)", PAGE, re.M)
    assert table
    rows = [re.sub(r"[`*]|\]\(.*?\)|\[", "", line).strip("|").split("|") for line in table[1].splitlines()]
    written = {case.strip(): (begin.strip(), compare.strip()) for case, begin, _, compare in rows}
    assert written == {answer.case: (answer.begin, answer.compare_with) for answer in ANSWERS}
