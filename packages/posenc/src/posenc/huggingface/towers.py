"""Asks models of pixels, sound and series: each patch or frame gets the same vector, at its place in the grid that the
model itself makes, so what still differs is position."""

from __future__ import annotations

import inspect
import itertools
import math
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from posenc.huggingface.questions import FRESH, PLACES, Answer, Asked, Call, SeenError, alike, within
from posenc.huggingface.reading import AXES
from posenc.huggingface.variants import CosineSinusoidal, OffsetSinusoidal, table_of
from posenc.positions.positions import Positions
from posenc.scheme import Scheme
from posenc.schemes.learned import Learned
from posenc.schemes.nope import NoPE
from posenc.schemes.sinusoidal import Sinusoidal

CONVOLUTIONS = (torch.conv1d, torch.conv2d, torch.conv3d)
TOKENS, INPUTS = 2**13, 2**26
"""The most patches or frames of a model that is asked, and the most numbers of its input."""


class Tower(Asked):
    """A model of pixels, sound or series that can be asked: its tokens are those of a grid, and some beside it."""

    is_tower = True
    count = before = after = 0
    """All tokens, and those before and after the grid's."""

    def _prepare(self) -> None:
        super()._prepare()
        self.given: dict[str, Any] = {}
        self.ran: dict[bool, Answer] = {}

    @property
    def whole(self) -> int:
        return self.count

    def reset(self, seed: int) -> None:
        super().reset(seed)
        self.ran.clear()
        if not self.given:
            self._measure()

    def projected(self, x: Tensor, weight: Tensor) -> Tensor:
        """Zeros for what becomes a token, so that class tokens and patches are alike."""
        return super().projected(x, weight) if self.inside else x.new_zeros(()).expand(*x.shape[:-1], weight.size(0))

    def instead(self, func: Any, args: Any, kwargs: Any) -> Tensor | None:
        """What convolutions give, and tokens that are joined, or to which positions are added."""
        if func in CONVOLUTIONS:
            if self.inside:
                raise SeenError("a convolution over tokens is in its attention")
            given = [x.to("meta") if isinstance(x, Tensor) else x for x in (*args, *kwargs.values())]
            out = func(*given[: len(args)], **dict(zip(kwargs, given[len(args) :], strict=True)))
            return args[0].new_zeros(()).expand(out.shape)
        if self.inside:
            return None
        if func is torch.cat and (args[1] if len(args) > 1 else kwargs.get("dim", 0)) in (1, -2):
            return self._joined(args[0])
        return super().instead(func, args, kwargs)

    def _joined(self, parts: Any) -> Tensor | None:
        """Patches and other tokens, all alike."""
        found = [n for n, x in enumerate(parts) if x.dim() == 3 and x.size(1) > 1 and alike(x)]
        if len(found) != 1 or isinstance(parts[found[0]], nn.Parameter):
            return None
        sizes = [x.size(1) for x in parts]
        if len(self.grid) > 1:  # of which all other tokens are counted again
            again = 0 if sizes[found[0]] == math.prod(self.grid) else 1
            self.before = again * self.before + sum(sizes[: found[0]])
            self.after = again * self.after + sum(sizes[found[0] + 1 :])
        return parts[found[0]][:, :1].repeat(1, sum(sizes), 1)

    def _pass(self, plain: bool, keep: Any) -> list[Call]:
        self.before = self.after = 0
        return self._run(self.given, plain, keep)

    def _measure(self) -> None:
        """Finds inputs that the model takes, and the grid that it makes of them."""
        error = ""
        for given, grid in _inputs(self.config, self.parameters):
            self.given, self.grid, self.tokens = given, grid, -1
            try:
                calls = self._pass(False, lambda x: x[:, :, :1])
            except ValueError as found:
                error = error or str(found)
                continue
            self.tokens = self.count = max(call.tokens[1] for call in calls)
            rest = self.count - self.before - self.after
            if not self.grid:
                self.grid = (self.count,)
            elif rest != math.prod(self.grid):
                error = f"it makes {rest} tokens of {' x '.join(map(str, self.grid))} patches"
                continue
            if self.count > TOKENS:
                raise ValueError(f"it must make at most {TOKENS} tokens, got {self.count}")
            self.axes = len(self.grid) * (len(self.grid) > 1)
            self.takes_ids = self.axes > 0
            sides = [math.isqrt(call.tokens[1]) for call in calls if call.tokens[1] < self.count]
            self.end = min(*self.grid, *sides) if self.axes else self.count
            return
        raise ValueError(error or f"it takes {next(iter(self.parameters))}, and no input_ids")

    def places(self, length: int | None) -> tuple[Tensor, Tensor]:
        return within(PLACES, self.end), within(FRESH, self.end)

    def masks(self, end: int) -> Answer:
        return self(self.places(None)[0])

    def _kept(self, x: Tensor) -> Tensor:
        """The tokens at places that are looked at, and those that are no patches."""
        grid, before, rest = self.grid, self.before, [*range(self.before), *range(self.count - self.after, self.count)]
        if x.size(2) != self.count:
            side = math.isqrt(x.size(2))
            grid, before, rest = (1,) * (len(self.grid) - 2) + (side, side), 0, []
            if side**2 != x.size(2) or bool((x != x[:1]).any()):
                raise SeenError(
                    f"attention gets {x.size(2)} tokens of {self.count}, which are no windows that are alike"
                )
        strides = [math.prod(grid[n + 1 :]) for n in range(len(grid))]
        seen = [before + sum(p * s for p, s in zip(at, strides, strict=True)) for at in self._looked_at()]
        return x[:1, :, seen + rest]

    def _looked_at(self) -> list[tuple[int, ...]]:
        places, axes = sorted({int(p) for each in self.places(None) for p in each}), len(self.grid)
        lines = [tuple(p * (n == axis) for n in range(axes)) for p in places for axis in range(axes)]
        mixed = [(p, p // 2, p // 3)[:axes] for p in places]
        return list(dict.fromkeys([*((p,) * axes for p in places), *lines, *mixed]))

    def __call__(self, places: Tensor, plain: bool = False, by_ids: bool = True) -> Answer:
        plain = plain and any(getattr(each, "attention_scaling", 1.0) != 1.0 for each in self.model.modules())
        if plain not in self.ran:
            calls = self._pass(plain, self._kept)
            self.ran[plain] = Answer(calls, dict(self.tables), places, False)
        answer, axes = self.ran[plain], len(self.grid)
        coords = places[:, None].expand(-1, axes) if places.dim() == 1 else places[:, 0].mT
        where = {at: n for n, at in enumerate(self._looked_at())}
        seen = [where[tuple(at)] for at in coords.tolist()]
        calls = []
        for call in answer.calls:
            bias = None if call.bias is None else call.bias[:, seen]
            query, key, value = (x[:, :, seen] for x in (call.query, call.key, call.value))
            rest = [x[:, :, len(where) :] for x in (call.query, call.key)]
            calls.append(replace(call, query=query, key=key, value=value, bias=bias, rest=rest))
        return Answer(calls, answer.tables, places, False)

    # -- what is added to patches, and where other tokens are ---------------------------------------------------------

    def others(self, scheme: Scheme, call: Call) -> list[str]:
        """Where the tokens are that are no patches. ValueError if they are nowhere near the first patch."""
        if not call.rest or not call.rest[0].size(2) or isinstance(scheme, NoPE):
            return []
        where: dict[float, str] = {
            (self.grid[-1] - 1) / 2: "are at the middle of the image, so that angles depend on how many patches it has",
            0: "turn as the first patch does",
            -1: "turn as a patch before the first row and column would",
        }
        for place, words in where.items():
            at = Positions(torch.full((1, 1, len(self.grid)), place), order=torch.zeros(1, 1, dtype=torch.long))
            turned = scheme.tokens(at, dtype=torch.float64).rotate(*(x[:, :, :1] for x in (call.query, call.key)))
            off = [float((a - b).abs().max() / b.abs().max()) for a, b in zip(turned, call.rest, strict=True)]
            if max(off) < 1e-5:
                return [f"tokens that are no patches, {self.before + self.after} of them, {words}"]
        raise ValueError("tokens that are no patches turn neither as the first patch nor as the middle of the image")

    def input_of_grid(self, added: Tensor) -> tuple[Scheme | None, list[str]]:
        """The sinusoids of a grid that are added to tokens, or none for a table that is fitted to it, and what to say
        of it."""
        patches = added[self.before : self.before + math.prod(self.grid)] if len(added) == self.count else added
        if len(patches) != math.prod(self.grid):
            raise ValueError(f"positions are added to {len(added)} tokens of {self.count}")
        coords = torch.cartesian_prod(*map(torch.arange, self.grid)).reshape(len(patches), -1)
        orders = {
            "": coords,
            "its coordinates are column and row": coords.flip(-1),
            "counted in one line": torch.arange(len(patches))[:, None],
        }
        for layout, (order, each) in itertools.product(LAYOUTS, orders.items()):
            with suppress(ValueError):
                scheme = Sinusoidal(added.size(-1), layout=layout, axes=each.size(1))
                ours = scheme.table(Positions(each[None] if each.size(1) > 1 else each.mT), torch.float64)[0]
                if float((ours - patches).abs().max()) < 1e-4:
                    return scheme, [order] * bool(order)
        if (fitted := fitted_table(self.model, patches, self.grid)) is not None:
            return fitted[0], [fitted[1]]
        for name, weight in self.model.named_parameters():
            if "pos" in name and weight.size(-1) == added.size(-1) and name not in self.fixed:
                weight.zero_()
                self._pass(False, self._kept)
                if all(not bool(each.any()) for each in self.added):
                    return None, [f"{UNREAD}: {name}"]
        raise ValueError("what is added to its tokens is no table and no sinusoids in an order that is known")

    def remarks(self) -> list[str]:
        """What it was asked of, and convolutions that see where it ends."""
        kinds = {name: type(each).__name__.lower() for name, each in self.model.named_modules()}
        names = [name for name, kind in kinds.items() if re.search("pos.*conv", kind)]
        tokens = "frames" if len(self.grid) == 1 else f"patches, by {', '.join(AXES[-len(self.grid) :])}"
        convolution = "a convolution is added to them, which sees where the input ends"
        return [f"asked of {' x '.join(map(str, self.grid))} {tokens}", *(f"{convolution}: {n}" for n in names[:1])]


def input_of(asked: Asked, answer: Answer) -> tuple[Scheme | None, list[str]]:
    """The learned table or the sinusoids that are added to tokens, and what to say of them. ValueError if they are
    neither, or added more than once."""
    before, grid, remarks = (asked.before, asked.grid, asked.remarks()) if isinstance(asked, Tower) else (0, (1,), [])
    found: list[tuple[str, Tensor, Tensor | None]] = []
    found += [(name, weight[rows].double(), None) for name, (weight, rows) in answer.tables.items()]
    found += [(name, *each) for name, each in asked.sinusoids.items()]
    found += [("its model", added, None) for added in asked.added]
    if not found:
        return None, remarks
    if asked.axes and not asked.is_tower:
        fitted = fitted_table(asked.model, *asked.on_grid())
        unread = UNREAD if answer.tables else "positions are added to patches too, which are not read"
        return (None, [unread]) if fitted is None else (fitted[0], [fitted[1]])
    if len(found) > 1:
        raise ValueError(f"positions are added to its tokens {len(found)} times")
    [(name, added, every)] = found
    looked_up, padding = answer.tables.get(name, (None, [0]))[1], getattr(asked.config, "pad_token_id", None) or 0
    if (table := asked.rows_of(added, {*range(before + 3), padding + 1, looked_up[0]})) is not None:
        name, first, count = table
        offset = first - before * (len(added) < asked.whole and first > 0)
        frozen = "its table does not train"
        return table_of(count, added.size(1), offset), [*remarks, *[frozen] * (name in asked.frozen)]
    if isinstance(asked, Tower) and len(grid) > 1:
        scheme, more = asked.input_of_grid(added)
        return scheme, remarks + more
    if name in answer.tables:
        raise ValueError(f"positions {answer.places[:4].tolist()} ... are rows {looked_up[:4]} ... of its table")
    return sinusoids_of(name, added, every, padding), remarks


UNREAD = "a learned table is added to patches, fitted to the grid, which is not read"


def fitted_table(model: nn.Module, added: Tensor | None, grid: tuple[int, ...]) -> tuple[Scheme, str] | None:
    """The learned table of a square of patches that is resized or repeated for patches of another grid, in one line or
    in blocks of 2 x 2, and what to say of it."""
    if added is None or len(grid) != 2:
        return None
    for name, weight in model.named_parameters():
        if "pos" not in name or weight.dim() < 2 or weight.size(-1) != added.size(1):
            continue
        rows = weight.flatten(0, -2).double()
        side = math.isqrt(len(rows))
        if side < 2:
            continue
        table = rows[len(rows) - side**2 :].view(side, side, -1)
        y, x = (torch.arange(n) % side for n in grid)
        tries = {"repeated": table[y][:, x]}
        for mode, corners, blur in itertools.product(("bilinear", "bicubic"), (False, True), (False, True)):
            how = " with antialias" * blur + " with aligned corners" * corners
            size: dict[str, Any] = {"size": grid, "mode": mode, "align_corners": corners, "antialias": blur}
            resized = nn.functional.interpolate(table.permute(2, 0, 1)[None], **size)
            tries[f"resized, {mode}{how}"] = resized[0].permute(1, 2, 0)
        for how, ours in tries.items():
            lines = [ours.flatten(0, 1)]
            if not any(n % 2 for n in grid):
                lines.append(ours.view(grid[0] // 2, 2, grid[1] // 2, 2, -1).transpose(1, 2).flatten(0, 3))
            if any(torch.allclose(line, added, 1e-4, 1e-5 * float(added.abs().max())) for line in lines):
                return Learned(*rows.shape), f"its table is of {side} x {side} patches, for other grids {how}: {name}"
    return None


LAYOUTS: tuple[Any, ...] = ("interleaved", "concatenated", "tensor2tensor")


def sinusoids_of(name: str, added: Tensor, rows: Tensor | None, padding: Any) -> Scheme:
    """The sinusoids that a module added to its tokens, and all the rows that it has."""
    dim = added.size(1)
    offsets = dict.fromkeys((1, 2, (padding or 0) + 1))
    tries: list[Scheme] = [*(Sinusoidal(dim, layout=each) for each in LAYOUTS), CosineSinusoidal(dim)]
    tries += [OffsetSinusoidal(dim, each) for each in offsets]
    for scheme in tries:
        offset = getattr(scheme, "offset", 0)
        all_rows = added if rows is None else rows[offset:]
        count = max(len(added), len(all_rows))
        table = scheme.table(Positions.arange(count), dtype=torch.float64)
        assert table is not None
        ours = table[0]
        bound = (torch.arange(count) * 2**-22 + 2**-20)[:, None]
        if all(bool(((ours[: len(x)] - x).abs() <= bound[: len(x)]).all()) for x in (added, all_rows)):
            return scheme
    raise ValueError(f"what {name} adds to its input are no sinusoids in an order that is known")


GIVEN = ("feature_lens", "input_features_mask", "noise", "skip_predictor")
"""Inputs that have a default, and are given."""


def _inputs(config: Any, takes: Mapping[str, inspect.Parameter]) -> Iterator[tuple[dict[str, Any], tuple[int, ...]]]:
    """Inputs to try, of the sizes in a configuration, and the grids of patches that they are; none for sound."""
    inner = [config, *(each for each in vars(config).values() if hasattr(each, "model_type"))]

    def pair(*keys: str, default: int = 0) -> tuple[int, int]:
        value: Any = next(filter(None, (getattr(each, key, None) for each in inner for key in keys)), default)
        value = [*value.values()] if isinstance(value, dict) else [value] if isinstance(value, int) else [*value]
        return value[-min(2, len(value))], value[-1]

    patch = pair("patch_size", "tubelet_size", default=16)
    side = math.isqrt(pair("num_patches", "num_position_embeddings", default=256)[0])
    image = pair("image_size", "crop_size", "img_size", default=side * patch[0])
    channels = pair("num_channels", "in_channels", "in_chans", default=3)[0]
    frames = pair("num_frames", "frames_per_clip")[0]
    if min(*image, *patch) < 1:
        raise ValueError(f"its images and patches must be of at least 1 pixel, got {image} and {patch}")
    grid = image[0] // patch[0], image[1] // patch[1]
    if "spatial_shapes" in takes and min(grid) > 4:  # which has a table of this grid
        grid = grid[0] - 3, grid[1] - 2
    count, flat = grid[0] * grid[1], channels * patch[0] * patch[1]
    tubelet = getattr(config, "tubelet_size", 1)
    steps = frames // (tubelet if isinstance(tubelet, int) else tubelet[0])
    mel = pair("feature_projection_input_dim", "num_mel_bins", "feature_size", default=80)[0]
    longest = 2 * pair("max_source_positions", default=600)[0]
    if max(count * max(steps, 1), longest) > 2 * TOKENS:
        raise ValueError(f"it must make at most {TOKENS} tokens, got {max(count * max(steps, 1), longest // 2)}")
    shorter = 300 if hasattr(config, "feature_projection_input_dim") else 1000  # frames that are tokens, or are joined
    length, lengths = pair("patch_length", default=32)[0], dict.fromkeys((min(longest, shorter), longest))
    every = torch.ones(1, count, dtype=torch.bool)
    more = {
        "past_values_padding": torch.zeros(1, 64 * length, dtype=torch.long),
        "freq": torch.zeros(1, 1, dtype=torch.long),
        "skip_predictor": True,
        "bool_masked_pos": torch.zeros(1, count * max(steps, 1), dtype=torch.bool),
        "image_sizes": torch.tensor([[*image]]),
        "noise": torch.arange(count)[None],
        "pixel_attention_mask": every,
        "pixel_position_ids": torch.cartesian_prod(*map(torch.arange, grid)).flip(-1)[None],
        "spatial_shapes": torch.tensor([[*grid]]),
        "target_sizes": torch.tensor([[*grid]]),
        "input_features_mask": torch.ones(1, longest, dtype=torch.long),
        "feature_lens": torch.tensor([longest]),
    }
    every_shape: dict[str, list[tuple[tuple[int, ...], tuple[int, ...]]]] = {
        "pixel_values": [((1, frames, channels, *image), (steps, *grid))] * (steps > 1)
        + [((1, channels, *image), grid), ((1, count, flat), grid), ((count, flat), grid)],
        "pixel_values_videos": [((1, frames, channels, *image), (steps, *grid))],
        "flattened_patches": [((1, count, flat + 2), grid)],
        "input_features": [(each, ()) for n in lengths for each in ((1, n, mel), (1, mel, n), (mel, n))],
        "input_values": [((1, 64_080), ()), ((1, 1, 64_000), ()), ((1, getattr(config, "max_length", 0), mel), ())],
        "past_values": [((1, 64 * length), ())],
    }
    first = next(iter(takes))
    needed = {name: more[name] for name, x in takes.items() if name in more and (name in GIVEN or x.default is x.empty)}
    for shape, of in every_shape.get(first, []):
        if math.prod(shape) > INPUTS:
            raise ValueError(f"its input must have at most {INPUTS} numbers, got {tuple(shape)}")
        if all(shape):
            yield {first: torch.zeros(shape, dtype=torch.float64), **needed}, of
