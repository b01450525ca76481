"""What a term declares of the distance is tried: what is false is named, and nobody else is accused."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import posenc
from posenc import Positions, Scheme
from posenc.command.cli import main
from posenc.encoding import claims
from posenc.encoding.claims import ClaimError, checking_claims
from posenc.encoding.terms import Bias, Distance, Function, RelativeDot, Value
from tests.backends.parity_cases import KINDS, built
from tests.rows import with_more

SLOPES = torch.tensor([1.0, 0.5, 0.25])
TABLE = torch.randn(3, 17, 4, generator=torch.Generator().manual_seed(0))


def line(away: Tensor) -> Tensor:
    return -torch.tensordot(SLOPES, away.float(), 0)


def scaled(score: Tensor, factor: Tensor) -> Tensor:
    return score * factor


class Mine(Scheme):
    """A scheme of one term."""

    def __init__(self, term: Any) -> None:
        super().__init__()
        self.term = term

    def score(self, query_positions: Positions, key_positions: Positions, context: Any = None) -> Any:
        return () if isinstance(self.term, Value) else (self.term,)

    def value(self, query_positions: Positions, key_positions: Positions, context: Any = None) -> Any:
        return (self.term,) if isinstance(self.term, Value) else ()


def bias(at: Callable[[Tensor], Tensor], masks: bool = False, **claimed: Any) -> Scheme:
    return Mine(Bias(at, Distance("Mine", **claimed), masks=masks))


FALSE: dict[str, tuple[Scheme, str]] = {
    "a line called constant": (
        bias(lambda r: line(r.abs()), tail="constant", past=8, integral=True),
        r"its Bias declares tail='constant' and past=8, but at distance -9 head 0 has -9 and not -8, which is 1 off: "
        r"declare another tail, or tail=None$",
    ),
    "a curve called a line": (
        bias(lambda r: line((1 + r.abs()).log()), tail="linear", past=8),
        r"declares tail='linear' and past=8, but at distance -8.5 head 0 has",
    ),
    "constant from further on": (
        bias(lambda r: line(r.abs().clamp(max=20)), tail="constant", past=8, integral=True),
        r"declares past=8, but is constant from 20 on only: at distance -9 head 0 has .*: declare past=20$",
    ),
    "linear from further on": (
        bias(lambda r: line(r.abs() + (r.abs() - 20).clamp(min=0)), tail="linear", integral=True),
        r"declares past=0, but is linear from 20 on only: at distance -21 head 0 has -22 .*: declare past=20$",
    ),
    "a table that ends before": (
        Mine(RelativeDot(lambda r: TABLE[:, r + 8], Distance("Mine", integral=True, reach=(10,)))),
        r"its RelativeDot declares reach=\(10,\), but distance 9 has no entry \(IndexError: ",
    ),
    "a table that ends before, on two axes": (
        bias(lambda r: TABLE[:, r[..., 0] + 8, r[..., 1] + 1], axis=None, integral=True, reach=(9, 4)),
        r"its Bias declares reach=\(9, 4\), but distance \[.*3\] has no entry",
    ),
    "a table at fractions": (
        Mine(Value(lambda r: TABLE[:, r.clamp(-8, 8) + 8], Distance("Mine", tail="constant", past=8))),
        r"its Value declares integral=False, but distance 0.5 has no entry \(IndexError: .*: declare integral=True$",
    ),
    "vectors that go on": (
        Mine(Value(lambda r: r[None, :, None] / 7, Distance("Mine", tail="constant", past=3, integral=True))),
        r"its Value declares tail='constant' and past=3, but at distance -4 head 0 has -0.571429 and not -0.428571",
    ),
    "coefficients that go on": (
        Mine(Function(scaled, lambda r: (line(r.abs()),), Distance("Mine", tail="constant", past=3, integral=True))),
        r"its Function declares tail='constant' and past=3, but at distance -4 head 0 has -4 and not -3,",
    ),
    "what hides in secret": (
        bias(lambda r: line(r.abs()).masked_fill(r > 0, -torch.inf), tail="linear"),
        r"declares masks=False, but some of its numbers are -inf: declare masks=True$",
    ),
}


@pytest.mark.parametrize("name", FALSE)
def test_a_false_claim_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "_is_checking", False)
    scheme, words = FALSE[name]
    with checking_claims(), pytest.raises(ClaimError, match=f"^Mine: .*{words}"):
        (posenc.NoPE() + scheme)(Positions.grid(1, 2) if "two axes" in name else Positions.arange(2))
    if "axes" not in name:
        scheme(Positions.arange(2))  # to try it costs time, and is not done unless it is asked for


TRUE: dict[str, Scheme] = {
    "a line with a bend": bias(lambda r: line(r.abs() + (r.abs() - 20).clamp(min=0)), tail="linear", past=20),
    "a line that hides": bias(lambda r: line(r.abs()).masked_fill(r > 0, -torch.inf), masks=True, tail="linear"),
    "a plateau": bias(lambda r: line(r.abs().clamp(max=20)), tail="constant", past=20),
    "a plateau, claimed late": bias(lambda r: line(r.abs().clamp(max=20)), tail="constant", past=33),
    "a table with a tail": bias(lambda r: TABLE[:, r.clamp(-8, 8) + 8, 0], integral=True, tail="constant", past=8),
    "a table with an end within its tail": bias(
        lambda r: TABLE[:, r + 8, 0] * (r.abs() < 4), integral=True, tail="constant", past=4, reach=(9,)
    ),
    "half precision": bias(lambda r: line(r.abs()).bfloat16(), tail="linear", past=3),
    "no coefficients": Mine(Function(torch.tanh, distance=Distance("Mine", tail="constant"))),
}


@pytest.mark.parametrize("name", TRUE)
def test_a_true_claim_is_believed(name: str) -> None:
    with checking_claims():
        TRUE[name](Positions.arange(2))


@pytest.mark.parametrize("dtype", with_more([torch.float32], [torch.float64, torch.bfloat16]))
def test_no_scheme_is_accused(dtype: torch.dtype) -> None:
    """All of the catalog, and those beside it, of 12 heads and parameters of order 1."""
    with checking_claims():
        for name, kind in KINDS.items():
            built(name, heads=12, dtype=dtype)(kind.at(Positions.arange(3)))


FILE = """
import torch
from posenc import Scheme
from posenc.encoding.terms import Bias, Distance


class Mine(Scheme):
    def __init__(self, num_heads: int) -> None:
        super().__init__()
        self.slopes = torch.nn.Parameter(torch.zeros(num_heads))

    zero_initialized = True

    def score(self, query_positions, key_positions, context=None):
        return (Bias(self.bias, Distance("Mine", tail="constant", past=8)),)

    def bias(self, r):
        return torch.tensordot(self.slopes, r.abs().to(self.slopes.dtype), 0)
"""


def test_a_command_tries_it_before_anything_else(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With parameters that are not the zeros that they begin as."""
    (tmp_path / "claimed.py").write_text(FILE)
    assert main(["laws", "--schemes", f"{tmp_path}/claimed.py:Mine"]) == 1
    said = capsys.readouterr().err
    assert "posenc: error: Mine: its Bias declares tail='constant' and past=8, but at distance -8.5 head" in said
    assert claims._is_checking is sys.flags.dev_mode
