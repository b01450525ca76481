"""Larger models: side by side as alone, stopped as not stopped, and a page that says what its records hold; DroPE."""

import copy
import itertools
import math
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from posenc_lab.compare import train
from posenc_lab.compare.config import CompareConfig
from posenc_lab.compare.pieces import Matching
from posenc_lab.kit.processes import Stop
from posenc_lab.kit.records import Records, read
from study import drope, sizes, sizes_page
from study.fleet import Fleet, optimizer_for
from study.rows import Evaluation, Rows, pack
from study.sizes import PORTIONS, TOY, USUAL, Portion, Training, Unfinished
from tests.extend.tiny_checkpoint import checkpoint

SCHEMES = (*USUAL, "stick_breaking")
TINY = sizes.Scale({"3m": 2}, 8, 48, (48, 96), 8, 8, 0.03)


def test_models_side_by_side_are_as_separate_ones() -> None:
    """Losses are those of decoders, also after steps, and so are bounded gradients; a weight that is not a number
    spoils its own model alone."""
    models = [TOY.model(scheme, "3m", seed).double() for seed, scheme in enumerate((*SCHEMES, "nope"))]
    with torch.no_grad():
        models[-1].head.weight[0, 0] = math.nan
    alone, fleet = [copy.deepcopy(model) for model in models], Fleet(models).double()
    optimizers = [train.optimizer_for(model, CompareConfig(learning_rate=0.01)) for model in alone]
    optimizers.append(optimizer_for(fleet, 0.01))
    for group in (group for each in optimizers for group in each.param_groups):
        group["lr"] = group["highest"]
    for step in range(4):
        losses = fleet.losses(rows := torch.randint(256, (3, 42)))
        optimizers[-1].zero_grad()
        losses.sum().backward()
        fleet.clip(0.05)
        for n, (scheme, model) in enumerate(zip(SCHEMES, alone, strict=False)):
            loss = train.loss_of(model, rows)
            torch.testing.assert_close(losses[n].double(), loss.double(), rtol=1e-6, atol=0, msg=scheme)  # of float32
            model.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.05)
            shared = dict(fleet.decoder.named_parameters())
            own = dict(fleet.positions[n].named_parameters(prefix="trunk.position"))
            for name, p in model.named_parameters() if step == 0 else ():
                found = own[name].grad if name in own else shared[name].grad[n].view_as(p)
                torch.testing.assert_close(found, p.grad, rtol=1e-5, atol=1e-9, msg=f"{scheme}, {name}")
            optimizers[n].step()
        optimizers[-1].step()
    assert fleet.losses(rows).isfinite().tolist() == [*[True] * len(SCHEMES), False]
    torch.testing.assert_close(fleet.member(1).head.weight, alone[1].head.weight, rtol=0, atol=1e-5)


@pytest.fixture
def text(tmp_path: Path) -> Rows:
    for n in range(12):
        (tmp_path / f"{n}.txt").write_text("".join(f"{n * m} is {n} times {m}; " for m in range(300)))
    pack(tmp_path / "text.npz", [f"{tmp_path}/*.txt"], "sums", TINY.trained, TINY.lengths[-1], TINY.windows)
    return Rows(tmp_path / "text.npz", torch.device("cpu"))


def measured(out: Path) -> list[dict[str, Any]]:
    return [
        {name: value for name, value in record.items() if name not in ("time", "seconds")}
        for folder in sorted(out.glob("3m-*"))
        for record in read(folder)
    ]


