"""Defines checks, the trials that they consist of, and the plan by which trials choose their cases."""

import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from posenc_check.outcome import Outcome, Outcomes, largest
from posenc_check.subjects import PADDING, VOCABULARY, Batch, Subject, applies, must_show, require

LENGTHS = (1, 3, 8, 23)  # unlucky sizes: one token, odd numbers, fewer and more than the channels of a head
LONGEST = 1025
FAR = 2**20  # the largest position for rotations, where rounding a phase to float32 costs half a radian

NOTHING_TO_DO = "nothing to do:"  # the beginning of a reason that no claim and no parameter would change
AT_0_ALONE = "let call take `positions` (rows, tokens), for there is no position but 0"
LACKS = {  # what call must take, by what it can then do
    "positions": "let call take `positions` (rows, tokens)",
    "padding": "let call take `padding` (rows, tokens)",
    "document": "let call take `document` (rows, tokens)",
    "order": "let call take `order` (rows, tokens), for causality depends on the index",
    "cache": "let call take a `cache`, and give it back",
    "queries": "let call take `memory` (rows, keys, dim), for queries are the keys",
    "lse": "nothing to do: a layer gives no log-sum-exp, so parts of the keys cannot be merged",
}
# The same for subjects between queries and keys, which are given more than a `Layer`.
LACKS_OF_HEADS = {
    "positions": "let call take `query_positions` and `key_positions` (rows, tokens)",
    "padding": "let call take `visible`, or `query_document` and `key_document`",
    "document": "let call take `visible`, or `query_document` and `key_document`",
    "order": "let call take `visible`, or `query_order` and `key_order`",
    "lse": "let call take `return_lse`, for parts of the keys cannot be merged",
}


class Case(NamedTuple):
    """A batch, and the other arguments of a trial: values whose repr() evaluates to them."""

    batch: Batch
    values: Mapping[str, Any] = {}


@dataclass(frozen=True)
class Trial:
    """One thing that is tried: ``function(subject, batch, **values)`` of plain PyTorch, which a script can repeat.

    ``cases(plan, **kind)`` gives what it is tried on, the smallest first, or raises `NotApplicableError` with the
    reason. ``oracle(subject, batch, **values)`` gives further values, what posenc says of this very batch as plain
    numbers: a smaller batch is asked for anew, and a script holds the last answer. ``claims``: the fields of the
    subject that it tries, one of which must be tried by one of its trials where it is made. ``remedy``: what to do
    about a finding, where that is not what its check says.
    """

    name: str
    function: Callable[..., Outcome | Outcomes]
    cases: Callable[..., Iterator[Case]]
    kind: Mapping[str, Any] = field(default_factory=dict)
    oracle: Callable[..., Mapping[str, Any]] | None = None
    claims: tuple[str, ...] = ()
    remedy: str = ""


@dataclass(frozen=True)
class Check:
    """One of the checks: what must hold, why, the known bugs that it finds, and what to do about a finding."""

    number: int
    name: str
    rule: str
    why: str
    pains: tuple[int, ...]
    trials: tuple[Trial, ...]
    remedy: str = ""

    def remedy_of(self, trial: Trial) -> str:
        """What to do about a finding of this trial."""
        return trial.remedy or self.remedy

    def script_of(self, trial_name: str) -> str:
        """The name of the script of a finding."""
        return f"{self.number}-{slug(trial_name)}.py"


def slug(text: str) -> str:
    """The words of a text, joined by hyphens, for the name of a file."""
    return "-".join(re.findall(r"[a-z0-9]+", text.lower()))


