"""Checks that processes which divide a text give together what one process gives (check 22)."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from posenc_check.calls import instead, parameters_of, tolerances_of, with_leaves
from posenc_check.outcome import Outcome, Outcomes
from posenc_check.subjects import VOCABULARY, Attention, Batch, NotApplicableError, Subject, applies, require
from posenc_check.trial import Case, Check, Plan, Trial, two_documents
from posenc_check.world import Held, ProcessError, holdings_of, in_part, in_processes, outputs, whole


def part_of_whole(x: Tensor, held: Held, dim: int = 1) -> Tensor:
    """What a process holds of outputs (rows, tokens[, heads], …), or of vectors with their tokens along ``dim``."""
    x = x.index_select(dim, torch.tensor(held.tokens, dtype=torch.int64))
    return x.movedim(3 - dim, 0)[held.heads].movedim(0, 3 - dim) if x.dim() == 4 else x


def agrees(expected: Tensor, came: Tensor, tolerance: float, held: Held, dim: int = 1) -> Outcome:
    """Whether a process gives what one alone does; else where, by token and head, it is furthest off."""
    if expected.shape != came.shape:
        return Outcome(False, f"shape {tuple(expected.shape)}", f"shape {tuple(came.shape)}")
    if not expected.numel():
        return Outcome(True, "nothing", "nothing")
    off = torch.where(came == expected, 0.0, (came.double() - expected.double()).abs()).nan_to_num(torch.inf)
    at = [int(n) for n in torch.unravel_index(off.argmax(), off.shape)]
    head = f", head {range(99_999)[held.heads][at[3 - dim]]}" if off.dim() == 4 else ""
    place = f"token {held.tokens[at[dim]]} of row {at[0]}{head}"
    said = f"{float(came[tuple(at)]):.6g}, off by {float(off.max()):.2g} (at most {tolerance:.2g})"
    return Outcome(bool(off.max() <= tolerance), f"{float(expected[tuple(at)]):.6g} for {place}", said)


def compared(expected: Tensor, came: list[Tensor], held: list[Held], tolerance: float) -> list[Outcome]:
    """Whether each process gives its part of the whole."""
    return [agrees(part_of_whole(expected, h), out, tolerance, h) for h, out in zip(held, came, strict=True)]


# -- what a difference is like: one process that makes the same mistake gives the same numbers -------------------------


def suspicion(subject: Subject, batch: Batch, held: list[Held], came: list[Tensor], tolerance: float) -> str:
    """What the outputs are as if, in words; else whether tokens see what they must."""
    for words, guess in suspects(subject, batch, held):
        try:
            if all(agrees(x, out, tolerance, h).ok for x, out, h in zip(guess(), came, held, strict=True)):
                return f". It is as if {words}"
        except (NotApplicableError, ProcessError):
            continue
    return sight(subject, batch, held, came, tolerance)


def suspects(subject: Subject, batch: Batch, held: list[Held]) -> Iterator[tuple[str, Callable[[], list[Tensor]]]]:
    """Mistakes, and the outputs that each process would give with them."""

    def parts(other: Subject, changed: Batch) -> Callable[[], list[Tensor]]:
        return lambda: [part_of_whole(whole(other, changed), h) for h in held]

    local = {token: n for h in held for n, token in enumerate(h.tokens)}
    if all(h.heads == slice(None) for h in held):
        places = [[subject.at(local[n]) for n in range(batch.tokens)]] * len(batch.ids)
        yield "positions began again at 0 in every process", parts(subject, replace(batch, positions=places))
    if isinstance(subject, Attention) and subject.heads % len(held) == 0:
        few = subject.heads // len(held)

        def of_few(made: Any, *given: Any, **named: Any) -> Any:
            pieces = [[x[:, n : n + few] for x in given] for n in range(0, subject.heads, few)]
            return torch.cat([subject.call(made, *piece, **named) for piece in pieces], 1)

        words = f"the {few} heads of a process were heads 0 to {few - 1} of {few}"
        yield words, parts(instead(subject, of_few), batch)


def sight(subject: Subject, batch: Batch, held: list[Held], came: list[Tensor], tolerance: float) -> str:
    """Whether a token changes what it changes in one process: the first of each process is tried."""
    one = whole(subject, batch)
    if not all(out.isfinite().all() for out in came):
        return ""
    for h in held:
        for token in h.tokens[:1]:
            ids = [[(x + 7) % VOCABULARY if n == token else x for n, x in enumerate(row)] for row in batch.ids]
            other = replace(batch, ids=ids)
            must = (whole(subject, other) - one).abs().flatten(2).amax(-1)
            for rank, (out, new) in enumerate(zip(came, outputs(subject, other, held), strict=True)):
                does = (new - out).abs().flatten(2).amax(-1)
                for n, seen in enumerate(held[rank].tokens):
                    if bool(((does[:, n] > tolerance) & (must[:, seen] == 0)).any()):
                        return f". Token {seen}, on rank {rank}, sees token {token}, and must not"
                    if bool(((does[:, n] == 0) & (must[:, seen] > tolerance)).any()):
                        return f". Token {seen}, on rank {rank}, does not see token {token}, and must"
    if not (subject.can("positions") or subject.takes("shard")):
        return ". Every token sees what it must, but call is told no positions: each process may count its own from 0"
    return ". Every token sees what it must, so the mask's indices are right, and those of scores or values are not"


OUTPUT = "output"


def held_by(subject: Subject, batch: Batch, world: int, order: str) -> list[Held]:
    """What each process holds; of a layer, all heads, which it divides itself."""
    held = holdings_of(batch, world, order, getattr(subject, "heads", 0))
    return held if isinstance(subject, Attention) else [one._replace(heads=slice(None)) for one in held]


def parts_equal_the_whole(
    subject: Subject, batch: Batch, world: int, order: str, tolerance: float, within: int = 0
) -> Outcomes:
    """Processes that divide the tokens, or the heads, together give the output of one process: also where the text is
    longer than a threshold at which a scheme changes, and its shards, or so many tokens ``within`` it, are not."""
    held = held_by(subject, batch, world, order)
    expected, came = whole(subject, batch), outputs(subject, batch, held)
    for rank, outcome in enumerate(compared(expected, came, held, tolerance)):
        if not outcome.ok and not within:
            outcome = outcome._replace(came=outcome.came + suspicion(subject, batch, held, came, tolerance))
        elif not outcome.ok:
            short = batch.pick(range(within))
            parts = held_by(subject, short, world, order)
            fine = all(o.ok for o in compared(whole(subject, short), outputs(subject, short, parts), parts, tolerance))
            why = f". A text of {within} tokens is right, so it goes by the length of a shard" if fine else ""
            outcome = outcome._replace(came=outcome.came + why)
        yield f"{order}, rank {rank} of {world}, which holds {len(held[rank].tokens)} of {batch.tokens} tokens", outcome


def documents_of_shards_do_not_leak(subject: Subject, batch: Batch, world: int, order: str) -> Outcomes:
    """With other tokens in one document, the others give the same outputs to the bit, whoever holds them."""
    held, document = held_by(subject, batch, world, order), torch.tensor(batch.document)
    before = outputs(subject, batch, held)
    for changed in document.unique().tolist():
        it = document == changed
        ids = torch.where(it, (torch.tensor(batch.ids) + 7) % VOCABULARY, torch.tensor(batch.ids)).tolist()
        after = outputs(subject, replace(batch, ids=ids), held)
        for rank, (h, old, new) in enumerate(zip(held, before, after, strict=True)):
            mine = it[:, h.tokens].view(len(it), -1, *[1] * (old.dim() - 2))
            outcome = agrees(old.masked_fill(mine, 0.0), new.masked_fill(mine, 0.0), 0.0, h)
            yield f"{order}, document {changed} has other tokens, rank {rank} of {world}", outcome


def gradients_of_parts_equal_the_whole(
    subject: Subject, batch: Batch, world: int, order: str, tolerances: dict[str, float]
) -> Outcomes:
    """Each process has the gradients of its own tokens, from the outputs of all; those of parameters add up."""
    held = held_by(subject, batch, world, order)
    expected = gradients(subject, batch, [Held(list(range(batch.tokens)))])[0]
    came = gradients(subject, batch, held)
    outcomes = compared(expected.pop(OUTPUT), [found.pop(OUTPUT) for found in came], held, tolerances[OUTPUT])
    applies(all(outcome.ok for outcome in outcomes), "outputs are wrong, and so are their gradients")
    applies(expected, "nothing has a gradient")
    for name, gradient in expected.items():
        if name.startswith("parameter "):
            if order == "heads":  # a process may hold a part of it
                continue
            total = torch.stack([found[name] for found in came]).sum(0)
            off = float((total - gradient).abs().max())
            twice = float((total - world * gradient).abs().max()) <= world * tolerances[name]
            why = f": it is counted {world} times" if twice else ""
            said = f"off by {off:.2g} (at most {tolerances[name]:.2g}){why}"
            yield f"{order}, {name}", Outcome(off <= tolerances[name], "the sum over processes is the gradient", said)
            continue
        dim = 2 if gradient.dim() == 4 else 1  # heads stand before tokens
        for rank, h in enumerate(held):
            outcome = agrees(part_of_whole(gradient, h, dim), came[rank][name], tolerances[name], h, dim)
            if not outcome.ok and own_queries_alone(subject, batch, held, came, tolerances):
                why = ". Each process's tokens have the gradients of its own outputs alone: send those of others"
                outcome = outcome._replace(came=outcome.came + why)
            yield f"{order}, the gradient of {name}, rank {rank} of {world}", outcome


def gradients(
    subject: Subject, batch: Batch, held: list[Held], of: Sequence[int] | None = None
) -> list[dict[str, Tensor]]:
    """The outputs of each process, and its gradients, by name, of a sum of all outputs, or those ``of`` tokens."""

    def work(rank: int) -> dict[str, Tensor]:
        leaves: dict[str, Tensor] = {}
        mine, part = in_part(with_leaves(subject, leaves), batch, held, rank)
        made = mine.make()
        out = mine.run(made, part)
        require(out.requires_grad, "let outputs take gradients, to run this")
        every = torch.Generator().manual_seed(11)
        shape = (out.size(0), batch.tokens, *(getattr(subject, "heads", 0),) * (out.dim() == 4), out.size(-1))
        weights = torch.randn(shape, generator=every, dtype=torch.float64)
        if of is not None:
            kept = torch.zeros(batch.tokens).index_fill(0, torch.tensor(of, dtype=torch.int64), 1.0)
            weights = weights * kept.view(1, -1, *[1] * (out.dim() - 2))
        trained = {f"parameter {name}": x for name, x in parameters_of(made).items() if x.requires_grad} | leaves
        total = (out * part_of_whole(weights, held[rank]).to(out)).sum()
        found = torch.autograd.grad(total, list(trained.values()), allow_unused=True)
        zeroed = (torch.zeros_like(x) if g is None else g for x, g in zip(trained.values(), found, strict=True))
        return {OUTPUT: out.detach(), **dict(zip(trained, zeroed, strict=True))}

    return in_processes(len(held), work)


def own_queries_alone(
    subject: Subject, batch: Batch, held: list[Held], came: list[dict[str, Tensor]], tolerances: dict[str, float]
) -> bool:
    """Whether each process has what its own outputs give to its own tokens, and no more."""
    one = [Held(list(range(batch.tokens)))]
    for h, found in zip(held, came, strict=True):
        for name, gradient in gradients(subject, batch, one, h.tokens)[0].items():
            dim = 2 if gradient.dim() == 4 else 1
            given = name in found and not name.startswith("parameter ")  # outputs are left out of what came
            if given and not agrees(part_of_whole(gradient, h, dim), found[name], tolerances[name], h, dim).ok:
                return False
    return True


# -- cases -------------------------------------------------------------------------------------------------------------


def _orders(plan: Plan, heads: bool = False) -> list[str]:
    """The orders that are claimed; NotApplicableError unless there are several processes and such orders."""
    subject = plan.subject
    require(plan.world > 1, "claim `orders`, and run it in several processes, with --world 2")
    found = [order for order in subject.orders if (order == "heads") == heads]
    require(found, f'claim orders=("{"heads" if heads else "contiguous"}",) to run this')
    if heads and isinstance(subject, Attention):
        require(subject.heads % plan.world == 0, f"let `heads` be a multiple of {plan.world}, which can be divided")
    return [order for order in found if order != "documents" or _told(subject, "document")]


def _told(subject: Subject, what: str) -> bool:
    return subject.can(what) or subject.takes("shard")


def _text(plan: Plan, tokens: int) -> Batch:
    """A text that does not begin at 0, where positions can be told."""
    return plan.line(2, tokens, start=3) if _told(plan.subject, "positions") else plan.text(2, tokens)


def _texts(plan: Plan, tokens: Callable[[int], int], heads: bool = False) -> Iterator[Case]:
    """A text of so many tokens, by the number of processes, in each order."""
    for order in _orders(plan, heads):
        batch = _text(plan.alone, plan.room(tokens(plan.world)))
        tolerance = plan.alone.tolerance(batch.tokens + 3)
        yield Case(batch, {"world": plan.world, "order": order, "tolerance": tolerance})


def _even(world: int) -> int:
    return 4 * world


def _of_any_number(plan: Plan, tokens: Callable[[int], int]) -> Iterator[Case]:
    multiple = plan.subject.shard_multiple
    applies(multiple == 1, f"every process has a multiple of {multiple} tokens")
    yield from _texts(plan, tokens)


def _documents(plan: Plan, exact: bool = False) -> Iterator[Case]:
    orders, subject = _orders(plan), plan.subject
    require(_told(subject, "document"), "let call take `document` (rows, tokens), or a `shard`")
    tokens = plan.room(6 * plan.world)
    packed = two_documents(plan.alone, tokens)
    line = plan.alone.line(2, tokens).positions if _told(subject, "positions") else None
    for order in orders:
        for batch in (replace(packed, positions=packed.positions if line else None), replace(packed, positions=line)):
            values: dict[str, Any] = {"world": plan.world, "order": order}
            yield Case(batch, values if exact else {**values, "tolerance": plan.alone.tolerance(tokens)})


def _beyond(plan: Plan) -> Iterator[Case]:
    orders, threshold = _orders(plan), plan.subject.threshold
    require(threshold is not None, "claim `threshold`, the length beyond which its behaviour changes")
    tokens = plan.room((threshold or 0) + plan.world)
    longest = -(-tokens // plan.world)
    applies(tokens <= plan.limit and longest <= (threshold or 0), "no shard is within the threshold")
    within = (threshold or 0) // (each := plan.world * plan.subject.shard_multiple) * each
    batch = plan.alone.line(1, tokens) if _told(plan.subject, "positions") else plan.alone.text(1, tokens)
    for order in orders:
        yield Case(
            batch, {"world": plan.world, "order": order, "within": within, "tolerance": plan.alone.tolerance(tokens)}
        )


def _gradients(plan: Plan) -> Iterator[Case]:
    orders = [order for order in plan.subject.orders if order == "heads"]
    orders = (_orders(plan) if len(orders) < len(plan.subject.orders) else []) + (orders and _orders(plan, heads=True))
    few = [1] if plan.subject.shard_multiple == 1 else []
    for order in orders or _orders(plan):
        for tokens in (4 * plan.world, *few * (order != "heads")):
            batch = _text(plan.alone, plan.room(tokens))
            tolerances = _gradient_tolerances(plan.subject, batch)
            yield Case(batch, {"world": plan.world, "order": order, "tolerances": tolerances})


def _gradient_tolerances(subject: Subject, batch: Batch) -> dict[str, float]:
    """How far two equal gradients may be apart, as `Plan.tolerance` says it for outputs."""
    one, single = [Held(list(range(batch.tokens)))], replace(subject, dtype=torch.float32)
    exact, rounded = (gradients(each, batch, one)[0] for each in (subject, single))
    return tolerances_of(subject, exact, rounded, batch.tokens + 3)


EMPTY = (
    "Give a process without tokens an output of no tokens; its keys' part of a merge is (0, -inf). If a process always "
    "has tokens, claim `shard_multiple`."
)
LEAKS = "Mask attention between documents by the document of each token, also of keys of other processes."
LENGTH = "Choose frequencies by the length of the whole text, not by that of a shard."
HEADS = "Give heads their index among all heads: slopes and tables of a process are a part of those of all."
SENT = "Send gradients of keys and values to the process that holds them; leave those of parameters as parts of a sum."


CHECK = Check(
    number=22,
    name="processes",
    rule="Processes that divide the tokens or the heads of a text together give the output of one process.",
    why="Where a process counts its own tokens, heads or length, every shape is right and the numbers are not.",
    pains=(16, 17, 19, 20),
    remedy="Give every process the positions, documents and length of the whole text, and heads their index among all.",
    trials=(
        Trial("one text", parts_equal_the_whole, _texts, {"tokens": _even}, claims=("orders",)),
        Trial("uneven shards", parts_equal_the_whole, _of_any_number, {"tokens": lambda world: 6 * world - 1}),
        Trial(
            "an empty shard", parts_equal_the_whole, _of_any_number, {"tokens": lambda world: world - 1}, remedy=EMPTY
        ),
        Trial("packed documents", parts_equal_the_whole, _documents),
        Trial("documents do not leak", documents_of_shards_do_not_leak, _documents, {"exact": True}, remedy=LEAKS),
        Trial("beyond a threshold", parts_equal_the_whole, _beyond, remedy=LENGTH),
        Trial(
            "heads", parts_equal_the_whole, _texts, {"tokens": _even, "heads": True}, claims=("orders",), remedy=HEADS
        ),
        Trial("gradients", gradients_of_parts_equal_the_whole, _gradients, remedy=SENT),
    ),
)