def test_a_portion_that_is_stopped_loses_nothing(text: Rows, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped after every eighth step or test, it has the records of one that was not; a scheme that
    fails is named, and the others go on."""
    of = Training("3m", 20, 1, ("t5", "fox", "pope"))
    monkeypatch.setattr(sizes, "POINTS", 5)
    broken = sizes.Scale.model

    def model(self: sizes.Scale, scheme: str, size: str, seed: int) -> Any:
        if scheme == "pope":
            raise RuntimeError("no kernel")
        return broken(self, scheme, size, seed)

    monkeypatch.setattr(sizes.Scale, "model", model)
    with Stop() as stop:
        Portion(tmp_path / "whole", text, TINY, math.inf, stop).run(of)
        count = itertools.count(1)
        monkeypatch.setattr(Portion, "over", property(lambda self: next(count) % 8 == 0))
        for stops in itertools.count():
            try:
                Portion(tmp_path / "parts", text, TINY, math.inf, stop).run(of)
                break
            except Unfinished:
                assert stops < 20
    assert stops >= 2
    whole, parts = measured(tmp_path / "whole"), measured(tmp_path / "parts")
    assert [r["why"] for r in whole if r["kind"] == "failed"] == ["RuntimeError: no kernel"]
    assert {r["scheme"] for r in whole if r["kind"] == "training"} == {"t5", "fox"}
    assert whole == parts
    curves = [r["curve"] for r in whole if r["kind"] == "training"]
    assert all(len(each) == 5 and each[-1][0] == whole[0]["steps"] > 20 for each in curves)
    assert all(8 > first > 6 and last < 3 for (_, first), *_, (_, last) in curves)
    assert not list((tmp_path / "parts" / "checkpoints").iterdir())


def test_records_of_another_plan_are_an_error(
    text: Rows, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sizes, "PACKED", (tmp_path / "text.npz").rename(tmp_path / "toy.npz"))
    monkeypatch.setattr(sizes, "TOY", TINY)
    with Records(tmp_path / "out" / "3m-20") as records:
        records.append({"kind": "match", "scheme": "match", "seed": 0, "length": 48}, {"fingerprint": "old"})
    assert sizes.main(["--toy", "--out", str(tmp_path / "out")]) == 1
    assert re.fullmatch("error: .* must be of this plan, text and scale, got .*\n", capsys.readouterr().err)


def test_portions_begin_with_what_tells_most() -> None:
    """The first has every usual scheme and the fit; each leaves 90 seconds to start and to test, by arithmetic."""
    first, second, _ = PORTIONS
    assert first[0] == Training("3m", 20, 0, USUAL)
    assert len({(of.size, of.ratio) for of in first if "rope" in of.schemes}) == 7
    assert {of.seed for of in (*first, *second) if of.size == "3m" and of.schemes == USUAL} == {0, 1, 2}
    told = sizes.costs(sizes.Scale()).splitlines()
    assert [line for line in told if line.startswith("portion")][:2] == [
        "portion 1: 447 s of training",
        "portion 2: 450 s of training",
    ]


PLANTED = sizes_page.Fit(0.8, (0.3, 0.4), (0.15, 0.5))


def planted(speed_up: float, worth: float = 1.0) -> list[dict[str, Any]]:
    """Records of RoPE as planted, and of ALiBi, for which every token is worth so many."""
    made: list[dict[str, Any]] = []
    scale = sizes.Scale()
    for of in itertools.chain(*PORTIONS[:2]):
        its = scale.settings(of)
        shared = {"plan": "old", "text": {"about": "text", "notice": "none"}, "scale": vars(scale)}
        shared |= {"machine": {"device": "a GPU"}, "versions": {"torch": "2"}, "size": of.size, "ratio": of.ratio}
        for scheme in {"rope", "alibi"} & {*of.schemes}:
            loss = PLANTED.loss(its["parameters"], its["tokens"] * (speed_up if scheme == "alibi" else 1))
            loss += 0.002 * of.seed
            for kind, length in itertools.product(sizes.KINDS, scale.lengths):
                bits = {"sliding": loss, "far": 1.0 if length < 4000 else 0.3}.get(kind, 0.05)
                told = {"right": 0.5} if kind == "retrieval" else {"bits": [bits - 0.01, bits + 0.01]}
                record = {"kind": kind, "scheme": scheme, "seed": of.seed, "length": length}
                made.append({**record, **told, **its, **shared})
        made.append(
            {"kind": "match", "scheme": "match", "seed": of.seed, "length": 512, "bits": [worth], **its, **shared}
        )
    return made


def test_a_fit_recovers_what_was_planted() -> None:
    found = sizes_page.found(planted(1.6, 7.0))
    assert found.fit is not None
    numbers = (found.fit.floor, *found.fit.of_size, *found.fit.of_tokens)
    assert numbers == pytest.approx((0.8, 0.3, 0.4, 0.15, 0.5), rel=0.1)
    rows = {row.scheme: row for row in found.rows["3m"]}
    assert [*rows] == ["alibi", "rope"]
    assert rows["alibi"].speed_ups == pytest.approx([1.6] * 3, rel=0.02)
    assert (rows["alibi"].verdict, rows["rope"].verdict, rows["rope"].speed_up) == ("worth more", "", "1.00")
    assert rows["rope"].carries(found.lengths, found.trained) == "2,048"
    assert PLANTED.speed_up(1e8, 0.5, 1.0) == math.inf
    assert sizes_page.fit(found.points[:5]) is None


def test_the_page_says_what_its_records_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "study").mkdir()
    (tmp_path / "images").mkdir()
    page = tmp_path / "study" / "sizes.md"
    sizes_page.write(tmp_path, tmp_path)
    assert "**Nothing of it has been run yet**" in page.read_text()
    (tmp_path / "sizes" / "3m-20").mkdir(parents=True)
    monkeypatch.setattr(sizes_page, "read", lambda folder: planted(1.6, 2.0) if folder.name == "3m-20" else [])
    sizes_page.write(tmp_path, tmp_path)
    text = page.read_text()
    assert "| ALiBi | 3 | " in text
    assert re.search(r"\| 1\.[56]\d \| worth more \|", text)
    assert "gains 2.0 bits at least, too little: **nothing is said of far text**" in text
    assert "**Of another plan**" in text
    assert (tmp_path / "images" / "study-sizes-dark.png").stat().st_size > 10_000


class Near(Matching):
    """Does not see the first fifty bytes."""

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return super().forward(tokens.index_fill(1, torch.arange(50), 0))


def test_what_matches_by_construction_retrieves_from_the_beginning(text: Rows) -> None:
    windows = torch.randint(97, 123, (6, 257)).numpy().astype("uint8")
    found = [Evaluation(of(), windows, text.pieces[:, :6], None, (256,), 48) for of in (Matching, Near)]
    assert [each.measure("retrieval", 256)["right"] for each in found] == [1, 0]


class Copying(Matching):
    """Takes and gives what a model of transformers does."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))

    def forward(self, input_ids: torch.Tensor, use_cache: bool, logits_to_keep: int) -> Any:  # type: ignore[override]
        return SimpleNamespace(logits=super().forward(input_ids)[:, -logits_to_keep:])


def test_drope_trains_a_random_llama(text: Rows, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In two parts as in one; and from the command to the page."""
    transformers = pytest.importorskip("transformers")
    folder = checkpoint(tmp_path / "model", max_position_embeddings=128)
    words = lambda said, **_: {"input_ids": [*said.encode()]}  # noqa: E731
    found = drope.retrieval(Copying(), words, torch.randint(97, 123, (900,)), 512, 5)
    assert found == {"right": 1.0, "digits": 1.0}
    with pytest.raises(ValueError, match="length must leave room for a key, and be of 900 tokens at most, got 64"):
        drope.retrieval(Copying(), words, torch.zeros(900, dtype=torch.int32), 64, 1)
    tokens, weights = torch.randint(256, (900,), dtype=torch.int32), []
    for name, parts in (("whole", (6,)), ("parts", (2, 4))):
        for part in parts:
            model = transformers.LlamaForCausalLM.from_pretrained(folder)
            monkeypatch.setattr(drope, "time", SimpleNamespace(monotonic=itertools.count().__next__))
            drope.train(model, tokens, 32, 100.0, part - 0.5, tmp_path / name, SimpleNamespace(asked=False), "")
        weights.append(model.state_dict())
    torch.testing.assert_close(*weights, rtol=0, atol=0)
    monkeypatch.undo()
    out = tmp_path / "drope"
    given = [str(folder), "--text", str(tmp_path / "text.npz"), "--out", str(out), "--rows", "2", "--total", "0.01"]
    assert drope.main(given) == 0
    with pytest.raises(SystemExit):
        drope.main(["HuggingFaceTB/SmolLM2-135M"])
    assert [(r["scheme"], r["length"]) for r in read(out)] == [
        (scheme, length) for scheme in ("RoPE", "YaRN", "DroPE", "DroPE") for length in (128, 256, 512)
    ]
    (tmp_path / "study").mkdir()
    sizes_page.write(tmp_path, tmp_path)
    assert "| YaRN | 0 | 512 tokens | 0 % | " in (tmp_path / "study" / "sizes.md").read_text()
