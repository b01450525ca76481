"""Times the user's attention and posenc's on the same inputs, after checking that both compute the same function."""

import inspect
import itertools
import math
import os
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

import posenc
from posenc.arguments import shown
from posenc.schemes.user_code import load_object, register_file
from posenc_lab.bench import cases
from posenc_lab.bench.measure import Inputs, LeftOutError, Make, Work
from posenc_lab.bench.settings import AUTO, Settings
from posenc_lab.kit.files import digest_of

MINE = "mine"
# The expected values are computed in float64: up to this many tokens by the reference (1.8 GB), beyond by auto.
EXACT = 2048
# The allowed error, relative to the largest magnitude. Rounding errors, measured from 64 to 2,048 tokens: of dense
# attention and of PyTorch's kernel at most 1e-6, 2e-3 (float16) and 1e-2 (bfloat16); of an ALiBi that counts from the
# start of the text, and so rounds large biases, 1e-5 in float32, and more in longer texts.
TOLERANCES = {"float64": 1e-11, "float32": 1e-4, "float16": 1e-2, "bfloat16": 5e-2}

Off: TypeAlias = dict[str, float | None]
"""The error of each result of a call, relative to the largest expected magnitude; None if not finite."""


def check(settings: Settings) -> None:
    """ValueError for an attention that cannot be called, or cannot compute the scheme; `TargetError` if its module
    fails."""
    if settings.mine is None:
        return
    (attention, _), name = load_object(settings.mine, "--mine"), _scheme(settings)
    if not callable(attention) or isinstance(attention, type):
        expected = "a function, or what else is called as attention(query, key, value)"
        raise ValueError(f"{settings.mine} must be {expected}, got {shown(attention)}")
    if any("add" in entry.doors for entry in cases.entries(name)):
        raise ValueError(f"schemes must be one that acts in attention, got {name!r}, which adds to the input before it")
    learned = next(cases.build_scheme(name, settings, settings.lengths[0]).parameters(), None) is not None
    if learned and not _takes_scheme(attention):
        raise ValueError(
            f"{settings.mine} must take a fourth argument, scheme: the parameters of {name} are read from it"
        )
    register_file(_file(settings), settings.mine.rpartition(":")[0])


def source(settings: Settings) -> dict[str, str]:
    """The digest of the file that defines the attention; empty without --mine."""
    if settings.mine is None:
        return {}
    return {f"source of {settings.mine}": digest_of(Path(_file(settings)).read_bytes())}


def groups(settings: Settings) -> Iterator[cases.Group]:
    """A group per length and phase, short ones first."""
    name = _scheme(settings)
    for length, phase in itertools.product(settings.lengths, cases.PHASES):
        training = phase == "training"
        build = partial(timed, settings, name, length, training)
        work = 2 + (3.5 if training else 1) * (length / 2048) ** 2
        yield cases.Group(f"{MINE} {phase}", name, length, build, work, partial(_probed, settings, name, training))


def timed(settings: Settings, name: str, length: int, training: bool) -> cases.Built:
    """Plain attention, posenc's with the scheme, and the user's. The last two are compared with the expected values
    when they are set up, which fills in the fact ``off``; one with too large an error is left out."""
    inputs = Inputs.draw(settings, length, length, training)
    auto = cases.explained(cases.build_scheme(name, settings, length), name, inputs)
    truth, allowed = cache(partial(_truth, settings, name, inputs)), TOLERANCES[settings.dtype]
    off: dict[str, Off] = {}

    def verified(who: str, make: Make) -> Work:
        work, off[who] = make(), {}
        if wrong := _compare(_answers(work, inputs), truth(), allowed, off[who]):
            raise LeftOutError(f"{who} is not causal attention with {name}: {wrong}")
        return work

    makes: dict[str, Make] = {
        "posenc": partial(cases.attention_work, settings, name, length, inputs, AUTO),
        MINE: partial(_work, settings, name, inputs),
    }
    facts = {"name": settings.mine, "auto": auto.backend, "why": auto.why, "allowed": allowed, "off": off}
    checked = {who: partial(verified, who, make) for who, make in makes.items()}
    return cases.Built({cases.PLAIN: inputs.plain, **checked}, facts)


def _scheme(settings: Settings) -> str:
    return settings.schemes[0] if settings.schemes else "nope"


def _probed(settings: Settings, name: str, training: bool, who: str, length: int) -> Work:
    return timed(settings, name, length, training).makes[who]()


