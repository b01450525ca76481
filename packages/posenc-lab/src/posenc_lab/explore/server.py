"""Serves the page, and computes with posenc the numbers that the page is checked against.

It accepts only requests for the loopback host, and processes one at a time, each with bounded work. Errors are returned
as text for the page to display. Other pages may not frame it.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from itertools import pairwise
from math import isfinite, log, prod
from operator import add
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, TypeVar

import torch
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse
from fastapi.staticfiles import StaticFiles
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat
from starlette.datastructures import Headers
from starlette.middleware.gzip import GZipMiddleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from torch import Tensor

import posenc
from posenc.arguments import check_name
from posenc.command.options import words
from posenc.rotation import scalings
from posenc.scheme import Scheme
from posenc.schemes.cameras import around
from posenc.schemes.catalog import CATALOG, entries_of
from posenc_lab.explore.models import FOLDER, decoder, header
from posenc_lab.explore.numbers import SIDE, of_options, options_of
from posenc_lab.explore.page import STATIC, explorer, policy
from posenc_lab.explore.records import summary
from posenc_lab.kit.records import FILE

MAX_NUMBERS = 2**20  # in a tensor of a request or a response
MAX_BODY_BYTES = 32 * MAX_NUMBERS  # of a request body: a float64 in JSON has up to 24 characters and a comma
MAX_BYTES_IN_PROGRESS = 4 * MAX_BODY_BYTES  # of all bodies that are arriving or being answered
SCALINGS = (
    scalings.PositionInterpolation,
    scalings.NTKAware,
    scalings.DynamicNTK,
    scalings.YaRN,
    scalings.Llama3,
    scalings.LongRoPE,
    scalings.Proportional,
)
MAX_OPTION = 4096  # the largest integer option of a scheme

Result = TypeVar("Result")


class Bounded:
    """Middleware that answers 413 to a request body of more than `MAX_BODY_BYTES`, by its Content-Length header or,
    without one, once more bytes have arrived; and 503 while bodies of other requests hold most of
    `MAX_BYTES_IN_PROGRESS`."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        self.held = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves a request."""
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        came: list[Message] = []
        size, told, more = 0, int(Headers(scope=scope).get("content-length", 0)), True
        try:
            while more and max(size, told) <= MAX_BODY_BYTES and self.held <= MAX_BYTES_IN_PROGRESS:
                came.append(await receive())
                size += len(body := came[-1].get("body", b""))
                self.held += len(body)
                more = came[-1].get("more_body", False)  # a disconnect message has no body and is the last
            if max(size, told) > MAX_BODY_BYTES:
                said = f"the body must have at most {MAX_BODY_BYTES} bytes, got {told or 'more'}"
                return await JSONResponse({"error": said}, status_code=413)(scope, receive, send)
            if self.held > MAX_BYTES_IN_PROGRESS:
                said = (
                    f"other requests hold {self.held - size} bytes, of at most {MAX_BYTES_IN_PROGRESS}: ask again later"
                )
                return await JSONResponse({"error": said}, status_code=503)(scope, receive, send)
            return await self._answer(came, scope, receive, send)
        finally:
            self.held -= size

    async def _answer(self, came: list[Message], scope: Scope, receive: Receive, send: Send) -> None:
        came.reverse()

        async def again() -> Message:
            return came.pop() if came else await receive()

        return await self.app(scope, again, send)


