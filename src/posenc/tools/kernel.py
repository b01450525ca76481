"""``posenc kernel``: the CPU kernel that is there, why, and whether it is right; and one for this very processor.

torch is imported when it runs, not before.
"""

import argparse
import contextlib
from typing import TYPE_CHECKING

from posenc.tools.kit.command import failed

if TYPE_CHECKING:
    from posenc.backends.native.processor import Level


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    kernel = commands.add_parser(
        "kernel",
        help="the CPU kernel that is there, tested, and built for this processor",
        description="Says which libraries of the CPU kernel there are for this processor, and which each precision "
        "takes. The exit code is 1 where a precision has none, a test fails, or none could be built.",
    )
    kernel.set_defaults(run=run)
    what = kernel.add_mutually_exclusive_group()
    what.add_argument(
        "--test", action="store_true", help="compute the known answers again, by every library that is there"
    )
    what.add_argument(
        "--build",
        action="store_true",
        help="build for this very processor, by the compiler at hand or the one in CXX, and keep it in the cache; "
        "where it gives wrong answers, the best level that does not",
    )


def run(arguments: argparse.Namespace) -> int:
    """Prints what there is. 0: done; 1: a precision has no library, one is wrong, or none could be built."""
    from posenc.backends.native import build, library, processor

    precisions = tuple(library.REALS.values())
    of_all, of_this = ([level.name for level in found] for found in (processor.levels(), processor.runnable()))
    print(f"processor  {processor.name()}")
    print(f"levels     {', '.join(of_this)} (of {', '.join(of_all)} for {processor.machine()})")
    if arguments.build:
        try:
            reasons = _build(precisions)
        except build.UnavailableError as error:
            return failed(f"the kernel is not built: {error}")
        library.find.cache_clear()
    else:
        reasons = []
    for precision in precisions:
        reasons += _show(precision, arguments.test)
    return failed("; ".join(reasons)) if reasons else 0


def _show(precision: str, is_test: bool) -> list[str]:
    """Prints what there is of a precision, and gives what is wrong with it, in words."""
    from posenc.backends.native import build, library

    print(f"\n{precision}")
    reasons = []
    if is_test:
        _test(precision)
    taken = library.find(precision)
    is_before = True  # what comes before the one that is taken was proved
    for candidate in library.candidates(precision):
        try:
            there = library.load(candidate.path)
            if there is None:
                continue
            wrong = library.faults(there) if is_test or is_before else ()
        except build.UnavailableError as error:
            print(f"  {candidate.level:9} not used: {error}")
            continue
        is_taken = not isinstance(taken, build.UnavailableError) and there.path == taken.path
        if wrong:
            said = f"not used: wrong answers ({'; '.join(wrong)})"
            reasons += [f"{there.path.name} gives wrong answers"] if is_test else []
        else:
            said = "taken" if is_taken else "there"
            said += ", gives the known answers" if is_test or is_taken else ""
        print(f"  {candidate.level:9} {said}")
        print(f"            {there.path}")
        print(f"            by {there.record.compiler}: {there.record.command}")
        is_before &= not is_taken
    if isinstance(taken, build.UnavailableError):
        print(f"  none is taken: {taken}")
        reasons += [] if library.is_off() else [f"{precision} has no library"]
    return reasons


def _test(precision: str) -> None:
    """Every library that is there computes the known answers again, which is remembered."""
    from posenc.backends.native import build, library

    for candidate in library.candidates(precision):
        with contextlib.suppress(build.UnavailableError):  # said where it is shown
            there = library.load(candidate.path)
            if there is not None:
                library.faults(there, again=True)
    library.find.cache_clear()


def _build(precisions: tuple[str, ...]) -> list[str]:
    """For each precision the best library that gives the known answers; in words, those for which there is none."""
    from posenc.backends.native import build, library, processor

    folder = library.cache()
    if library.executes_nothing(folder):
        raise build.UnavailableError(f"{folder} is mounted noexec: XDG_CACHE_HOME may name another cache")
    levels = {precision: [processor.NATIVE, *processor.runnable(precision)] for precision in precisions}
    outcomes = build.build_best(folder, levels, processor.identity(), library.DAYS, _fault)
    built = {one.precision for one in outcomes if one.reason is None}
    for one in outcomes:
        if one.reason is not None:
            print(f"{one.precision}, {one.level}: not used: {one.reason}")
    return [f"{one.precision}, {one.level}: {one.reason}" for one in outcomes if one.precision not in built]


def _fault(precision: str, level: "Level") -> str | None:
    """Why the library that was built is not used."""
    from posenc.backends.native import build, library

    path = next(x.path for x in reversed(library.candidates(precision)) if x.level == level.name)  # that in the cache
    try:
        found = library.load(path)
        wrong = () if found is None else library.faults(found)
    except build.UnavailableError as error:
        return str(error)
    return f"wrong answers ({library.in_short(wrong)})" if wrong else None
