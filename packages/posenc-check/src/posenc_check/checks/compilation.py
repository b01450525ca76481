"""Checks that a call compiles and exports as one real graph for every length, equal to eager (check 18)."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from posenc_check.calls import arguments_of, one_line, with_call, with_tokens
from posenc_check.outcome import Outcome, first_failure, near
from posenc_check.subjects import Batch, NotApplicableError, Subject, require
from posenc_check.trial import Case, Check, Trial, TrialPlan

MAX_COMPILATIONS = 2  # compilations: one for the first length, one for all others


@contextmanager
def compile_subject(subject: Subject, backend: str) -> Iterator[tuple[Subject, list[torch.fx.GraphModule]]]:
    """The subject with its call compiled as one graph, and the graphs that torch gives to this backend."""
    from torch._dynamo.testing import CompileCounterWithBackend  # it takes a second to import

    torch.compiler.reset()
    try:
        compiler = CompileCounterWithBackend(backend)
        run = torch.compile(subject.call, backend=compiler, fullgraph=True)
        yield with_call(subject, lambda *given, **named: run(*given, **named)), compiler.graphs
    finally:
        torch.compiler.reset()


def compiled_is_eager(subject: Subject, batch: Batch, lengths: list[int], axes: int, tolerance: float) -> Outcome:
    """Texts of these lengths in turn give the outputs of eager, with few compilations and no complex numbers."""
    made = subject.make()
    with compile_subject(subject, "eager") as (compiled_subject, graphs), torch.no_grad():
        for count, tokens in enumerate(lengths, 1):
            text = with_tokens(batch, tokens, axes)
            expected = subject.run(made, text)
            actual = or_why(lambda text=text: compiled_subject.run(made, text))  # type: ignore[misc]
            if isinstance(actual, str):
                return Outcome(False, f"one graph for {tokens} tokens", actual)
            agrees = first_failure([(f"{tokens} tokens", near(expected, actual, tolerance))])
            if not agrees.ok:
                return agrees
            if len(graphs) > MAX_COMPILATIONS:
                few = f"at most {MAX_COMPILATIONS} compilations for {len(lengths)} lengths"
                return Outcome(False, few, f"{len(graphs)} for {count} lengths")
    require(graphs, "unset TORCHDYNAMO_DISABLE, for torch.compile is switched off, or finds nothing to compile")
    return all_is_real(graphs)


def or_why(run: Callable[[], Any]) -> Any:
    """The result, or the error in one line."""
    try:
        return run()
    except NotApplicableError:
        raise
    except Exception as error:
        return one_line(error)


def all_is_real(graphs: list[torch.fx.GraphModule]) -> Outcome:
    """Whether no node of these graphs, or of graphs inside them, is complex."""
    found = []
    for part in (part for graph in graphs for part in graph.modules()):
        for node in part.graph.nodes if isinstance(part, torch.fx.GraphModule) else ():
            value = node.meta.get("val", node.meta.get("example_value"))
            values = value if isinstance(value, tuple | list) else [value]
            if any(isinstance(x, Tensor) and x.is_complex() for x in values):
                found.append(node.name)
    return Outcome(not found, "real numbers alone", f"complex numbers: {', '.join(found[:3])}")


class Exported(nn.Module):
    """A call as a module that takes tensors by name and returns the output tensors."""

    def __init__(self, subject: Subject, made: Any, fixed: dict[str, Any]) -> None:
        super().__init__()
        self.made, self.fixed, self.function = made, fixed, subject.call

    def forward(self, tensors: dict[str, Tensor]) -> tuple[Tensor, ...]:
        out = self.function(self.made, **tensors, **self.fixed)
        return tuple(x for x in out if isinstance(x, Tensor)) if isinstance(out, tuple) else (out,)


def export_subject(
    subject: Subject, batch: Batch, lengths: list[int], axes: int
) -> tuple[list[dict[str, Tensor]], list[tuple[Tensor, ...]], torch.export.ExportedProgram | str]:
    """The inputs and outputs of a call for each length, and the program exported at the first, or why there is none."""
    made = subject.make()
    given = [arguments_of(subject, made, with_tokens(batch, tokens, axes)) for tokens in lengths]
    fixed = {name: x for name, x in given[0].items() if not isinstance(x, Tensor)}
    same = all(other[name] == x for other in given for name, x in fixed.items())
    require(same, "let call take positions, for it takes the length as a number, not as the shape of a tensor")
    inputs = [{name: x for name, x in arguments.items() if isinstance(x, Tensor)} for arguments in given]
    sizes = {
        name: {n: torch.export.Dim.DYNAMIC for n, size in enumerate(x.shape) if size != inputs[1][name].size(n)}
        for name, x in inputs[0].items()
    }
    module = Exported(subject, made, fixed)
    program = or_why(lambda: torch.export.export(module, (inputs[0],), dynamic_shapes=(sizes,)))
    return inputs, [module(given) for given in inputs], program


@torch.no_grad()
def exported_is_eager(subject: Subject, batch: Batch, lengths: list[int], axes: int, tolerance: float) -> Outcome:
    """A program exported at the first length against eager at all lengths."""
    inputs, expected, program = export_subject(subject, batch, lengths, axes)
    if isinstance(program, str):
        return Outcome(False, "a program for every length", program)
    real, run = all_is_real([program.graph_module]), program.module()
    if not real.ok:
        return real
    actual = or_why(lambda: [run(given) for given in inputs])
    if isinstance(actual, str):
        return Outcome(False, "a program for every length", actual)
    by_length = zip(lengths, expected, actual, strict=True)
    outs = ((tokens, x, y) for tokens, xs, ys in by_length for x, y in zip(xs, ys, strict=True))
    return first_failure((f"{tokens} tokens", near(x, y, tolerance)) for tokens, x, y in outs)


# -- cases -------------------------------------------------------------------------------------------------------------

LENGTHS = (5, 8, 13, 21, 34, 40, 47, 50)
MAX_PATCHES = 64  # of the grids that are compiled
BEGINNING = Batch([[0]])  # of texts, whose lengths are values of a trial


def _lengths(plan: TrialPlan, claim: str) -> list[int]:
    require(getattr(plan.subject, claim), f"claim `{claim}=True` to run this")
    lengths = [n for n in LENGTHS if n <= plan.limit] if plan.limit >= LENGTHS[-1] else list(range(2, plan.limit + 1))
    if plan.subject.on_grids:  # a grid with equal sides, or a side of 1, may be compiled separately
        shapes = {n: plan.subject.grid_of(n) for n in range(2, min(plan.limit, MAX_PATCHES) + 1)}
        lengths = [n for n, shape in shapes.items() if shape and 1 < min(shape) < max(shape)]
    possible = len(lengths) >= len(LENGTHS)
    require(possible, f"let it have more positions: {plan.limit} tokens are too few for {len(LENGTHS)} lengths above 1")
    return lengths[-len(LENGTHS) :]


def _axes_given(plan: TrialPlan) -> list[int]:
    """The number of axes of the positions that call is given, 0 for none; both are tried if positions are optional."""
    subject = plan.subject
    return [0, subject.axes] if subject.takes("positions") and not subject.needs("positions") else [0]


def _graphs(plan: TrialPlan, claim: str, every: int = 1) -> Iterator[Case]:
    lengths = _lengths(plan, claim)[::every]
    for axes in _axes_given(plan):
        yield Case(BEGINNING, {"lengths": lengths, "axes": axes, "tolerance": plan.tolerance(lengths[-1])})


CHECK = Check(
    number=18,
    name="compile and export",
    rule="One real graph, at most 2 compilations for 8 lengths, and one exported program for all lengths, all equal to "
    "eager.",
    why="Branches on data break graphs, lengths as constants recompile, and complex numbers cannot be exported.",
    pains=(10, 15),
    remedy="Branch on no values, take sizes from shapes, read no numbers out of tensors, and use no complex numbers.",
    trials=(
        Trial("compiled", compiled_is_eager, _graphs, {"claim": "compiles"}, claims=("compiles",)),
        Trial("exported", exported_is_eager, _graphs, {"claim": "exports", "every": 3}, claims=("exports",)),
    ),
)
