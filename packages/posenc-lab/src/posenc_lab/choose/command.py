"""``posenc choose``: recommends a scheme by five questions. torch is not imported."""

import argparse

from posenc.command.options import failed
from posenc_lab.choose import questions as asking
from posenc_lab.choose.presentation import as_cases, as_json, as_questions, as_text


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "choose",
        help="recommend a scheme by five questions, with the evidence",
        description="Five questions lead to a scheme, of which some do not matter for all. Prints the scheme to start "
        "with, what to compare it with, the evidence, and what is not known; while questions are open, the questions, "
        "and with some answers the cases that are left, each with the command that leads to it.",
    )
    parser.set_defaults(run=run)
    for question in asking.questions():
        words = "; ".join(f"{option.value}: {option.label}" for option in question.options)
        parser.add_argument(
            f"--{question.name}", choices=question.values, help=f"{question.asks} {words}".replace("%", "%%")
        )
    parser.add_argument("--cases", action="store_true", help="list the cases that are left, also without any answer")
    parser.add_argument("--json", action="store_true", help="print the answer as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Prints the answer, or the cases that are left. 0: done; 2: no answer that JSON could have."""
    asked, found = asking.questions(), asking.answers()
    given = {q.name: value for q in asked if (value := getattr(arguments, q.name)) is not None}
    still = asking.open_questions(given, asked, found)
    if still and arguments.json:
        options = ", ".join(f"--{q.name} {'|'.join(q.values)}" for q in still)
        return failed(f"--json needs one answer: give {options} (see posenc choose --help)", code=2)
    if still:
        parts = [] if arguments.cases and not given else [as_questions(given, still)]
        if given or arguments.cases:
            parts.append(as_cases([answer for answer in found if answer.fits(given)], given))
        print("\n\n".join(parts))
        return 0
    answer = asking.answer_to(given, found)
    print(as_json(answer, given) if arguments.json else as_text(answer, given))
    return 0