class _Given(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class Array(_Given):
    """Numbers and their shape."""

    shape: Annotated[list[Annotated[int, Field(ge=0, le=MAX_NUMBERS)]], Field(max_length=6)]
    data: Annotated[list[FiniteFloat], Field(max_length=MAX_NUMBERS)]

    def tensor(self, name: str) -> Tensor:
        """The tensor, in float64. ValueError if the numbers do not match the shape."""
        if prod(self.shape) != len(self.data):
            raise ValueError(
                f"{name} of shape {tuple(self.shape)} must have {prod(self.shape)} numbers, got {len(self.data)}"
            )
        return torch.tensor(self.data, dtype=torch.float64).reshape(self.shape)


class Named(_Given):
    """A scheme of the catalog, its options, and its parameters."""

    name: Annotated[str, Field(max_length=200)]
    options: dict[str, Any] = {}
    parameters: dict[str, Array] = {}


Size = Annotated[int, Field(ge=1, le=MAX_NUMBERS)]
Pair = Annotated[list[Annotated[int, Field(ge=0, le=MAX_NUMBERS)]], Field(min_length=2, max_length=2)]
Coordinates = Annotated[
    list[Annotated[list[FiniteFloat], Field(min_length=1, max_length=3)]], Field(min_length=1, max_length=1024)
]
Facts = Annotated[list[Annotated[int, Field(ge=-1, le=1024)]], Field(max_length=1024)]


class Attention(_Given):
    """A request for attention of one row: q, k and v (heads, tokens, head_dim), and the coordinates of each token.

    ``document`` has the document of each token, -1 for padding; it applies only without ``key_positions``. ``features``
    are the layer's projections, (heads, tokens[, width]), as for `Encoding.with_projected`.
    """

    schemes: Annotated[list[Named], Field(max_length=4)]
    query: Array
    key: Array
    value: Array
    positions: Coordinates
    key_positions: Coordinates | None = None
    document: Facts | None = None
    causal: bool = False
    window: Size | Pair | None = None
    chunk: Size | None = None
    sinks: Array | None = None
    features: dict[str, Array] = {}


class Recorded(_Given):
    """The text of a file of records, and its name."""

    name: Annotated[str, Field(max_length=200)]
    text: str


class TableQuery(_Given):
    """A request for the vectors that a scheme adds at positions, with optional segments."""

    scheme: Named
    positions: Coordinates
    segment: Facts | None = None


class Reading(_Given):
    """A request for the losses of a trained model of the page on a text, with YaRN's ``factor`` where it is scaled."""

    name: Annotated[str, Field(max_length=200)]
    tokens: Annotated[list[Annotated[int, Field(ge=0, le=255)]], Field(min_length=2, max_length=1024)]
    factor: Annotated[FiniteFloat, Field(ge=1)] | None = None


def build(named: Named) -> Scheme:
    """Builds a scheme in float64. ValueError for an unknown name, and for an option that is unknown or too large."""
    known = {entry.name: entry for entry in CATALOG}
    check_name("scheme", named.name, list(known))
    entry = known[named.name]
    for name, value in named.options.items():
        _bounded(name, value)
    try:
        options = {name: _option(name, value) for name, value in named.options.items()}
        if entry.scheme is posenc.Cameras:  # the page has no others than those of the catalog
            options["cameras"] = around(SIDE)
        with torch.device("meta"):  # counts the parameters without allocating memory
            learned = sum(parameter.numel() for parameter in entry.scheme(**options).parameters())
        if learned > MAX_NUMBERS:
            raise ValueError(f"{entry.title} may learn at most {MAX_NUMBERS} numbers here, got options for {learned}")
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(0)
            scheme = entry.scheme(**options).to(torch.float64)
    except TypeError as error:
        raise ValueError(f"{entry.signature} cannot be built so: {words(error)}") from None
    if named.parameters:
        scheme.load_state_dict({name: array.tensor(name) for name, array in named.parameters.items()})
    return scheme


def _bounded(name: str, value: Any) -> None:
    parts = value if isinstance(value, list) else [value]
    numbers = [part for part in parts if isinstance(part, int | float) and not isinstance(part, bool)]
    whole = prod(max(part, 1) for part in numbers if isinstance(part, int))
    if name not in ("base", "seed", "scale_base", "longest", "sections") and whole > MAX_OPTION:
        raise ValueError(f"{name} must be at most {MAX_OPTION} here, got {value}")


def _option(name: str, value: Any) -> Any:
    if name == "scaling" and isinstance(value, dict):
        kinds = {kind.__name__: kind for kind in SCALINGS} | {"proportional": scalings.Proportional}
        given = {key: _option(key, part) for key, part in value.items() if key != "kind"}
        kind = str(value.get("kind"))
        check_name("scaling.kind", kind, list(kinds))
        return kinds[kind](**given)
    return tuple(value) if isinstance(value, list) else value


def _positions(
    coordinates: Sequence[Sequence[float]], document: Sequence[int] | None = None, segment: Sequence[int] | None = None
) -> posenc.Positions:
    if any(len(first) != len(second) for first, second in pairwise(coordinates)):
        raise ValueError("positions must have as many coordinates each, got some with more")
    coords = torch.tensor(coordinates, dtype=torch.float64)[None]
    if coords.size(-1) == 1:
        coords = coords[..., 0]
    if (coords == coords.round()).all():
        coords = coords.long()
    facts = {"document": document, "segment": segment}
    told = {name: torch.tensor(fact)[None] for name, fact in facts.items() if fact is not None}
    return posenc.Positions(coords, order=torch.arange(coords.size(1))[None], **told)


def attention(given: Attention) -> dict[str, Any]:
    """The logits before masking, and the output, from the reference backend."""
    query, key, value = (getattr(given, name).tensor(name)[None] for name in ("query", "key", "value"))
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        if tensor.dim() != 4:
            raise ValueError(f"{name} must have the shape (heads, tokens, head_dim), got {tuple(tensor.shape[1:])}")
    pairs = query.size(1) * query.size(2) * key.size(2)
    if pairs > MAX_NUMBERS:
        raise ValueError(f"heads x queries x keys must be at most {MAX_NUMBERS}, got {pairs}")
    scheme = reduce(add, map(build, given.schemes), posenc.NoPE())
    queries = _positions(given.positions, given.document)
    keys = queries if given.key_positions is None else _positions(given.key_positions)
    window: Any = tuple(given.window) if isinstance(given.window, list) else given.window
    with torch.no_grad():
        encoding = scheme(queries, keys, dtype=torch.float64)
        if given.features:
            features = {name: array.tensor(f"features.{name}")[None] for name, array in given.features.items()}
            encoding = encoding.with_projected(features)
        logits = posenc.logits(query, key, encoding)
        out = posenc.attention(
            query,
            key,
            value,
            encoding,
            is_causal=given.causal,
            window=window if given.chunk is None else posenc.Chunk(given.chunk),
            sinks=None if given.sinks is None else given.sinks.tensor("sinks"),
            backend="reference",
        )
    return {"logits": _answer(logits[0]), "out": _answer(out[0])}


def table(given: TableQuery) -> dict[str, Any]:
    """The vectors that a scheme adds, (positions, dim)."""
    scheme = build(given.scheme)
    if "add" not in scheme.doors or "dim" not in given.scheme.options:
        raise ValueError(f"scheme must add vectors to the input, got {given.scheme.name}, which has none")
    positions = _positions(given.positions, segment=given.segment)
    with torch.no_grad():
        nothing = torch.zeros(1, len(positions), given.scheme.options["dim"], dtype=torch.float64)
        return {"table": _answer(scheme(positions, dtype=torch.float64).add(nothing)[0])}


def reading(given: Reading) -> dict[str, Any]:
    """The loss of each byte after the first, in bits."""
    length = header()["configuration"]["train_length"]
    model = decoder(given.name, scalings.YaRN(given.factor, length) if given.factor else None)
    tokens = torch.tensor([given.tokens])
    with torch.no_grad():
        nats = torch.nn.functional.cross_entropy(model(tokens)[0, :-1], tokens[0, 1:], reduction="none")
    return {"bits": _answer(nats / log(2))}


def numbers(given: Named) -> dict[str, Any]:
    """The numbers by which the page draws a scheme that it has no JavaScript of."""
    build(given)  # which bounds the options
    (entry,) = entries_of(given.name)
    usual = {option.name: None for option in options_of(entry)}
    return of_options(entry, usual | given.options)


def records(given: Recorded) -> dict[str, Any]:
    """What a dropped file of records says, as `posenc_lab.explore.records.summary`."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / FILE
        path.write_text(given.text, encoding="utf-8")
        try:
            return summary(Path(folder)) | {"name": given.name}
        except ValueError as error:
            raise ValueError(str(error).replace(str(path), given.name).replace(folder, given.name)) from None


def minilm() -> dict[str, Any]:
    """The learned table of all-MiniLM-L6-v2, if its package is installed."""
    from posenc_lab.plot.vectors import learned

    return {"table": _answer(learned().weight.detach())}


def _answer(tensor: Tensor) -> dict[str, Any]:
    if tensor.numel() > MAX_NUMBERS:
        raise ValueError(f"an answer has at most {MAX_NUMBERS} numbers, got {tensor.numel()}")
    flat = tensor.reshape(-1).tolist()
    return {
        "shape": list(tensor.shape),
        "data": [number if isfinite(number) else None for number in flat],
    }


def application(content: Mapping[str, Any]) -> FastAPI:
    """The web application that serves a page with ``content``."""
    busy = threading.Lock()
    page, headers = explorer(content, server=True), {"Content-Security-Policy": policy(server=True)}
    app = FastAPI(title="posenc explorer", docs_url=None, redoc_url=None, openapi_url=None)
    app.add_middleware(Bounded)
    app.add_middleware(GZipMiddleware)
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=["127.0.0.1", "localhost"])

    def answered(compute: Callable[[], Result]) -> Any:
        try:
            with busy:
                return compute()
        except ModuleNotFoundError as error:
            return JSONResponse({"error": str(error)}, status_code=404)
        except (ValueError, RuntimeError) as error:
            return JSONResponse({"error": words(error)}, status_code=422)

    @app.get("/", response_class=HTMLResponse)
    def _page() -> HTMLResponse:
        return HTMLResponse(page, headers=headers)

    @app.post("/api/attention")
    def _attention(given: Attention) -> Any:
        return answered(lambda: attention(given))

    @app.post("/api/table")
    def _table(given: TableQuery) -> Any:
        return answered(lambda: table(given))

    @app.post("/api/numbers")
    def _numbers(given: Named) -> Any:
        return answered(lambda: numbers(given))

    @app.post("/api/reading")
    def _reading(given: Reading) -> Any:
        return answered(lambda: reading(given))

    @app.post("/api/records")
    def _records(given: Recorded) -> Any:
        return answered(lambda: records(given))

    @app.post("/api/minilm")
    def _minilm() -> Any:
        return answered(minilm)

    @app.exception_handler(RequestValidationError)
    async def _refused(request: Request, error: RequestValidationError) -> JSONResponse:
        said = "; ".join(f"{'.'.join(map(str, one['loc'][1:])) or 'body'}: {one['msg']}" for one in error.errors()[:5])
        return JSONResponse({"error": said}, status_code=422)

    app.mount("/static", StaticFiles(directory=STATIC), name="static")
    app.mount("/models", StaticFiles(directory=FOLDER), name="models")
    return app
