"""``posenc kernel``: lists, tests and builds libraries of the CPU kernel, and races backends on a GPU. torch is
imported only when it runs."""

import argparse
import contextlib
import sys
from collections import Counter
from typing import TYPE_CHECKING

from posenc.command.options import failed

if TYPE_CHECKING:
    from posenc.backends.native.build import Level
    from posenc.backends.races import Lap


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    kernel = commands.add_parser(
        "kernel",
        help="list, test and build the CPU kernel, and race backends on a GPU",
        description="Lists the libraries of the CPU kernel for this processor, which one each precision uses, and "
        "its races against PyTorch's attention, and those of backends on a GPU. The exit code is 1 if a precision has "
        "none, a test fails, none could be built, or there is no GPU to race on.",
    )
    kernel.set_defaults(run=run)
    what = kernel.add_mutually_exclusive_group()
    what.add_argument("--races", action="store_true", help="list every race, by tokens")
    what.add_argument("--test", action="store_true", help="test every library against the known answers")
    what.add_argument(
        "--build",
        action="store_true",
        help="build for this processor, with the compiler in CXX or the one found, into the cache; if the answers are "
        "wrong, the best level whose answers are right",
    )
    what.add_argument(
        "--tune",
        nargs="*",
        metavar="WORDS",
        help="race the backends of a GPU on each kind of call, or on those with all these words, such as bfloat16 "
        "'64 channels' training; what was raced is kept, and the same command goes on after an interruption",
    )


def run(arguments: argparse.Namespace) -> int:
    """Prints the libraries, or races on a GPU. Returns 1 if a precision has none, one is wrong, none could be built, or
    there is no GPU to race on; else 0."""
    if arguments.tune is not None:
        return _tune(arguments.tune)
    import torch

    from posenc.backends import races
    from posenc.backends.native import build, library

    precisions = tuple(library.REALS.values())
    of_all, of_this = ([level.name for level in binary] for binary in (build.levels(), build.runnable()))
    print(f"processor  {build.processor_name()}")
    print(f"levels     {', '.join(of_this)} (of {', '.join(of_all)} for {build.machine()})")
    if arguments.build:
        try:
            reasons = _build(precisions)
        except build.UnavailableError as error:
            return failed(f"the kernel is not built: {error}")
        library.find.cache_clear()
    else:
        reasons = []
    for precision in precisions:
        reasons += _show(precision, arguments.test, arguments.races)
    gpu = races.gpu_name(torch.device("cuda")) if torch.cuda.is_available() else None
    of_gpu = races.stored(gpu) if gpu is not None else {}
    if of_gpu:
        first = Counter(lap.fastest for race in of_gpu.values() for lap in race)
        print(f"\n{gpu}\n  races: fastest {', '.join(f'{name} in {n}' for name, n in first.most_common())}")
    for kind, race in of_gpu.items() if arguments.races else ():
        print("\n      ".join((f"    {kind}", *races.comparisons(race))))
    return failed("; ".join(reasons)) if reasons else 0


def _show(precision: str, is_test: bool, lists_races: bool) -> list[str]:
    """Prints the libraries of a precision and their races, and returns what is wrong."""
    from posenc.backends import races
    from posenc.backends.native import build, library

    print(f"\n{precision}")
    reasons = []
    for candidate in library.candidates(precision) if is_test else ():
        with contextlib.suppress(build.UnavailableError):  # printed below
            binary = library.load(candidate.path)
            if binary is not None:
                library.faults(binary, recompute=True)  # and stores the results
    if is_test:
        library.find.cache_clear()
    chosen = library.find(precision)
    is_candidate_tested = True  # the candidates before the one that is used were tested
    for candidate in library.candidates(precision):
        try:
            binary = library.load(candidate.path)
            if binary is None:
                continue
            wrong = library.faults(binary) if is_test or is_candidate_tested else ()
        except build.UnavailableError as error:
            print(f"  {candidate.level:9} not used: {error}")
            continue
        is_chosen = not isinstance(chosen, build.UnavailableError) and binary.path == chosen.path
        if wrong:
            status = f"not used: wrong answers ({'; '.join(wrong)})"
            reasons += [f"{binary.path.name} gives wrong answers"] if is_test else []
        else:
            status = "used" if is_chosen else "available"
            status += ", gives the known answers" if is_test or is_chosen else ""
        print(f"  {candidate.level:9} {status}")
        print(f"            {binary.path}")
        print(f"            by {binary.record.compiler}: {binary.record.command}")
        is_candidate_tested &= not is_chosen
    of_races = races.stored(precision)
    if of_races:
        clear = [_ratio(lap) for laps in of_races.values() for lap in laps if lap.is_clear]
        said = f", {min(clear):.2f} to {max(clear):.2f} of its time" if clear else ""
        faster = sum(ratio < 1 for ratio in clear)
        print(f"  races without score terms: faster than PyTorch's attention in {faster} of {len(clear)}{said}")
    elif lists_races:
        converts = precision == "bfloat16" and not library.multiplies_bfloat16()
        why = "bfloat16 is converted here, and its races are float's" if converts else "first calls of a kind run one"
        print(f"  races: none yet; {why}")
    for kind, laps in of_races.items() if lists_races else ():
        ratios = (f"{lap.tokens}: {_ratio(lap):.2f}{'' if lap.is_clear else ' (too noisy)'}" for lap in laps)
        print(f"    {kind}   {', '.join(ratios)}")
    if isinstance(chosen, build.UnavailableError):
        print(f"  none is used: {chosen}")
        reasons += [] if library.is_disabled() else [f"{precision} has no library"]
    return reasons


def _ratio(lap: "Lap") -> float:
    return lap.seconds["native"] / lap.seconds["sdpa"]


def _tune(words: list[str]) -> int:
    """Runs the races on the GPU that were not run. Returns 1 without one."""
    import torch

    from posenc.backends import races
    from posenc.command import tuning
    from posenc.command.progress import for_stream

    if races.is_off() or not torch.cuda.is_available():
        why = f"{races.SWITCH} turns them off" if races.is_off() else "torch sees no GPU, and a CPU's are run by calls"
        return failed(f"there are no races to run: {why}")
    device = torch.device("cuda")
    with for_stream(sys.stderr) as progress:
        tuning.tune(words, races.gpu_name(device), tuning.benchmark_on(device, progress.say), progress)
    return 0


def _build(precisions: tuple[str, ...]) -> list[str]:
    """Builds the best correct library of each precision. Returns the reasons where there is none."""
    from posenc.backends.native import build, library

    folder = library.cache()
    if library.executes_nothing(folder):
        raise build.UnavailableError(f"{folder} is mounted noexec: XDG_CACHE_HOME may name another cache")
    levels = {precision: [build.NATIVE, *build.runnable(precision)] for precision in precisions}
    outcomes = build.build_best(folder, levels, build.machine_identity(), library.DAYS_IN_CACHE, _fault)
    built = {one.precision for one in outcomes if one.reason is None}
    for one in outcomes:
        if one.reason is not None:
            print(f"{one.precision}, {one.level}: not used: {one.reason}")
    return [f"{one.precision}, {one.level}: {one.reason}" for one in outcomes if one.precision not in built]


def _fault(precision: str, level: "Level") -> str | None:
    """Why the new library is not used, or None."""
    from posenc.backends.native import build, library

    path = next(x.path for x in reversed(library.candidates(precision)) if x.level == level.name)
    try:
        binary = library.load(path)
        wrong = () if binary is None else library.faults(binary)
    except build.UnavailableError as error:
        return str(error)
    return f"wrong answers ({library.summarize(wrong)})" if wrong else None
