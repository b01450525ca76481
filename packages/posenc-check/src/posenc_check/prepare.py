"""Checks that a subject can be checked: its claims have the right types, a script can be made of it, and it runs."""

import contextlib
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from inspect import Parameter, signature
from typing import Any

import torch
from torch import nn

from posenc.arguments import check_choice, check_flag, check_name, check_type, number, shown, whole
from posenc.encoding.claims import ClaimError
from posenc_check.checks.purity import equal
from posenc_check.outcome import describe_error, near
from posenc_check.standalone import check_sources
from posenc_check.state import restored_state
from posenc_check.subjects import Batch, Model, NotApplicableError, Subject, kind_of
from posenc_check.trial import TrialPlan, padded

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)  # those that outputs can be compared in


def _each(name: str, values: Any, kind: type, kinds: str) -> None:
    if not isinstance(values, list | tuple) or not all(isinstance(value, kind) for value in values):
        raise ValueError(f"{name} must be a list or tuple of {kinds}, got {shown(values)}")


def _sizes(name: str, values: Any) -> None:
    """A whole number for each of several axes."""
    check_type(name, values, list, tuple)
    for index, value in enumerate(values):
        whole(f"{name}[{index}]", value)


def _numbers(name: str, values: Any) -> None:
    check_type(name, values, list, tuple, None)
    for index, value in enumerate(values):
        number(f"{name}[{index}]", value)


def _type_rule(*kinds: Any) -> Callable[[str, Any], object]:
    return lambda name, value: check_type(name, value, *kinds)


# The rule for each field of a subject, of any kind; optional fields may also be None.
FIELD_RULES: dict[str, Callable[[str, Any], object]] = {
    "options varied other_layout": _type_rule(Mapping),
    "refused backends": partial(_each, kind=Mapping, kinds="mappings"),
    "causal linear_memory compiles exports normalized order_free": check_flag,
    "axes window max_positions distinct_to threshold depth heads head_dim dim": whole,
    "sinks registers drawing": partial(whole, least=0),
    "max_grid": _sizes,
    "base scale": partial(number, above=0),
    "frequencies slopes": _numbers,
    "dtype computes_in": partial(check_choice, choices=DTYPES),
    "direction": partial(check_choice, choices=("forward", "backward")),
    "layout": partial(check_choice, choices=("half", "interleaved")),
    "state": partial(_each, kind=str, kinds="names"),
    "flat": _type_rule(Mapping, None),
    "relative directed": _type_rule(bool, None),
    "heads_option": _type_rule(str),
    "device": _type_rule(str, torch.device),
    "seed": lambda name, value: callable(value) or whole(name, value, -(2**63), 2**64 - 1),  # what a generator takes
}
RULES = {name: rule for names, rule in FIELD_RULES.items() for name in names.split()}
OPTIONAL = {"max_positions", "distinct_to", "threshold", "base", "scale", "frequencies", "slopes", "computes_in"}
OPTIONAL |= {"layout", "rotary_dim", "flat", "relative", "directed", "direction"}
OPTIONAL |= {"window", "max_grid"}


# Usual names of the parameters of call, by their names here: the first that this kind of subject has is suggested.
COMMON_PARAMETER_NAMES: dict[tuple[str, ...], str] = {
    ("positions", "query_positions"): "position_ids pos pos_ids position input_pos p t idx indices cache_position",
    ("query_positions", "positions"): "q_pos q_positions context_position",
    ("key_positions", "memory_positions"): "k_pos k_positions memory_position",
    ("padding", "visible"): "attention_mask attn_mask mask key_padding_mask padding_mask pad_mask",
    ("cache",): "past_key_values past_key_value past layer_past kv_cache cache_params memory_cache",
    ("document", "query_document"): "segment_ids document_ids doc_ids sequence_ids seq_ids",
    ("memory",): "context encoder_hidden_states kv",
    ("grid",): "H W h w height width hw shape grid_size grid_thw",
    ("query",): "q xq queries",
    ("key",): "k xk keys",
    ("offset",): "start start_pos seq_offset past_length",
    ("query_length", "positions"): "seq_len seqlen length q_len tgt_len",
    ("key_length",): "k_len kv_len src_len",
}


def prepare_subject(subject: Subject) -> tuple[Subject, str]:
    """The subject in the dtype in which it is checked, float32 if it does not run in float64; and why. Raises
    ValueError as `check` does."""
    check_type("subject", subject, Subject)
    _check_claims(subject)
    check_sources(subject)
    _check_parameters(subject)
    subject, why = _in_working_dtype(subject)
    _check_builds(subject)
    if subject.like is not None:
        from posenc_check.like import check_like  # needs all backends

        with without_warnings():
            check_like(subject)
    return subject, why


def _check_claims(subject: Subject) -> None:
    """Raises ValueError for a field of the subject with a wrong type or value."""
    claims = {name: value for name, value in vars(subject).items() if value is not None or name not in OPTIONAL}
    for name, rule in RULES.items():
        if name in claims:
            rule(name, claims[name])
    if "rotary_dim" in claims:
        whole("rotary_dim", claims["rotary_dim"], 1, claims.get("head_dim"))
    if number("jitter", subject.jitter) < 0:
        raise ValueError(f"jitter must be at least 0, got {subject.jitter}")
    try:
        float(torch.zeros((), device=subject.device))  # read too: "meta" holds no numbers
    except (RuntimeError, AssertionError) as error:
        raise ValueError(
            f"device must be one that is here, got {str(subject.device)!r}, on which "
            f"the subject does not run: {type(error).__name__}: {str(error).partition(chr(10))[0]}"
        ) from None


