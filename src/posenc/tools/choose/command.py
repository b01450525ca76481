"""``posenc choose``: recommends a scheme by five questions. torch is not imported."""

import argparse
import sys
from collections.abc import Sequence

from posenc.tools.choose import questions as asking
from posenc.tools.choose.questions import Answer, Question
from posenc.tools.choose.said import as_json, as_text
from posenc.tools.kit.command import failed


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "choose",
        help="recommend a scheme by five questions, with the evidence",
        description="Asks up to five questions, skipping those that do not change the answer. Prints the scheme to "
        "start with, what to compare it with, the evidence, and what is not known. Enter takes the first option, b "
        "goes back, q quits. A question answered by an option below is not asked.",
    )
    parser.set_defaults(run=run)
    for question in asking.questions():
        words = "; ".join(f"{option.value}: {option.label}" for option in question.options)
        parser.add_argument(
            f"--{question.name}", choices=question.values, help=f"{question.asks} {words}".replace("%", "%%")
        )
    parser.add_argument("--json", action="store_true", help="print the answer as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Asks the open questions and prints the answer. 0: done, or ended by q; 2: stdin is not a terminal."""
    asked, found = asking.questions(), asking.answers()
    given = {q.name: value for q in asked if (value := getattr(arguments, q.name)) is not None}
    missing = asking.open_questions(given, asked, found)
    if missing and not sys.stdin.isatty():
        options = ", ".join(f"--{q.name} {'|'.join(q.values)}" for q in missing)
        return failed(f"stdin is not a terminal: give {options} (see posenc choose --help)", code=2)
    done = _ask(given, asked, found)
    given = {q.name: given[q.name] for q in asked if q.name in given}  # in order, whichever were given and asked
    if done:
        answer = asking.answer_to(given, found)
        print(as_json(answer, given) if arguments.json else as_text(answer, given))
    else:
        so_far = " ".join(f"--{name} {value}" for name, value in given.items())
        print(f"So far: posenc choose {so_far}" if so_far else "Nothing was answered.", file=sys.stderr)
    return 0


def _ask(given: dict[str, str], asked: Sequence[Question], found: Sequence[Answer]) -> bool:
    """Adds answers to ``given`` until no question is open; False if q or the end of the input ends it.

    Questions go to stderr, so that stdout has only the answer.
    """
    answered: list[str] = []
    while still := asking.open_questions(given, asked, found):
        question = still[0]
        said = _option(question, is_first=not answered)
        if said == "q":
            return False
        if said == "b":
            del given[answered.pop()]
        else:
            given[question.name] = said
            answered.append(question.name)
    return True


def _option(question: Question, *, is_first: bool) -> str:
    """The value that is chosen, or "b" or "q"."""
    lines = [f"\n{question.asks}", f"  {question.note}"]
    lines += [f"  {n}  {option.label}" for n, option in enumerate(question.options, 1)]
    print("\n".join(lines), file=sys.stderr)
    while True:
        print("[1] ", end="", file=sys.stderr, flush=True)
        line = sys.stdin.readline()
        said = line.strip().lower()
        if not line or said == "q":
            return "q"
        if said == "b" and not is_first:
            return "b"
        if said in ("", *(str(n) for n in range(1, len(question.options) + 1))):
            return question.options[int(said or 1) - 1].value
        back = "there is nothing to go back to" if said == "b" else f"got {said!r}"
        print(f"must be 1 to {len(question.options)}, Enter for 1, b or q: {back}", file=sys.stderr)
