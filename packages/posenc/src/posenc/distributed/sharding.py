"""`Sharding`: how the tokens of a batch are divided among processes, which keys each one needs of the others, and
collectives with gradients along tokens, of which processes hold unequal numbers."""

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from jaxtyping import Shaped
from torch import Tensor

from posenc.arguments import check_type, shown
from posenc.positions.layout import Order, indices
from posenc.positions.positions import PADDING, Positions
from posenc.positions.tiles import Chunk, Visibility, Window, check_window

# -- collectives ------------------------------------------------------------------------------------------------------


def gathered(x: Tensor, dim: int, counts: Sequence[int], group: Any) -> Tensor:
    """The tensors of all processes, concatenated along ``dim`` in the order of ranks. The gradient of each part is the
    sum of the gradients that all processes have for it, added in float32 or wider."""
    if len(counts) == 1:
        return x
    whole: Tensor = _Gather.apply(x, dim, tuple(counts), group)  # type: ignore[no-untyped-call]
    return whole


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, dim: int, counts: tuple[int, ...], group: Any) -> Tensor:
        ctx.dim, ctx.counts, ctx.group = dim, counts, group
        mine = x.movedim(dim, 0)
        padded = mine.new_zeros((max(counts), *mine.shape[1:]))  # since collectives take equal shapes
        padded[: len(mine)] = mine
        parts = zip(of_each(padded, group), counts, strict=True)
        return torch.cat([part[:count] for part, count in parts]).movedim(0, dim)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, None, None, None]:
        return _Sum.apply(gradients[0], ctx.dim, ctx.counts, ctx.group), None, None, None  # type: ignore[no-untyped-call]


