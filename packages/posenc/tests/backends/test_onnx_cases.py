"""The cases that ONNX ships for its operator Attention, each with posenc."""

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from posenc import Positions, Softcap, attention, logits
from posenc.positions.positions import PADDING
from tests.rows import named

pytestmark = pytest.mark.more

CASES = 93
"""As many as onnx 1.23 has: posenc expresses all of them."""
TWO_UNITS = {torch.float16: 2**-9, torch.bfloat16: 2**-6}
"""The relative tolerance of half precision, in which ONNX's numbers are also rounded before and after the softmax. Its
own runner allows two units for bfloat16, and a single one, that of the case, for float16."""


@dataclass
class Case:
    name: str
    inputs: dict[str, Tensor]
    attributes: dict[str, Any]
    outputs: dict[str, Tensor]
    rtol: float
    atol: float


def cases() -> Iterator[Case]:
    """Without those of the graph that the operator is expanded into, which have the same numbers."""
    onnx = pytest.importorskip("onnx", reason="needs onnx, which the dev extra installs from Python 3.11 on")
    node = pytest.importorskip("onnx.backend.test.case.node")

    def tensor(x: Any) -> Tensor:  # PyTorch does not read NumPy's bfloat16
        return torch.from_numpy(x.astype("float32")).bfloat16() if x.dtype.name == "bfloat16" else torch.tensor(x)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of numbers that cases of other operators are made of
        found = node.collect_testcases("Attention")
    for each in found:
        (given, expected), (operator, *others) = each.data_sets[0], each.model.graph.node
        if not others and operator.op_type == "Attention":
            attributes = {a.name: onnx.helper.get_attribute_value(a) for a in operator.attribute}
            tensors = (
                dict(zip(filter(None, names), map(tensor, values), strict=True))
                for names, values in ((operator.input, given), (operator.output, expected))
            )
            inputs, outputs = tensors
            yield Case(each.name, inputs, attributes, outputs, each.rtol, each.atol)


def heads(x: Tensor, number: int | None) -> Tensor:
    return x if x.dim() == 4 else x.unflatten(2, (number, -1)).transpose(1, 2)


def positions(queries: int, keys: int, past: int, held: Tensor | None) -> tuple[Positions, Positions]:
    """The queries come after the past tokens, or are the last of those that each row of an external cache holds."""
    line = torch.arange(keys)[None]
    if held is None:
        return Positions.arange(queries, start=past), Positions.arange(keys)
    document = torch.where(line < held[:, None], 0, PADDING)
    asking = torch.arange(queries) + held[:, None] - queries
    return Positions(asking, order=asking), Positions(line.expand_as(document), document=document)


def computed(case: Case) -> dict[str, Tensor]:
    """What the case's outputs are by posenc."""
    given, how = case.inputs, case.attributes
    query = heads(given["Q"], how.get("q_num_heads"))
    key, value = (heads(given[name], how.get("kv_num_heads")) for name in ("K", "V"))
    past = 0
    if "past_key" in given:
        past = given["past_key"].size(2)
        key, value = torch.cat((given["past_key"], key), 2), torch.cat((given["past_value"], value), 2)
    mask = given.get("attn_mask")
    if mask is not None:  # what it does not reach is hidden
        hidden = False if mask.dtype == torch.bool else -torch.inf
        mask = torch.nn.functional.pad(mask, (0, key.size(2) - mask.size(-1)), value=hidden)
        mask = mask[None] if mask.dim() == 1 else mask
    asking, keys = positions(query.size(2), key.size(2), past, given.get("nonpad_kv_seqlen"))
    at = {"query_positions": asking, "key_positions": keys, "scale": how.get("scale")}
    cap = Softcap(how["softcap"]) if how.get("softcap") else None
    left, right = (how.get(f"{side}_window_size", -1) for side in ("left", "right"))
    see = {
        "attn_mask": mask,
        "is_causal": bool(how.get("is_causal")),
        "window": tuple(None if n < 0 else n for n in (left, right)),
    }
    out = attention(query, key, value, cap, **at, **see)
    mode, identity = how.get("qk_matmul_output_mode", 0), torch.eye(key.size(2), dtype=query.dtype)
    weights = attention(query, key, identity.expand(*key.shape[:2], -1, -1), cap, **at, **see)
    if mode == 3:
        scores = weights
    elif mode == 2 and mask is not None and mask.is_floating_point():
        later = keys.order[:, None] > asking.order[..., None]
        scores = (logits(query, key, cap, **at) + mask).masked_fill(later & see["is_causal"], -torch.inf)
    else:
        scores = logits(query, key, cap if mode == 1 else None, **at).to(query.dtype)
    out = out if given["Q"].dim() == 4 else out.transpose(1, 2).flatten(2)
    return {"Y": out, "present_key": key, "present_value": value, "qk_matmul_output": scores}


def test_every_case_of_the_operator_is_computed() -> None:
    seen = list(cases())
    assert len(seen) == CASES
    for case in seen:
        with named(case.name):
            found = computed(case)
            for name, expected in case.outputs.items():
                rtol = TWO_UNITS.get(expected.dtype, case.rtol)
                torch.testing.assert_close(found[name], expected, rtol=rtol, atol=case.atol)