@dataclass(frozen=True)
class TrialPlan:
    """How a subject is tried: lengths, dtypes and random numbers. Everything follows from the seed."""

    subject: Subject
    lengths: tuple[int, ...] = LENGTHS
    longest: int = LONGEST
    seed: int = 0
    low_dtypes: tuple[torch.dtype, ...] = (torch.bfloat16, torch.float16)
    chance: random.Random = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "chance", random.Random(self.seed))

    # -- batches ------------------------------------------------------------------------------------------------------

    @property
    def sizes(self) -> list[int]:
        """The lengths for which the subject has positions, or those of the nearest grids."""
        if self.subject.on_grids:
            return sorted({self.room(n) for n in self.lengths})
        return [n for n in self.lengths if n <= self.limit] or [self.limit]

    def room(self, tokens: int) -> int:
        """The number of tokens of the next grid, at least this many if possible."""
        return next((n for n in self._grids if n >= tokens), self.limit) if self._grids else min(tokens, self.limit)

    @cached_property
    def _grids(self) -> list[int]:
        """All numbers of tokens that a row of patches can have, also along a diagonal where positions are given."""
        if not self.subject.on_grids:
            return []
        told = self.subject.extent if self.subject.can("positions") else None
        most = min(self.longest, told or self.longest)
        return [n for n in range(1, most + 1) if self.subject.grid_of(n)]

    def sizes_above(self, least: int) -> list[int]:
        """The sizes above this number of tokens."""
        return [n for n in self.sizes if n > least]

    @property
    def limit(self) -> int:
        """The longest row there may be."""
        return self._grids[-1] if self._grids else min(self.longest, self.subject.extent or self.longest)

    def ids(self, rows: int, tokens: int) -> list[list[int]]:
        """Contents of tokens."""
        return [[self.chance.randrange(VOCABULARY) for _ in range(tokens)] for _ in range(rows)]

    def text(self, rows: int, tokens: int) -> Batch:
        """Rows of tokens without positions, which are then 0, 1, 2, … ."""
        return Batch(self.ids(rows, tokens))

    def line(self, rows: int, tokens: int, start: int = 0, step: int = 0) -> Batch:
        """Rows with positions from ``start``, each ``step`` after the one before; or on the diagonal."""
        starts = [start + row * step for row in range(rows)]
        lines = [[self.subject.at(p) for p in range(first, first + tokens)] for first in starts]
        return replace(self.text(rows, tokens), positions=lines)

    def broken(self, rows: int, tokens: int, start: int = 0) -> Batch:
        """Rows whose positions skip 2 and later 1, in each at other tokens: 3 more positions than tokens."""
        lines, last = [], max(tokens - 1, 1)
        for row in range(rows):
            first, second = (1 + (part * tokens // 3 + row) % last for part in (1, 2))
            lines.append([self.subject.at(start + p + 2 * (p >= first) + (p >= second)) for p in range(tokens)])
        return replace(self.text(rows, tokens), positions=lines)

    def row(self, places: Sequence[int]) -> Batch:
        """A row with a token at each of these positions."""
        return Batch(self.ids(1, len(places)), [[self.subject.at(p) for p in places]])

    def has(self, p: int) -> bool:
        """Whether the subject has that position."""
        return self.subject.extent is None or p < self.subject.extent

    @property
    def reach(self) -> int:
        """How many positions the subject can be given."""
        given = self.subject.can("positions") or self.subject.takes("offset")
        return min(self.subject.extent or FAR, FAR if given else self.limit)

    def precisions(self) -> Iterator[dict[str, Any]]:
        """For each low dtype: everything in it, float32 under autocast to it, and both."""
        for low in self.low_dtypes:
            for dtype, autocast in ((low, None), (torch.float32, low), (low, low)):
                yield {"dtype": dtype, "autocast": autocast}

    # -- what a subject can -------------------------------------------------------------------------------------------

    def require_that_it_can(self, *needs: str) -> None:
        """Raises NotApplicableError unless the subject can do all of these (see `Subject.can`)."""
        for what in needs:
            require(self.subject.can(what), self.lacks(what))
        if "positions" in needs:
            must_show(self.subject, self.shows_positions, "its outputs do not go by positions")

    def lacks(self, what: str) -> str:
        """What call must take, so that the subject can do this."""
        between = "query_positions" in self.subject.known_parameters
        return (LACKS_OF_HEADS if between else {}).get(what, LACKS[what])

    def require_a_cache(self) -> None:
        """Raises NotApplicableError unless the subject is causal and has a cache."""
        applies(self.subject.causal, "what is not causal sees later tokens, which no cache has yet")
        self.require_that_it_can("cache")

    def require_any_queries(self) -> None:
        """Raises NotApplicableError unless queries can be any of the keys, in any order, with the positions of both."""
        self.require_that_it_can("queries", "positions")
        # A layer is given the order of the tokens of x, but not of its memory.
        ordered = self.subject.can("order") and not self.subject.takes("memory")
        possible = not self.subject.causal or ordered
        require(possible, "let call take the order of queries and keys, for causality depends on the index")

    # -- how near is near ---------------------------------------------------------------------------------------------

    @cached_property
    def _run(self) -> tuple[Tensor, Tensor, float]:
        """The outputs for one text, those for its tokens in another order, and the rounding that float32 causes."""
        tokens = self.room(24)
        text = Batch([[(7 * n + 3) % VOCABULARY for n in range(tokens)]])
        out = self.subject.run(self.subject.make(), text)
        # Not in reverse order, which changes nothing where only the distance counts.
        order = [*range(1, tokens, 2), *range(0, tokens, 2)]
        moved = self.subject.run(self.subject.make(), replace(text, ids=[[text.ids[0][n] for n in order]]))
        turned = torch.empty_like(out.detach())
        turned[:, order] = moved.detach()
        rounding = 256 * torch.finfo(self.subject.dtype).eps * largest(out)
        if self.subject.dtype == torch.float64:
            single = replace(self.subject, dtype=torch.float32)
            low = single.run(single.make(), text).double()
            rounding = max(rounding, 8 * largest(low - out))
        if self.subject.computes_in is not None:
            rounding = max(rounding, 8 * self.subject.eps() * largest(out))
        return out.double(), turned.double(), rounding

    @property
    def effect(self) -> float:
        """The effect of positions: how far the outputs change when the tokens are in another order."""
        out, turned, _ = self._run
        return largest(out - turned)

    def tolerance(self, highest: int = 0) -> float:
        """How far two equal outputs may be apart, with positions up to ``highest``.

        This is eight times the rounding that float32 causes (modules in float64 may compute norms and softmax in
        float32), plus the error of phases that are rounded to float32, as is usual: a phase that is off by a radian
        changes the output by about the whole effect of positions.

        Raises NotApplicableError if that is more than a quarter of the differences between outputs, so that nothing
        could be seen.
        """
        out, tolerance = self._run[0], self.rounding(highest)
        spread = largest(out - out.mean(1, keepdim=True)) if out.isfinite().all() else largest(out)
        hidden = f"outputs differ by {spread:.2g} from token to token, of which rounding hides {tolerance:.2g}"
        must_show(self.subject, out.size(1) < 2 or tolerance <= spread / 4, hidden)
        return tolerance

    def rounding(self, highest: int = 0) -> float:
        """`tolerance`, without the error where it hides all differences."""
        return self._run[2] + 4 * 2**-23 * highest * self.effect

    @property
    def noise(self) -> float:
        """How far two outputs of the same arithmetic may be apart."""
        return 16 * torch.finfo(self.subject.dtype).eps * largest(self._run[0])

    @cached_property
    def shows_positions(self) -> bool:
        """Whether positions, given ones or indices, change the outputs by more than rounding does."""
        tokens = min(24, self.limit)
        near = self.line(1, tokens)
        far = replace(near, positions=[[self.subject.at(p // 2) for p in range(tokens)]])
        seen = [self.subject.run(self.subject.make(), batch) for batch in (near, far)]
        return max(largest(seen[0] - seen[1]), self.effect) > self._run[2]


def too_long(plan: TrialPlan) -> str:
    """What to do where no row is longer than the threshold that the subject claims."""
    threshold = plan.subject.threshold or 0
    return f"build it with a lower threshold, or run with `--longest {threshold + 2}`: no row is longer than it"


def texts(plan: TrialPlan, **values: Any) -> Iterator[Case]:
    """A text of each length, for trials of these values and a tolerance."""
    for tokens in plan.sizes:
        yield Case(plan.text(1, tokens), {**values, "tolerance": plan.tolerance(tokens)})


def padded(plan: TrialPlan, mask: list[list[bool]], explicit: bool) -> Batch:
    """Rows with padding where ``mask`` is False; ``explicit``: with positions that count the tokens."""
    rows, tokens = len(mask), len(mask[0])
    mask = [[n < plan.subject.registers or real for n, real in enumerate(row)] for row in mask]  # those are no padding
    document = [[0 if real else PADDING for real in row] for row in mask]
    batch = replace(plan.text(rows, tokens), document=document)
    count = [[plan.subject.at(sum(row[:n]) if row[n] else 0) for n in range(tokens)] for row in mask]
    return replace(batch, positions=count) if explicit else batch


def packed(plan: TrialPlan, *rows: list[int]) -> Batch:
    """Documents of these lengths end to end in each row, positions counted from 0 in each."""
    batch = plan.text(len(rows), sum(rows[0]))
    positions = [[plan.subject.at(p) for n in row for p in range(n)] for row in rows]
    document = [[d for d, n in enumerate(row) for _ in range(n)] for row in rows]
    return replace(batch, positions=positions, document=document)


def two_documents(plan: TrialPlan, tokens: int, rows: int = 2) -> Batch:
    """In each row, a document of a third of the tokens, and one of the rest."""
    return packed(plan, *[[tokens // 3, tokens - tokens // 3]] * rows)


THREADS: dict[int, tuple[str, ...]] = {
    1: ("transformers#25681", "transformers#29285", "gpt-neox#1003", "Megatron-LM#535", "DeepSpeed#4932"),
    2: ("transformers#45902", "transformers#48892", "torchtitan#4817"),
    3: ("unsloth#3699", "transformers#43082", "nnsight#673"),
    4: ("Megatron-LM#453", "torchtitan#2559", "nanoVLM#204"),
    5: ("rotary-embedding-torch#11", "fla#766", "candle#899", "x-transformers#103", "pytorch#108108"),
    6: ("transformers#25104", "transformers#27227", "transformers#33129", "vLLM#3488"),
    7: ("transformers#38224", "vLLM#46280", "DeepSpeed#8345"),
    8: ("transformers#25199", "transformers#39687", "flash-attention#288", "vLLM#34243"),
    9: ("flash-attention#332", "attention-gym#20", "pytorch#145208", "pytorch#145869", "pytorch#157677"),
    10: ("pytorch#148752", "pytorch#141486", "pytorch#136196"),
    11: ("espnet#2816", "espnet#3068", "labml#185"),
    12: ("pytorch-image-models#2541", "pytorch-image-models#1794", "dinov2#378", "Swin#388"),
    13: ("transformers#45381", "vLLM#16878", "vLLM#54498", "mlx-vlm#1619"),
    14: ("detr#251", "vLLM#48894", "diffusers#12656"),
    15: ("torchtitan#15", "pytorch#97562", "vLLM#33800", "onnx#6480"),
    16: ("mlx#3071", "transformers#28380", "TransformerEngine#1046"),
    17: ("Megatron-LM#5243", "VeOmni#448"),
    18: ("pytorch#173958", "multidim-positional-encoding#23", "x-transformers#247"),
}