class _Sum(torch.autograd.Function):
    """The derivative of `_Gather`: this process's part, summed over processes."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, dim: int, counts: tuple[int, ...], group: Any) -> Tensor:
        ctx.dim, ctx.counts, ctx.group = dim, counts, group
        wide = x.movedim(dim, 0).to(torch.promote_types(x.dtype, torch.float32))
        mine = counts[dist.get_rank(group)]
        received = exchanged(list(wide.split(counts)), [mine] * len(counts), group)
        return torch.stack(received).sum(0).movedim(0, dim).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, None, None, None]:
        return gathered(gradients[0], ctx.dim, ctx.counts, ctx.group), None, None, None


def of_each(x: Tensor, group: Any) -> list[Tensor]:
    """The tensors of all processes, which have the same shape."""
    found = [torch.empty_like(x, memory_format=torch.contiguous_format) for _ in range(dist.get_world_size(group))]
    dist.all_gather(found, x.contiguous(), group=group)
    return found


def exchanged(
    parts: Sequence[Tensor], counts: Sequence[int], group: Any, shape: Sequence[int] | None = None
) -> list[Tensor]:
    """All to all: what each process has for this one, of ``counts`` rows each, whose ``shape`` is by default that of
    the parts."""
    rank = dist.get_rank(group)
    shape = parts[rank].shape[1:] if shape is None else shape
    into = [parts[rank].new_empty((count, *shape)) for count in counts]
    into[rank] = parts[rank]
    sent = [part.contiguous() for part in parts]
    operations = []
    for step in range(1, len(parts)):
        to, of = (rank + step) % len(parts), (rank - step) % len(parts)
        if sent[to].numel():
            operations.append(dist.P2POp(dist.isend, sent[to], dist.get_global_rank(group, to), group))
        if into[of].numel():
            operations.append(dist.P2POp(dist.irecv, into[of], dist.get_global_rank(group, of), group))
    for request in dist.batch_isend_irecv(operations) if operations else ():
        request.wait()
    return into


def transposed(x: Tensor, split: int, sizes: Sequence[int], join: int, counts: Sequence[int], group: Any) -> Tensor:
    """All to all: x is split along one dim into ``sizes``, a part for each process, and the parts of all processes are
    joined along another, where process i has ``counts[i]``."""
    given = tuple(sizes), join, tuple(counts), group
    moved: Tensor = _Transpose.apply(x, split, *given)  # type: ignore[no-untyped-call]
    return moved


class _Transpose(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, split: int, sizes: tuple[int, ...], join: int, counts: tuple[int, ...], group: Any
    ) -> Tensor:
        ctx.how = join, counts, split, sizes, group  # the inverse
        mine = sizes[dist.get_rank(group)]
        shape = list(x.movedim(join, 0).shape)
        parts = [part.movedim(join, 0) for part in x.split(sizes, split)]
        shape[split + 1 if split < join else split] = mine
        return torch.cat(exchanged(parts, counts, group, shape[1:])).movedim(0, join)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return transposed(gradients[0], *ctx.how), None, None, None, None, None


def mask_of(is_causal: bool, window: Window) -> tuple[Visibility, int | None]:
    """The visibility that a window gives, and the size of chunks, if it is a `Chunk`."""
    if isinstance(window, Chunk):
        return Visibility(is_causal), window.size
    return Visibility(is_causal, *check_window(window)), None


class Needs:
    """Which keys of each process the queries of each process may attend to, by positions alone, so that all processes
    find the same. With ``chunk``, tokens attend only within chunks of so many coordinates."""

    def __init__(self, shards: Sequence[Positions], visibility: Visibility, chunk: int | None = None) -> None:
        shards = shards if chunk is None else [shard.in_chunks(chunk) for shard in shards]
        rows = max(shard.rows for shard in shards)
        self.visibility = visibility
        self._shards = [(shard.order.expand(rows, -1).cpu(), shard.document.expand(rows, -1).cpu()) for shard in shards]
        self._needs: dict[tuple[int, int], tuple[slice | None, int]] = {}

    def __len__(self) -> int:
        return len(self._shards)

    def keys(self, queries_of: int, keys_of: int) -> slice | None:
        """The keys of process ``keys_of``, from the first to the last, that queries of process ``queries_of`` may
        attend to; None if there are none."""
        return self._between(queries_of, keys_of)[0]

    def pairs(self, queries_of: int, keys_of: int) -> int:
        """How many pairs of these queries and keys may attend to one another."""
        return self._between(queries_of, keys_of)[1]

    def _between(self, queries_of: int, keys_of: int) -> tuple[slice | None, int]:
        which = queries_of, keys_of
        if which not in self._needs:
            self._needs[which] = _needed(self._shards[queries_of], self._shards[keys_of], self.visibility)
        return self._needs[which]


def _needed(
    query: tuple[Tensor, Tensor], key: tuple[Tensor, Tensor], visibility: Visibility
) -> tuple[slice | None, int]:
    """The keys from the first to the last that any query sees, and the number of pairs, without a tensor of pairs: keys
    are sorted by row, document and order, and each query sees those between two places."""
    (order, document), (key_order, key_document) = query, key
    is_token, is_key = document != PADDING, key_document != PADDING
    row = torch.arange(len(order))[:, None]
    rows, documents, orders = row.expand_as(order)[is_token], document[is_token], order[is_token]
    key_rows, key_documents = row.expand_as(key_order)[is_key], key_document[is_key]
    key_orders, index = key_order[is_key], torch.arange(key_order.size(1)).expand_as(key_order)[is_key]
    if not len(orders) or not len(key_orders):
        return None, 0
    # By ranks, which are small numbers, whatever documents and orders are.
    texts, number = torch.unique(torch.cat((documents, key_documents)), return_inverse=True)
    text = torch.cat((rows, key_rows)) * len(texts) + number
    text, key_text = text[: len(rows)], text[len(rows) :]
    steps, step = torch.unique(key_orders, return_inverse=True)
    places, sorting = (key_text * len(steps) + step).sort()
    least = torch.iinfo(torch.int64).min
    oldest = torch.full_like(orders, least) if visibility.left is None else _ahead(orders, -visibility.left)
    newest = (
        torch.full_like(orders, -(least + 1)) if visibility.furthest is None else _ahead(orders, visibility.furthest)
    )
    start = torch.searchsorted(places, text * len(steps) + torch.searchsorted(steps, oldest))
    stop = torch.searchsorted(places, text * len(steps) + torch.searchsorted(steps, newest, right=True))
    start, stop = start[start < stop], stop[start < stop]
    if not len(start):
        return None, 0
    bounds = torch.zeros(len(places) + 1, dtype=torch.int64)  # +1 where a range begins, -1 where it ends
    bounds.scatter_add_(0, start, torch.ones_like(start)).scatter_add_(0, stop, -torch.ones_like(stop))
    seen = index[sorting[bounds.cumsum(0)[:-1] > 0]]
    return slice(int(seen.min()), int(seen.max()) + 1), int((stop - start).sum())


def _ahead(orders: Tensor, by: int) -> Tensor:
    """orders + by, at most the largest and least whole numbers."""
    limits = torch.iinfo(torch.int64)
    return orders.clamp(min=limits.min - by) + by if by < 0 else orders.clamp(max=limits.max - by) + by


class Shards:
    """The tokens of a batch, divided among the processes of a group by indices."""

    def __init__(self, whole: Positions, indices: Sequence[Tensor], group: Any) -> None:
        self.group = group
        self.rank, self.world = dist.get_rank(group), dist.get_world_size(group)
        self.whole = whole
        self.indices = tuple(index.to(whole.device) for index in indices)
        """The tokens of each process, as indices into the batch's."""
        self.counts = tuple(len(index) for index in self.indices)
        self.shards = tuple(whole[index]._set(_is_shard=whole._is_shard or self.world > 1) for index in self.indices)
        """The positions of each process's tokens."""
        self._needs: dict[tuple[Visibility, int | None], Needs] = {}
        self._keys: dict[tuple[int, int, int], Positions] = {}

    @property
    def positions(self) -> Positions:
        """The positions of this process's tokens."""
        return self.shards[self.rank]

    def shard(self, x: Shaped[Tensor, "..."], dim: int = 1) -> Tensor:
        """This process's tokens of a tensor that has those of the whole batch along ``dim``."""
        self._check(x, dim, len(self.whole))
        return x.index_select(dim, self.indices[self.rank].to(x.device))

    def gather(self, x: Shaped[Tensor, "..."], dim: int = 1) -> Tensor:
        """The tensor of the whole batch, in its order, from each process's tokens along ``dim``. Differentiable: the
        gradient of a token is the sum over processes. All processes must call it."""
        self._check(x, dim, self.counts[self.rank])
        back = torch.cat(self.indices).argsort().to(x.device)
        return gathered(x, dim, self.counts, self.group).index_select(dim, back)

    def needs(self, visibility: Visibility, chunk: int | None = None) -> Needs:
        """What each process's queries attend to of each process's keys. The same on every process, since it follows
        from positions alone."""
        which = visibility, chunk
        if which not in self._needs:
            self._needs[which] = Needs(self.shards, visibility, chunk)
        return self._needs[which]

    def keys_of(self, rank: int, keys: slice) -> Positions:
        """The positions of some of a process's tokens: the same object each time, so that encodings are bound once."""
        which = rank, keys.start, keys.stop
        if which not in self._keys:
            self._keys[which] = self.shards[rank][keys]
        return self._keys[which]

    def _check(self, x: Tensor, dim: int, tokens: int) -> None:
        check_type("x", x, Tensor)
        check_local("x", x)
        if not -x.dim() <= dim < x.dim() or x.size(dim) != tokens:
            raise ValueError(f"x must have {tokens} tokens along dim {dim}, got {shown(x)}")


