"""The checks of life cycle, purity, backends, memory and graphs: whom they do not accuse, and what they cannot see."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from posenc.tools.check import Batch, Bias, Layer, NotApplicableError, Rotary, Subject, check
from posenc.tools.check.checks.memory import memory_grows_with_the_length
from posenc.tools.check.run import FINDING, NOT_APPLICABLE, PASSED, TrialResult
from tests.check.mutants import compilation, memory, parity
from tests.check.small import RIGHT


def trials(subject: Subject, number: int) -> dict[str, TrialResult]:
    return {trial.name: trial for trial in check(subject, checks=[number]).results[0].trials}


class Careful(nn.Module):
    """Gates of x by position: float32 within, a ReLU, running state, and a buffer that reset_parameters makes anew."""

    def __init__(self, dim: int = 8, resets: bool = True) -> None:
        super().__init__()
        self.dim, self.resets = dim, resets
        self.weight = nn.Parameter(torch.randn(dim, dim))
        self.norm = nn.BatchNorm1d(dim)
        self.register_buffer("level", torch.zeros(1))
        self.register_buffer("rates", self.wanted(), persistent=False)

    def wanted(self) -> Tensor:
        return 0.5 ** torch.arange(self.dim)

    def reset_parameters(self) -> None:
        if self.resets:
            self.rates = self.wanted()

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        gate = (positions[..., None].float() * self.rates.float()).cos()
        mixed = torch.relu(x @ self.weight).float().softmax(-1).to(x.dtype)
        return self.norm(mixed.transpose(1, 2)).transpose(1, 2) * gate.to(x.dtype) + self.level


def careful(made: Any, x: Tensor, positions: Tensor) -> Tensor:
    return made(x, positions)


CAREFUL = Layer(build=Careful, call=careful, dim=8, state=("level",))


def test_a_buffer_that_is_made_anew_survives_meta_and_no_cast() -> None:
    """The rates are powers of two, which no cast rounds: only the rule of check 3 is at stake."""
    assert {trial.status for trial in trials(CAREFUL, 3).values()} == {PASSED}
    assert {trial.status for trial in trials(replace(CAREFUL, options={"resets": False}), 3).values()} == {FINDING}


def test_state_is_no_table() -> None:
    """Running means of torch's own modules are known; others are named."""
    assert {trial.status for trial in trials(CAREFUL, 4).values()} == {PASSED}
    saved = trials(replace(CAREFUL, state=()), 4)["what is saved"]
    assert saved.finding is not None
    assert saved.finding.came == "level"


def test_single_precision_within_and_kinks_are_no_wrong_gradients() -> None:
    assert trials(CAREFUL, 16)["gradients are derivatives"].status == PASSED
    assert {trial.status for trial in trials(CAREFUL, 5).values()} <= {PASSED, NOT_APPLICABLE}


def test_what_is_no_module_has_no_life_cycle_to_check() -> None:
    for number in (3, 4):
        assert {(t.status, t.reason) for t in trials(RIGHT, number).values()} == {
            (NOT_APPLICABLE, "let build give an nn.Module, to run this")
        }


def no_options() -> None:
    return None


def lines(made: Any, query_positions: Tensor, key_positions: Tensor) -> Tensor:
    return (-(key_positions[:, None, None, :] - query_positions[:, None, :, None]).abs() / 4).double()


def unchanged(made: Any, x: Tensor, positions: Tensor) -> Tensor:
    return x


@pytest.mark.more
def test_without_anything_to_train_there_are_no_gradients() -> None:
    found = trials(Bias(build=no_options, call=lines), 16)
    assert found["gradients are derivatives"].reason == "give it a `jitter`, for no gradient is above the rounding"
    assert found["each gradient alone"].reason == "nothing to do: there are no two things to train in it"
    assert trials(Bias(build=no_options, call=lines), 5)["inference, then training"].reason == (
        "nothing to do: nothing in it is trained, and call takes no vectors"
    )


@pytest.mark.more
def test_backends_are_named_or_there_is_nothing_to_compare() -> None:
    plain = parity.attention()
    assert (
        trials(replace(plain, backends=()), 16)["outputs"].reason
        == "name in `backends` the options that must change nothing, to run this"
    )
    alone = replace(plain, options={"backend": "dense"}, backends=({"backend": "dense"},))
    assert trials(alone, 16)["gradients"].reason == "name in `backends` more than its own options, to run this"


def test_differences_are_of_double_precision() -> None:
    found = trials(replace(CAREFUL, dtype=torch.float32), 16)["gradients are derivatives"]
    assert found.reason == "let it run in float64, which differences need"


def test_memory_is_measured_where_it_is_claimed_and_there_is_room() -> None:
    claimed = memory.attention(memory.Sloped)
    assert (
        trials(replace(claimed, linear_memory=False), 17)["growth"].reason == "claim `linear_memory=True` to run this"
    )
    short = trials(replace(claimed, max_positions=4095), 17)["growth"]
    assert short.reason == "let it have `max_positions` of 4096 or more, which show how memory grows"
    pairs = trials(Bias(build=no_options, call=lines, linear_memory=True), 17)["growth"]
    assert pairs.reason == "claim no `linear_memory`, for a bias is as large as the number of pairs"
    free = Rotary(build=no_options, call=unchanged, linear_memory=True)
    with pytest.raises(NotApplicableError, match="a call needs no memory that could be counted"):
        memory_grows_with_the_length(free, Batch([[0]]), tokens=8, trained=False, growth=2.5)


def test_graphs_are_looked_at_where_they_are_claimed_and_there_are_lengths() -> None:
    claimed = compilation.layer(compilation.Attending, compiles=True, exports=True)
    reasons = [trial.reason for trial in trials(replace(claimed, compiles=False, exports=False), 18).values()]
    assert reasons == ["claim `compiles=True` to run this"] * 2 + ["claim `exports=True` to run this"] * 2
    for trial in trials(replace(claimed, max_positions=8), 18).values():
        assert trial.reason == "let it have more positions: 8 tokens are too few for 8 lengths above 1"


def lengths_alone(made: Any, query_length: int, key_length: int) -> Tensor:
    keys = torch.arange(key_length)
    return (-(keys - keys[key_length - query_length :, None]).abs() / 4).double()[None]


@pytest.mark.more
def test_lengths_as_numbers_are_compiled_and_cannot_be_left_open_in_a_program() -> None:
    found = trials(Bias(build=no_options, call=lengths_alone, compiles=True, exports=True), 18)
    assert found["compiled"].status == PASSED
    assert (
        found["exported"].reason
        == "let call take positions, for it takes the length as a number, not as the shape of a tensor"
    )


def test_without_a_compiler_nothing_is_said_of_graphs() -> None:
    claimed = compilation.layer(compilation.Attending, compiles=True)
    with torch.compiler.set_stance("force_eager"):
        assert (
            trials(claimed, 18)["compiled"].reason
            == "unset TORCHDYNAMO_DISABLE, for torch.compile is switched off, or finds nothing to compile"
        )


@pytest.mark.more
@pytest.mark.parametrize("missing", ["onnx", "onnxruntime"])
def test_what_onnx_needs_is_said(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def find(name: str) -> object:
        return None if name == missing else object()

    monkeypatch.setattr("posenc.tools.check.checks.compilation.find_spec", find)
    claimed = compilation.layer(compilation.Attending, exports=True)
    assert trials(claimed, 18)["ONNX"].reason == f"install {missing} to run this"