def _takes_scheme(attention: Callable[..., Any]) -> bool:
    try:
        taken = inspect.signature(attention.forward if isinstance(attention, nn.Module) else attention).parameters
    except (TypeError, ValueError):  # a function of C
        return False
    return "scheme" in taken


def _file(settings: Settings) -> str:
    """The file that defines the attention, from which its module may only import it; else the module's file."""
    attention, module = load_object(settings.mine or "", "--mine")
    code = getattr(inspect.unwrap(attention), "__code__", None)
    files = (getattr(code, "co_filename", None), getattr(module, "__file__", None))
    return next((file for file in files if file and Path(file).is_file()), os.devnull)


def _work(settings: Settings, name: str, inputs: Inputs) -> Work:
    attention, _ = load_object(settings.mine or "", "--mine")
    query, key, value = inputs.query, inputs.key, inputs.value
    scheme = cases.build_scheme(name, settings, query.size(2))
    if scheme.features:
        raise LeftOutError(f"{name} needs {', '.join(scheme.features)} of each layer, and only q, k and v are given")
    takes = _takes_scheme(attention)
    call = partial(attention, scheme=scheme) if takes else attention

    def attend() -> Tensor:
        out = call(query, key, value)
        if not isinstance(out, Tensor) or (out.shape, out.dtype) != (query.shape, query.dtype):
            raise LeftOutError(f"mine must give what the query is, {shown(query.detach())}, got {shown(out)}")
        return out

    return inputs.work(attend, tuple(scheme.parameters()) if takes else ())


# -- the expected values ----------------------------------------------------------------------------------------------


def _truth(settings: Settings, name: str, inputs: Inputs) -> dict[str, Tensor]:
    """The expected output and, in training, gradients of queries, keys, values and parameters, by name."""
    length = inputs.query.size(2)
    scheme = cases.build_scheme(name, settings, length).double()
    given = (inputs.query, inputs.key, inputs.value)
    query, key, value = (x.detach().double().requires_grad_(inputs.training) for x in given)
    wide = Inputs(query, key, value, inputs.gradient.double(), inputs.training)

    def attend() -> Tensor:
        encoding = scheme(cases.positions_of(name, length, query.device), dtype=torch.float64)
        if encoding.wanted:
            encoding = encoding.with_projected(cases.projected_by_a_layer(scheme, query))
        backend = "reference" if length <= EXACT else AUTO
        out = posenc.attention(query, key, value, encoding, is_causal=True, backend=backend)
        assert isinstance(out, Tensor)
        return out

    parameters = dict(scheme.named_parameters())
    asked = ("query", "key", "value", *parameters) if inputs.training else ()
    found = wide.work(attend, tuple(parameters.values()))()
    return dict(zip(("output", *(f"gradient of {each}" for each in asked)), found, strict=True))


def _answers(work: Work, inputs: Inputs) -> tuple[Tensor, ...]:
    """The results of a call. LeftOutError if it changes its inputs, which are restored."""
    given = {name: (x, x.detach().clone()) for name, x in vars(inputs).items() if isinstance(x, Tensor)}
    answers = work()
    for name, (tensor, before) in given.items():
        if not torch.equal(tensor, before):
            tensor.detach().copy_(before)
            raise LeftOutError(f"it changes its {name} in place, on which the others are timed too")
    return answers


def _compare(answers: tuple[Tensor, ...], truth: dict[str, Tensor], allowed: float, off: Off) -> str:
    """Fills in the error of each result. Returns a description of the first error that is too large, or ""."""
    wrong = ""
    # Parameters come last; only an attention that has the argument scheme has gradients for them.
    for (what, expected), answer in zip(truth.items(), answers, strict=False):
        difference = (answer.detach().double() - expected).abs().nan_to_num(nan=math.inf, posinf=math.inf)
        most, largest = difference.max().item(), expected.abs().max().item()
        share = most / largest if largest else math.inf if most else 0.0
        off[what] = share if math.isfinite(share) else None
        if share > allowed and not wrong:
            index = torch.unravel_index(difference.argmax(), difference.shape)
            wrong = (
                f"its {what} is off by {share:.2g} of the largest magnitude there, and {allowed:g} is allowed; most at "
                f"{[int(each) for each in index]}, {answer[index].item():.4g} instead of {expected[index].item():.4g}"
            )
    return wrong