class Sharding(Shards):
    """The tokens of a batch, divided among the processes of a group, for attention over all of them.

    Every process makes it from the *same* positions, those of all tokens. ``of`` is the group: a ProcessGroup, a
    DeviceMesh of one axis, or None for all processes. On a DeviceMesh of two axes, with all processes, the method
    ``"ring"`` exchanges heads along the second axis and keys along the first. ``order`` says which tokens each process
    holds:

    - ``"contiguous"``: one run of tokens each.
    - ``"zigzag"``: the text is cut into 2 world runs, and process r holds runs r and 2 world - 1 - r, so that under a
      causal mask all have the same number of pairs.
    - ``"striped"``: process r holds tokens r, r + world, r + 2 world, ...
    - ``"documents"``: whole documents, so that attention needs no communication; one with more than a process's share
      of all pairs is divided in zigzag.
    - an index tensor for each process, in which every token is once, such as those of PyTorch's load balancers.

    Shards may have unequal numbers of tokens, or none.

    >>> sharding = posenc.distributed.Sharding(Positions.packed([900, 124]))     # in a program run by torchrun
    >>> tokens, targets = sharding.shard(tokens), sharding.shard(targets)        # (batch, tokens)
    >>> with posenc.distributed.sharded(sharding):
    ...     logits = model(tokens, sharding.positions)
    """

    def __init__(self, whole: Positions, of: Any = None, order: Order = "zigzag") -> None:
        check_type("whole", whole, Positions)
        if whole._is_shard:
            raise ValueError("whole must be the positions of all tokens, got those of a shard")
        if not dist.is_available() or not dist.is_initialized():
            raise ValueError("Sharding needs a process group: run with torchrun and call init_process_group first")
        places = of.mesh if getattr(of, "ndim", 1) == 2 and hasattr(of, "get_group") else None
        if places is not None and sorted(places.flatten().tolist()) != list(range(dist.get_world_size())):
            raise ValueError(
                f"of must be a mesh of two axes with all {dist.get_world_size()} processes, or of one axis, got {of}"
            )
        group = group_of(of if places is None else None)
        super().__init__(whole, indices(whole.layout, dist.get_world_size(group), order), group)
        self._check_same()
        self.across: Shards | None = None
        self.within: Shards | None = None
        if places is not None:
            self._divide(of)

    def __repr__(self) -> str:
        return f"Sharding(rank {self.rank} of {self.world}, tokens {', '.join(map(str, self.counts))})"

    def _check_same(self) -> None:
        """ValueError on all processes unless they were given the same positions and order. This is also the first
        collective of the group, in which all must take part."""
        tensors = [x for x in (*self.whole._each(lambda x: x).values(), *self.indices) if x is not None]
        known = repr([(tuple(x.shape), str(x.dtype), _checksum(x)) for x in tensors])
        found = self._numbers(_number(known))
        others = [rank for rank, other in enumerate(found) if other != found[0]]
        if others:
            raise ValueError(
                f"whole and order must be the same on all processes, but differ on {others} from process 0's"
            )

    def agree(self, wrong: str | None) -> None:
        """ValueError on all processes if something is wrong on any, so that none waits for others. All call it."""
        with self.together():
            if wrong is not None:
                raise ValueError(wrong)

    @contextmanager
    def together(self) -> Iterator[list[object]]:
        """A context that all processes enter before they send anything: an error in it on one process is an error on
        all, so that none waits for others. The list it gives is of what must be the same on all of them."""
        same: list[object] = []
        error: Exception | None = None
        try:
            yield same
        except Exception as raised:
            error = raised
        found = self._numbers(0 if error is not None else 1 + _number(repr(same)))
        if error is not None:
            raise error
        if 0 in found:
            raise ValueError(f"process {found.index(0)} has an error, and its message says which")
        others = [rank for rank, other in enumerate(found) if other != found[0]]
        if others:
            raise ValueError(
                "sizes, dtypes, options, the scheme, and which tensors require gradients must be the same on all "
                f"processes, but differ on {others} from process 0's, got {same} on process {self.rank}"
            )

    def _numbers(self, mine: int) -> list[int]:
        device = torch.device("cuda", torch.cuda.current_device()) if dist.get_backend(self.group) == "nccl" else "cpu"
        return [int(x) for x in of_each(torch.tensor(int(mine), device=device), self.group)]

    def _divide(self, mesh: Any) -> None:
        """The two levels of a mesh of two axes: along the second, processes have the tokens of one row of the mesh, and
        along the first the rows have those of the batch."""
        rows = {rank: row for row in mesh.mesh.tolist() for rank in row}
        across, within = mesh.get_group(0), mesh.get_group(1)
        of_row = [
            torch.cat([self.indices[member] for member in rows[rank]]).sort().values
            for rank in dist.get_process_group_ranks(across)
        ]
        self.across = Shards(self.whole, of_row, across)
        mine = self.across.indices[self.across.rank]
        members = [
            torch.searchsorted(mine, self.indices[rank].contiguous()) for rank in dist.get_process_group_ranks(within)
        ]
        self.within = Shards(self.across.positions, members, within)

    def check(self, positions: Positions) -> None:
        """ValueError unless these are the positions of this process's tokens."""
        mine = self.positions
        if positions is mine:
            return
        both = zip(mine._each(lambda x: x).values(), positions._each(lambda x: x).values(), strict=True)
        if positions.device != mine.device or not all(  # wrappers of modules make new ones
            x is y or (x is not None and y is not None and torch.equal(x, y)) for x, y in both
        ):
            raise ValueError(
                f"positions must be those of this process's tokens, sharding.positions, got others: {positions}"
            )


