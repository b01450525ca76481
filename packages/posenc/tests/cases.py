"""What the tests run on: the cases of the oracles, compositions of them, and awkward positions."""

from dataclasses import replace
from importlib import import_module

import torch
from torch import Tensor

from posenc import ALiBi, Positions, RoPE, Scheme, Sinusoidal
from posenc.schemes.catalog import CATALOG
from tests.oracles import alibi, attention, case, rope, sinusoidal
from tests.oracles.case import DIM, HEAD_DIM, HEADS, KV_HEADS, TOKENS


def across(bounds: tuple[float, ...], size: torch.Size) -> Tensor:
    """Numbers below, between and above the bounds in turns, none so near to one that a small step would cross it."""
    ends = (bounds[0] - 1.0, *bounds, bounds[-1] + 1.0)
    turn = torch.arange(size.numel()) % (len(ends) - 1)
    low, high = (torch.tensor(x, dtype=torch.float64)[turn] for x in (ends[:-1], ends[1:]))
    share = 0.05 + 0.9 * torch.rand(size.numel(), dtype=torch.float64)
    return (low + (high - low) * share).view(size)


def positions_cases() -> dict[str, Positions]:
    """Two rows (or one) of nine tokens each."""
    mask = torch.ones(2, TOKENS, dtype=torch.bool)
    left, right, inside = mask.clone(), mask.clone(), mask.clone()
    left[1, :4] = False
    right[0, 5:] = False
    inside[0, [0, 3, 4]] = False
    inside[1, [2, 8]] = False
    shuffle = torch.tensor([4, 1, 8, 0, 6, 2, 7, 3, 5])
    cases = {
        "plain": Positions.arange(TOKENS),
        "offset": Positions.arange(TOKENS, start=11),
        "packed": Positions.packed([[4, 5], [2, 3, 3]]),
        "left padded": Positions.padded(left),
        "right padded": Positions.padded(right),
        "padded inside": Positions.padded(inside),
        "one row is padding": Positions.padded(mask & torch.tensor([[True], [False]])),
        "permuted": Positions.arange(TOKENS)[shuffle],
        "repeated": Positions(torch.tensor([[3, 3, 3, 0, 1, 1, 17, 2, 5]])),
        "fractional": Positions(torch.linspace(-2.5, 9.25, TOKENS, dtype=torch.float64)[None]),
    }
    kind = torch.arange(TOKENS)[None] % 2
    return {name: positions.with_segment(kind.expand(positions.rows, -1)) for name, positions in cases.items()}


def grid_cases() -> dict[str, Positions]:
    """Nine tokens each, at a row and a column of a 3 x 5 grid or less."""
    grid = Positions.grid(3, 5)
    document = torch.tensor([[0, 0, 0, 0, 1, 1, 1, -1, 1], [0, 0, 0, 0, 0, 0, 0, 0, 0]])
    cases = {
        "square": Positions.grid(3, 3),
        "part of a grid": grid[3:12],
        "permuted patches": grid[torch.tensor([14, 2, 7, 0, 9, 11, 4, 5, 13])],
        "two images, padded": Positions(grid[:9].coords, document=document),
    }
    return cases


def class_cases() -> dict[str, Positions]:
    """Eight patches after a class token at (-1, -1), and two images with a class token each."""
    patches = Positions.grid(3, 5).coords[:, :8]
    coords = torch.cat((patches.new_full((1, 1, 2), -1), patches), 1).repeat(2, 1, 1)
    coords[1, 5] = -1
    document = torch.tensor([[0, 0, 0, 0, 0, 0, 0, 0, 0], [0, 0, 0, 0, 1, 1, 1, -1, 1]])
    return {"class tokens": Positions(coords, document=document)}


def share_cases() -> dict[str, Positions]:
    """Nine tokens each, at shares of an image's height and width from -1 to 1; the first at its middle."""
    y, x = torch.meshgrid(torch.tensor([-0.5, 0.5]), torch.tensor([-0.75, -0.25, 0.25, 0.75]), indexing="ij")
    patches = torch.stack((y, x), -1).reshape(-1, 2).double()
    return {"shares of an image": Positions(torch.cat((torch.zeros(1, 2, dtype=torch.float64), patches))[None])}


def space_cases() -> dict[str, Positions]:
    """Nine tokens each, with three coordinates."""
    space = Positions(torch.randint(-3, 9, (2, TOKENS, 3), generator=torch.Generator().manual_seed(0)))
    return {"space": space, "views": Positions.grid(2, 2, frames=3)[torch.tensor([5, 1, 8, 0, 6, 2, 11, 3, 4])]}


class Case(case.Case):
    """A case whose ``scheme`` takes no arguments."""

    def positions(self) -> dict[str, Positions]:
        """The positions it can be tried on."""
        grids = share_cases if self.real_only else class_cases if self.class_token else grid_cases
        by_axes = {1: positions_cases, 2: grids, 3: space_cases}
        return {
            name: positions
            for name, positions in by_axes[self.axes]().items()
            if not (self.integers_only and positions.coords.is_floating_point())
            and not (self.from_zero and positions.coords.min() < 0)
            and not (self.one_document and name == "packed")
        }


def bound(case: case.Case, *kinds: type[Scheme]) -> Case:
    """The case with the classes that its scheme is made of."""

    def scheme() -> Scheme:
        made: Scheme = case.scheme(*kinds).double()
        for name, parameter in made.named_parameters() if case.wide else ():
            torch.nn.init.normal_(parameter)
            if name in case.bounds:
                parameter.data.copy_(across(case.bounds[name], parameter.shape))
        return made

    return Case(**vars(case) | {"scheme": scheme})


CASES: dict[str, Case] = {
    name: bound(case, entry.scheme)
    for entry in CATALOG
    for name, case in import_module(f"tests.oracles.{entry.name}").CASES.items()
} | {
    "rope + alibi": bound(
        replace(
            rope.CASES["rope"],
            scheme=lambda: RoPE(HEAD_DIM, base=313.0) + ALiBi(HEADS),
            pairs=alibi.CASES["alibi"].pairs,
        )
    ),
    "sinusoidal + rope": bound(
        case.Case(
            lambda: Sinusoidal(DIM) + RoPE(HEAD_DIM),
            add=sinusoidal.added("interleaved", 10_000.0),
            rotate=rope.turned(10_000.0, "half", HEAD_DIM),
        )
    ),
}


def split(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Query of 12 heads, key and value of 4, cut from x (batch, tokens, DIM): projections without weights to carry."""
    heads = x.unflatten(-1, (HEADS, HEAD_DIM)).transpose(1, 2)
    return heads, heads[:, 2 : 2 + KV_HEADS], heads[:, -KV_HEADS:]


def oracle(
    case: Case, scheme: Scheme, x: Tensor, positions: Positions, last: int, causal: bool
) -> tuple[Tensor, Tensor]:
    """The output for the last queries, and their log-sum-exp, by scalar loops."""
    query, key, value = split(case.add(x, positions, scheme))
    wide = positions.expand(2)
    asking = wide[TOKENS - last :]
    visible = attention.visible_from(
        asking.order.tolist(), wide.order.tolist(), asking.document.tolist(), wide.document.tolist(), causal
    )
    q, k = case.rotate(query[:, :, TOKENS - last :], asking), case.rotate(key, wide)
    q, k = case.turn_query(q, asking, scheme), case.turn_key(k, wide, scheme)
    extra = case.pairs(scheme, q, k, asking, wide)
    out, lse, _ = attention.attend(q, k, case.turn_values(value, wide, 1), visible=visible, **extra)
    return case.turn_values(out, asking, -1), lse