def _check_parameters(subject: Subject) -> None:
    """Raises ValueError for a parameter of ``call`` that this kind of subject does not provide."""
    parameters = list(signature(subject.call).parameters.values())[subject.positional_count :]
    for parameter in parameters if subject.known_parameters else ():
        if (
            parameter.kind in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
            or parameter.name in subject.known_parameters
        ):
            continue
        what, name = f"a parameter of call for a {type(subject).__name__}", parameter.name
        ours = next((ours for ours, theirs in COMMON_PARAMETER_NAMES.items() if name in theirs.split()), ())
        usual = next((one for one in ours if one in subject.known_parameters), None)
        if usual is not None:
            raise ValueError(
                f"{what} must be one of {', '.join(subject.known_parameters)}, got {name!r} (did you mean {usual!r}?)"
            )
        check_name(what, name, subject.known_parameters)


def _in_working_dtype(subject: Subject) -> tuple[Subject, str]:
    """The subject in float64; or in float32, and why, if it does not run in float64, or is not finite there alone."""
    single, batch = replace(subject, dtype=torch.float32), _small_batch(subject)
    out: Any  # whatever call gives
    try:
        with without_warnings():
            out = subject.run(subject.make(), batch)
    except ClaimError:
        raise
    except (Exception, SystemExit) as error:
        if subject.dtype == torch.float64:
            return _in_working_dtype(single)[0], f"run in float32: in float64 it raises {describe_error(error)}"
        raise ValueError(
            f"the subject does not run: {describe_error(error)}. {_call_advice(subject, batch)}"
        ) from error
    if not isinstance(out, torch.Tensor):
        more = ": end it with `return output`, or let it take a `cache`, if the second is one"
        raise ValueError(
            f"call must give a tensor (rows, tokens, …), got {kind_of(out)}{more * isinstance(out, tuple)}"
        )
    expected = (len(batch.ids), batch.tokens)
    if out.dim() < 3 or out.shape[:2] != expected:
        more = ": end it with `return output.transpose(0, 1)`" * (out.shape[:2] == expected[::-1])
        raise ValueError(f"call must give (rows, tokens, …), here {expected} and more, got {tuple(out.shape)}{more}")
    if subject.dtype == torch.float64:
        for other in (batch, *_with_padding(subject)):
            if _is_finite(subject, other) is False and _is_finite(single, other):
                return single, "run in float32: in float64 some of the outputs are not finite"
    return subject, ""


def _small_batch(subject: Subject) -> Batch:
    plan = TrialPlan(subject)
    return plan.text(1, plan.room(5))


def _with_padding(subject: Subject) -> Iterator[Batch]:
    """Batches with padding at the beginning or end of a row, so that in causal attention some tokens see nothing."""
    plan = TrialPlan(subject)
    tokens = min(5, plan.limit)
    if subject.can("padding") and tokens > 2:
        row = [False, False, *[True] * (tokens - 2)]
        for mask in (row, row[::-1]):
            for explicit in {False, subject.can("positions")}:
                yield padded(plan, [mask, [True] * tokens], explicit)


def _is_finite(subject: Subject, batch: Batch) -> bool | None:
    """Whether the subject runs with finite outputs; None if it cannot be given such a batch."""
    try:
        with without_warnings():
            return bool(subject.run(subject.make(), batch).isfinite().all())
    except NotApplicableError:
        return None
    except (Exception, SystemExit):
        return False


def _check_builds(subject: Subject) -> None:
    """Raises ValueError unless two builds from one seed are the same: ``seed`` must seed all generators in use."""
    batch = _small_batch(subject)
    with without_warnings():
        first, second = subject.make(), subject.make()
        out, again, other = (subject.run(made, batch) for made in (first, first, second))
    # A call that draws random numbers is found by the check of purity; and a buffer that affects no output, such as
    # uninitialised memory, may hold anything.
    if _equal_up_to_rounding(out, again) and not _equal_up_to_rounding(out, other):
        held = [made.state_dict() if isinstance(made, nn.Module) else {} for made in (first, second)]
        differing = next(
            (repr(name) for name, x in held[0].items() if not _equal_up_to_rounding(x, held[1][name])), "its outputs"
        )
        seeds = f"seed={subject.seed.__qualname__} does" if callable(subject.seed) else "torch's seed does"
        raise ValueError(
            f"build must give the same from the same seed, got two that differ in {differing}, which {seeds} not fix. "
            "Where NumPy, Python's random or another library draws it, claim seed=, a function of a number that "
            "seeds all of them, such as keras.utils.set_random_seed"
        )


def _equal_up_to_rounding(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Whether two tensors are the same up to rounding: the order of sums may depend on the alignment of memory."""
    numbers = first.is_floating_point() and first.numel() > 0
    return equal(first, second) or (numbers and near(first, second, 2**-20 * float(first.detach().abs().max())).ok)


def _call_advice(subject: Subject, batch: Batch) -> str:
    """What a failing call was given, and what to claim to change that."""
    kind, sizes = type(subject).__name__, [name for name in ("heads", "head_dim", "dim") if hasattr(subject, name)]
    said = " and ".join(f"{name}={getattr(subject, name)}" for name in sizes)
    if subject.needs("grid"):
        return (
            "Where a row has no grid, `grid` is None: give it a default, the shape that so many tokens have by itself"
        )
    if subject.on_grids:
        grid = subject.grid_of(batch.tokens)
        return f"It was given a grid of {grid}: where it has one grid and no other, claim that as max_grid="
    if isinstance(subject, Model):
        return "x is ids (rows, tokens), and call is given what its parameters name"
    return f"It was run with {said}: set what your code has by {kind}({', '.join(f'{name}=…' for name in sizes)})"


@contextlib.contextmanager
def without_warnings() -> Iterator[None]:
    """Suppresses warnings of the subject and logs of the compiler, and restores the global state that it changes."""
    level = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with restored_state(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)
