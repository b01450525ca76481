"""Checks, as part of check 19, that a token sees all of its window and nothing else."""

import inspect
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from posenc.tools.check.captured import of_one_token
from posenc.tools.check.checks.along import weights_by_values
from posenc.tools.check.heads import Attention, Rotary
from posenc.tools.check.influence import influence
from posenc.tools.check.layers import Layer, Model
from posenc.tools.check.outcome import Outcome, Outcomes
from posenc.tools.check.subjects import VOCABULARY, Batch, Subject, require
from posenc.tools.check.trial import Case, Plan, Trial, two_documents

SEEN = 1e-9  # of the largest weight
UNSEEN = 1e-30  # what a mask of -100 leaves of it is less


def shown(subject: Subject, batch: Batch, at_most: bool) -> Tensor:
    """Which tokens may affect which (``at_most``), or must, (rows, tokens, tokens), through all ``depth`` layers.

    A window may count indices or positions: across a gap, the index gives an upper bound of what is seen, and the
    position a lower bound. Whether sinks themselves see all tokens is not claimed.
    """
    assert isinstance(subject.window, int)
    index = torch.arange(batch.tokens).expand(len(batch.ids), -1)
    places = subject.places(batch) if batch.positions is not None else index
    if places.dim() == 3:
        places = places[..., 0]

    def far(p: Tensor) -> Tensor:
        return (p[:, :, None] - p[:, None, :]).abs()

    away = far(index) if at_most else torch.maximum(far(index), far(places.cpu()))
    visible = subject.visible(batch).cpu()
    sink = index < subject.sinks
    near = (away < subject.window) | sink[:, None, :]
    if at_most:
        near = near | sink[:, :, None]
    once = (near & visible).double()
    reach = torch.eye(batch.tokens).double().expand_as(once)
    for _ in range(subject.depth):
        reach = ((once + torch.eye(batch.tokens)) @ reach).clamp(max=1)
    return reach > 0


def what_the_window_shows_counts(subject: Subject, batch: Batch, changed: list[int]) -> Outcomes:
    """With another content in one token, the outputs of tokens that may not see it are the same to the bit. Of those
    that must see it, as far away as the window allows, at least one changes, for at least one of the ``changed``
    tokens, since a single weight may be too small to show."""
    assert isinstance(subject.window, int)
    made, least, most = subject.make(), shown(subject, batch, at_most=False), shown(subject, batch, at_most=True)
    with torch.no_grad():
        before = subject.run(made, batch)
        own = False
        edges: dict[int, list[tuple[Tensor, int, int, int]]] = {}  # by how far the token is before the query
        sinks: dict[int, list[tuple[Tensor, int, int, int]]] = {}  # by the token
        for token in (n for n in changed if n < batch.tokens):
            ids = [[(c + 7) % VOCABULARY if n == token else c for n, c in enumerate(row)] for row in batch.ids]
            after = subject.run(made, replace(batch, ids=ids))
            differs = (before != after).flatten(2).any(-1).cpu()
            wrong = (differs & ~most[:, :, token]).nonzero().tolist()
            if wrong:
                row, query = wrong[0]
                said = f"token {query} of row {row}, with other content in token {token}, which it does not see"
                yield said, Outcome(False, "the same to the bit", "another output")
            own = own or bool(differs[:, token].any())
            for row, query in least[:, :, token].nonzero().tolist():
                if query != token and token >= subject.sinks:
                    edges.setdefault(query - token, []).append((differs[row, query], row, query, token))
                elif abs(query - token) > (subject.window - 1) * subject.depth:
                    sinks.setdefault(token, []).append((differs[row, query], row, query, token))
    require(own, "nothing to do: outputs are the same with another token")
    ends = {min(edges), max(edges)} if edges else set()
    for found in (*(edges[way] for way in ends), *sinks.values()):
        _, row, query, token = found[0]
        said = f"token {query} of row {row}, with other content in token {token}, which it sees"
        any_does = any(bool(does) for does, *_ in found)
        yield said, Outcome(any_does, "another output", "the same, here and wherever one is as far from the other")


def a_window_is_as_wide_for_all(subject: Subject, batch: Batch) -> Outcomes:
    """A row of one repeated token: if a token affects one token at some distance within the window, it affects all at
    that distance. A small weight is not a masked one."""
    made, must = subject.make(), shown(subject, batch, at_most=False)[0]
    if isinstance(subject, Attention):
        sizes = weights_by_values(subject, made, of_one_token(batch)).amax(0)
    else:
        sizes = influence(subject, made, batch).abs().amax(-1)
    require(float(sizes.max()) > 0, "let outputs go by the tokens: with another one they are the same")
    sizes = sizes / sizes.max()
    ways: dict[int, list[tuple[int, int]]] = {}
    for query, token in must.nonzero().tolist():
        if token >= subject.sinks:
            ways.setdefault(query - token, []).append((query, token))
    for pairs in ways.values():
        most = max(float(sizes[pair]) for pair in pairs)
        for query, token in pairs if most > SEEN else ():
            size = float(sizes[query, token])
            said = f"token {query}, with other content in token {token}, which it sees"
            yield said, Outcome(size > UNSEEN, "another output", "the same, where others as far apart count")


