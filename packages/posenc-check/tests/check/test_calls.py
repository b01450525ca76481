"""Getting at calls, and at what things hold."""

import functools
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from posenc_check import Attention, Batch, Layer
from posenc_check.calls import arguments_of, attributes_of, gradients_of, one_line, with_tokens

BATCH = Batch([[3, 1, 4]])


class Scaling(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale, self.unused = nn.Parameter(torch.tensor(3.0)), nn.Parameter(torch.ones(2))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale


def scale(made: Any, x: Tensor, positions: Tensor | None = None) -> Tensor:
    return made(x)


def mix(made: Any, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return made(query) @ key.transpose(-1, -2) @ value


SCALED = Layer(build=Scaling, call=scale, dim=4)


def test_what_call_is_given_is_known_by_name() -> None:
    given = arguments_of(SCALED, SCALED.make(), BATCH)
    assert list(given) == ["x"]
    torch.testing.assert_close(given["x"], SCALED.content(BATCH))
    told = arguments_of(SCALED, SCALED.make(), with_tokens(BATCH, 3, 1))
    assert told["positions"].tolist() == [[0, 1, 2]]
    mixed = Attention(build=Scaling, call=mix)
    assert list(arguments_of(mixed, mixed.make(), BATCH)) == ["query", "key", "value"]


def test_gradients_are_of_parameters_and_vectors_and_zeros_where_there_are_none() -> None:
    made = SCALED.make()
    out, gradients = gradients_of(SCALED, made, BATCH)
    assert list(gradients) == ["scale", "unused", "x"]
    assert not gradients["unused"].any()
    # The output is x · 3: what x has of the weights times 3, and the sum of weights times x.
    torch.testing.assert_close(gradients["scale"], (gradients["x"] / 3 * out / 3).sum())
    for parameter in made.parameters():
        parameter.requires_grad_(False)
    assert list(gradients_of(SCALED, made, BATCH)[1]) == ["x"]


def test_an_error_is_told_in_one_line_without_what_differs() -> None:
    assert one_line(ValueError("\x1b[96mthe first\x1b[0m <f at 0x7f00ab>\nthe second")) == "ValueError: the first <f>"
    assert one_line(KeyError()) == "KeyError: "


class Holding:
    """Something of every kind that can hold something."""

    def __init__(self) -> None:
        hidden = torch.ones(1)
        unset: Any
        self.plain, self.table = 2.5, {"a": [torch.zeros(2)], "b": {3, 1}}
        self.function = lambda: (hidden, unset)
        self.part = functools.partial(max, 7, key=len)
        self.itself = self
        self.module = nn.Linear(1, 1, bias=False)
        self.torchs = torch.Generator()
        self.kind = Holding
        self.python = functools  # as keras-hub's layers have one, which leads to sys.modules
        if not self.plain:
            unset = 0

    @functools.cached_property
    def number(self) -> float:
        return 1.5

    @functools.cached_property
    def tensor(self) -> Tensor:
        return torch.zeros(3)


LEFT_OUT = ("it.itself", "it.torchs", "it.kind", "it.python", "it.function's unset")


def test_all_that_can_be_reached_is_found_once() -> None:
    thing = Holding()
    found = dict(attributes_of(thing))
    assert found["it.plain"] == 2.5
    assert found["it.table['a'][0]"].shape == (2,)
    assert found["it.table['b']{}"] == "['1', '3']"
    assert found["it.function's hidden"].shape == (1,)
    assert found["it.part.args[0]"] == 7
    assert found["it.module.weight"].shape == (1, 1)
    assert found["it.module.training"] is True
    assert not any(name.startswith(LEFT_OUT) for name in found)


@pytest.mark.parametrize(("name", "is_held"), [("number", False), ("tensor", True)])
def test_of_cached_properties_those_count_that_can_go_stale(name: str, is_held: bool) -> None:
    thing = Holding()
    getattr(thing, name)
    assert (f"it.{name}" in dict(attributes_of(thing))) == is_held
