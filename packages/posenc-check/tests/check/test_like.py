"""What is said to be a scheme is held against it, and what could not be is said by name."""

import re
from dataclasses import replace

import pytest
import torch
from torch import nn

import posenc
from posenc_check import Bias, Rotary, Subject, check
from posenc_check.checks.published import between_buckets
from posenc_check.like import LayerSizes, adopt, scheme_of
from posenc_check.run import FINDING, NOT_APPLICABLE, PASSED
from tests.check.mutants.published import Buckets, add
from tests.check.small_subjects import rotate
from tests.rows import first_of

BUCKETS = Bias(build=Buckets, call=add, causal=True, like="t5")


def nothing() -> None:
    return None


def number() -> int:
    return 5


def base(base: float = 10_000.0) -> posenc.RoPE:
    return posenc.RoPE(16, base=base)


def kernel(made: None, scheme: nn.Module) -> None:
    raise KeyError("kernel")


@pytest.mark.parametrize(
    ("like", "said"),
    [
        (5, "like must be a scheme of posenc, the name of one such as "),
        (number, "that gives one, got 5"),
        ("rope2", "like must name one scheme of posenc.catalog(), got 'rope2' (did you mean 'rope'?)"),
        (
            "t5(size=3)",
            "that T5 has, num_heads, num_buckets, max_distance, bidirectional, axis, axes, factor; got 'size' in "
            "'t5(size=3)'",
        ),
        ("t5(3)", "with options as name=value, got 't5(3)'"),
        ("t5(num_buckets=)", "with options as name=value"),
        ("rope+alibi", "got 'rope+alibi': a function gives a sum of several"),
        (posenc.T5(12), "like must have as many heads as the subject, 3, got 12 of T5: say heads=12 and build so many"),
        (
            posenc.T5(3, 16),
            "T5 has weight of shape (16, 3), and build makes 0 of that shape (it has table.weight (32, 3))",
        ),
    ],
)
def test_what_cannot_be_meant_is_named(like: object, said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        check(replace(BUCKETS, like=like), checks=[21])


def test_a_name_takes_what_the_subject_claims() -> None:
    subject = Rotary(build=nothing, call=rotate, base=500.0, layout="interleaved", head_dim=8, like="rope")
    assert (
        scheme_of(subject, LayerSizes(3, 8)).extra_repr() == "8, base=500.0, layout='interleaved', rotary_dim=8, axes=1"
    )


def test_a_function_takes_the_options_it_names() -> None:
    subject = Rotary(build=nothing, call=rotate, options={"base": 70.0, "other": 1}, like=base)
    assert scheme_of(subject).base == 70.0
    assert scheme_of(subject, changed={"base": 30.0}).base == 30.0


def test_parameters_are_those_of_the_same_shape_however_they_lie() -> None:
    made = nn.ParameterDict({"table": torch.randn(1, 3, 32), "other": torch.randn(7)})
    scheme = adopt(posenc.T5(3).double(), replace(BUCKETS, like="t5"), made)
    assert torch.equal(scheme.get_parameter("weight").float(), made["table"][0].mT)


def test_parameters_of_one_shape_are_taken_by_name_or_in_order() -> None:
    named = nn.ParameterDict({"a": torch.ones(3), "p": torch.zeros(3)})
    ordered = nn.ParameterDict({"first": torch.ones(3), "second": torch.zeros(3)})
    by_name, in_order = (adopt(posenc.KERPLE(3), replace(BUCKETS, like="kerple"), made) for made in (named, ordered))
    assert (by_name.get_parameter("p")[0], in_order.get_parameter("p")[0]) == (0, 1)


def test_where_a_logarithm_in_float32_may_fall_in_either_bucket() -> None:
    away = torch.arange(300)
    assert away[between_buckets(posenc.T5(3, bidirectional=True), away)].tolist() == [16, 32, 64]
    assert away[between_buckets(posenc.T5(3), away)].tolist() == []


@pytest.mark.parametrize(
    ("subject", "status"),
    first_of(
        [
            (BUCKETS, PASSED),
            (replace(BUCKETS, options={"late": 1}), FINDING),
            (replace(BUCKETS, like=None), NOT_APPLICABLE),
        ]
    ),
    ids=["as said", "another", "nothing said"],
)
def test_it_ends_as_it_must(subject: Subject, status: str) -> None:
    assert check(subject, checks=[21]).results[0].status == status