# -- cases -------------------------------------------------------------------------------------------------------------

SEES = (
    "Let a query see its own key and the window - 1 before it, counted in the same way at once, in chunks and in "
    "decoding, and hide all else before the softmax."
)
TRIED: dict[str, Any] = {"claims": ("window", "sinks", "depth"), "remedy": SEES}
MOST = 256  # tokens of a row of which all pairs are compared
WINDOWS = re.compile(r"window|sliding|local|span|lookback", re.IGNORECASE)


def _options(subject: Subject) -> list[str]:
    """The names of options and parameters that sound like a window."""
    names = {*subject.options, *inspect.signature(subject.call).parameters}
    with suppress(ValueError):  # of what is not written in Python
        names |= set(inspect.signature(subject.build).parameters)
    return sorted(name for name in names if WINDOWS.search(name))


def _tokens(plan: Plan) -> int:
    """A number of tokens so large that the last does not see the first, through all layers."""
    subject = plan.subject
    if subject.window is None:
        named = _options(subject)
        hint = f"; its {' and '.join(named)} may be one" if named else ""
        require(False, f"claim `window=N` if a token sees no more than that many tokens, with itself{hint}")
    require(not isinstance(subject, Rotary), "nothing to do: a rotation hides nothing")
    require(not subject.takes("grid"), "nothing to do: call takes a grid, and these are rows of text")
    require(isinstance(subject.window, int), "nothing to do: the window is one of a grid")
    assert isinstance(subject.window, int)
    tokens = subject.sinks + subject.depth * (subject.window - 1) + 4
    sight = f"a window of {subject.window} in {subject.depth} layers"
    require(tokens <= plan.limit, f"build it with a smaller window: {sight} ends past {plan.limit} tokens")
    return tokens


def _changed(plan: Plan, tokens: int) -> dict[str, Any]:
    """The tokens to change: sinks, the token after them, the last that others see in a causal window, one between, and
    the last of all."""
    sinks = plan.subject.sinks
    return {"changed": sorted({*range(min(sinks, 2)), sinks, sinks + 2, tokens // 2, tokens - 4, tokens - 1})}


def _windows(plan: Plan, cached: bool = False) -> Iterator[Case]:
    tokens = _tokens(plan)
    batch = plan.text(2, tokens)
    if not cached:
        yield Case(batch, _changed(plan, tokens))
        return
    plan.require_a_cache()
    for chunks in ((tokens - 3, 1, 1, 1), (3,) * (tokens // 3) + (tokens % 3,) * (tokens % 3 > 0)):
        yield Case(replace(batch, chunks=chunks), _changed(plan, tokens))


def _alike(plan: Plan) -> Iterator[Case]:
    tokens = _tokens(plan)
    kinds = isinstance(plan.subject, Layer | Attention) and not isinstance(plan.subject, Model)
    require(kinds, "nothing to do: it is given no vectors or values, which would show what counts")
    require(
        tokens <= MOST, f"build it with a smaller window: rows of {tokens} tokens are too many to look at every two"
    )
    yield Case(plan.text(1, tokens))


def _gaps(plan: Plan) -> Iterator[Case]:
    tokens = _tokens(plan)
    plan.require_that_it_can("positions")
    require(plan.has(tokens + 2), "let it have more positions: there are too few for a row with a gap")
    yield Case(plan.broken(2, tokens), _changed(plan, tokens))


def _documents(plan: Plan) -> Iterator[Case]:
    tokens = _tokens(plan)
    plan.require_that_it_can("document")
    require(not plan.subject.sinks, "nothing to do: no claim says whether each document has sinks of its own")
    batch = two_documents(plan, 3 * tokens // 2 if 3 * tokens // 2 <= plan.limit else tokens)
    yield Case(batch if plan.subject.can("positions") else replace(batch, positions=None), _changed(plan, batch.tokens))


MORE = (
    19,
    (
        Trial("window", what_the_window_shows_counts, _windows, **TRIED),
        Trial("window, cached", what_the_window_shows_counts, _windows, {"cached": True}, **TRIED),
        Trial("window, everywhere", a_window_is_as_wide_for_all, _alike, claims=("window",)),
        Trial("window, with gaps", what_the_window_shows_counts, _gaps, **TRIED),
        Trial("window, packed documents", what_the_window_shows_counts, _documents, **TRIED),
    ),
)