def group_of(of: Any) -> Any:
    """The process group that ``of`` names."""
    if of is None:
        return dist.group.WORLD
    if isinstance(of, dist.ProcessGroup):
        return of
    if hasattr(of, "get_group") and hasattr(of, "ndim"):
        if of.ndim != 1:
            raise ValueError(f"of must be a mesh of one axis, got one of {of.ndim}: pass mesh['name of an axis']")
        return of.get_group()
    raise ValueError(f"of must be a ProcessGroup, a DeviceMesh of one axis, or None for all processes, got {shown(of)}")


def check_local(name: str, x: Tensor) -> None:
    """ValueError for a DTensor."""
    if hasattr(x, "to_local"):
        raise ValueError(
            f"{name} must be a tensor of this process, got a DTensor {tuple(x.shape)}: pass "
            f"sharding.shard({name}.full_tensor(), dim), or {name}.to_local() if it has the tokens of "
            "sharding.positions"
        )


def _number(known: str) -> int:
    """A number that differs where the text does."""
    return int.from_bytes(hashlib.sha256(known.encode()).digest()[:7], "big")


def _checksum(x: Tensor) -> int:
    """A sum of the bits of x, each number mixed with its place."""
    bits = x.cpu().contiguous().view(torch.int64 if x.element_size() == 8 else torch.int32).long().flatten()
    mixed = (bits + 1) * (2 * torch.arange(len(bits)) + 0x9E3779B1)  # wraps around
    return int((mixed ^ (mixed >> 29)).sum())
