"""Bugs of the cache: something that a plan depends on is forgotten, or what is old is used."""

from collections.abc import Callable
from functools import partial

import torch

from posenc.backends import blockwise, plan
from posenc.encoding import staleness
from posenc.encoding.encoding import Encoding
from tests.backends import test_bound, test_plan
from tests.mutants import Line, Mutant, lines


def anew(change: str) -> Callable[[], None]:
    return partial(test_plan.test_a_plan_is_made_anew_for_another, change)


FORGOTTEN = [
    ("shape", "x.shape, ", "", "batch"),
    ("strides", "x.stride(), ", "", "strides"),
    ("dtype", "x.dtype, ", "", "dtype"),
    ("gradient", ", x.requires_grad)", ")", "a gradient"),
    ("options", "        options,\n", "", "visibility"),
    ("gradient mode", "        torch.is_grad_enabled(),\n", "", "no gradients"),
    ("autocast", "        autocast,\n", "", "autocast"),
    ("determinism", "        torch.are_deterministic_algorithms_enabled(),\n", "", "deterministic"),
    ("threads", "        torch.get_num_threads(),\n", "", "threads"),
    ("mask", "*others]", "*others[1:]]", "a mask"),
    ("sinks", "*others]", "others[0], others[2]]", "sinks"),
]
T5_OF_OTHER_DATA = partial(test_bound.test_what_is_changed_is_read, test_bound.OTHERS[3])
ROPE_OF_ANOTHER_BASE = partial(test_bound.test_what_is_changed_is_read, test_bound.OTHER_ATTRIBUTES[0])

SHARED = [
    ("forget a parameter", "not is_all or ", "one in an object"),
    ("repeat a gradient", " or _reached(before, read)[0]", "one from the other"),
]

MUTANTS = (
    *(
        Line(
            f"tables that layers share {what}",
            blockwise,
            "repeatable",
            (this, ""),
            partial(
                test_plan.test_layers_that_share_tables_have_the_gradients_of_layers_that_do_not, scheme, "at once"
            ),
        )
        for what, this, scheme in SHARED
    ),
    *lines(
        partial(
            test_bound.test_an_encoding_keeps_its_values_and_is_refused_when_they_are_old,
            test_bound.CHANGES["one number"],
            torch.no_grad,
        ),
        ("half of the parameters are compared", staleness, "_is_same", "p.nbytes", "p.nbytes // 2"),
    ),
    *(
        Line(f"a plan forgets the {what}", plan, "signature_of", (this, that), anew(change))
        for what, this, that, change in FORGOTTEN
    ),
    *lines(
        test_plan.test_an_option_of_another_type_is_checked_where_a_plan_is_kept,
        ("a plan forgets the types of options", plan, "signature_of", "        kinds,\n", ""),
    ),
    *lines(
        test_plan.test_a_plan_is_made_anew_where_other_parameters_learn,
        ("a plan forgets which parameters learn", plan, "signature_of", "        learns,\n", ""),
    ),
    Mutant(
        "an encoding is used whose parameters have changed since",
        Encoding,
        "_check_usable",
        lambda self, query, key: None,
        partial(
            test_bound.test_an_encoding_keeps_its_values_and_is_refused_when_they_are_old,
            test_bound.through_numpy,
            torch.no_grad,
        ),
    ),
    Mutant("tables of old parameters are used", plan.Plan, "renew", lambda self: None, T5_OF_OTHER_DATA),
    Line(
        "a scheme is not bound anew when an attribute has changed",
        plan,
        "_stored_encoding",
        (" or not all(map(is_, state, latest.state))", ""),
        ROPE_OF_ANOTHER_BASE,
    ),
    Line(
        "plans are never forgotten",
        plan,
        "make_plan",
        ("if len(encoding.plans) >= MAX_ENTRIES:", "if False:"),
        test_plan.test_plans_are_bounded,
    ),
    Line(
        "encodings without a scheme are never forgotten",
        plan,
        "cached",
        ("if len(store) >= MAX_ENTRIES:", "if False:"),
        test_plan.test_calls_of_changing_lengths_leave_nothing_behind,
    ),
)
