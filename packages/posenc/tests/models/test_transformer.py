"""The whole model: equal to its truth, blind across documents and padding, fair between schemes, clear when refused."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from posenc import NoPE, Positions, Scheme
from posenc.models import Decoder, Encoder
from posenc.schemes.catalog import entries_of
from tests import cases
from tests.cases import CASES, DIM, HEAD_DIM, HEADS, KV_HEADS
from tests.models import zoo
from tests.models.zoo import (
    CLOSE,
    GRADIENT_CLOSE,
    LAYERS,
    LEARNED,
    NAMES,
    PLACES,
    SCHEMES,
    SCHEMES_AND_WAYS,
    TOKENS,
    VOCAB,
    WAYS,
    Model,
)
from tests.oracles import attention

BOTH = pytest.mark.parametrize("kind", [Decoder, Encoder])


# -- the truth ---------------------------------------------------------------------------------------------------------


def normed(x: Tensor, norm: nn.LayerNorm) -> Tensor:
    x = x - x.mean(-1, keepdim=True)
    return x / (x.square().mean(-1, keepdim=True) + norm.eps).sqrt() * norm.weight + norm.bias


def truth(model: Any, case: cases.Case, ids: Tensor, positions: Positions, causal: bool, every_layer: bool) -> Tensor:
    """The forward pass written out, with the scheme and attention of the scalar-loop oracles."""
    wide = positions.expand(2)
    seen = attention.visible_from(*[wide.order.tolist()] * 2, *[wide.document.tolist()] * 2, causal)
    x = model.embedding.weight[ids]
    for layer, block in enumerate(model.trunk.blocks):
        held = model.trunk.schemes[layer if len(model.trunk.schemes) > 1 else 0]
        if layer == 0 or every_layer:
            x = case.add(x, positions, held)
        y = normed(x, block.attention_norm)
        query, key, value = (
            (y @ projection.weight.T).unflatten(-1, (-1, HEAD_DIM)).transpose(1, 2)
            for projection in (block.attention.query, block.attention.key, block.attention.value)
        )
        query, key = case.rotate(query, positions), case.rotate(key, positions)
        query, key = case.turn_query(query, positions, held), case.turn_key(key, positions, held)
        extra = case.pairs(held, query, key, wide, wide)
        out, _, _ = attention.attend(query, key, case.turn_values(value, wide, 1), visible=seen, **extra)
        out = case.turn_values(out, wide, -1)
        x = x + out.transpose(1, 2).flatten(2) @ block.attention.out.weight.T
        first, _, second = block.mlp
        hidden = normed(x, block.mlp_norm) @ first.weight.T + first.bias
        hidden = hidden * (1 + torch.erf(hidden / math.sqrt(2))) / 2
        x = x + hidden @ second.weight.T + second.bias
    x = normed(x, model.trunk.norm)
    return x @ model.head.weight.T if isinstance(model, Decoder) else x


def cut_features(model: Any, case: cases.Case) -> None:
    """Gives the projections for features the weights that cut them from queries and keys, as the oracle's case does."""
    for block in model.trunk.blocks:
        attend = block.attention
        rows = (  # as if every input channel were a token
            project.weight.unflatten(0, (-1, HEAD_DIM)).transpose(1, 2)[None] for project in (attend.query, attend.key)
        )
        for name, cut in case.projected(*rows).items():
            project = attend.features[name]
            project.weight.copy_(cut[0].transpose(1, 2).flatten(0, 1) if cut.dim() == 4 else cut[0])
            if project.bias is not None:
                project.bias.zero_()


@pytest.mark.parametrize(
    ("name", "kind"), zoo.in_turn([name for name, case in CASES.items() if case.axes == 1], [Decoder, Encoder])
)
@torch.no_grad()
def test_the_forward_pass_is_the_oracles(name: str, kind: type[Model]) -> None:
    """What the rest of this folder cannot see: that the model opens every door of its scheme, where it should."""
    case, ids = CASES[name], zoo.tokens(count=cases.TOKENS)
    is_packed = kind is Decoder and not case.one_document
    positions = cases.positions_cases()["packed" if is_packed else "left padded"]
    way = {"inject": "every_layer", "per_layer": True} if kind is Decoder else {}
    model = zoo.model(kind, case.scheme(), **way)
    cut_features(model, case)
    if kind is Encoder and model.trunk.schedule(PLACES["plain"]).looks_back:
        with pytest.raises(ValueError, match="encodes only keys up to the query"):
            model(ids, positions)
        return
    real = zoo.real(positions)
    expected = truth(model, case, ids, positions, kind is Decoder, every_layer=kind is Decoder)
    torch.testing.assert_close(model(ids, positions)[real], expected[real], **CLOSE)


# -- documents and padding ---------------------------------------------------------------------------------------------


def gradients(model: nn.Module, objective: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(objective, list(model.parameters()), materialize_grads=True))


@pytest.mark.parametrize(
    ("kind", "name", "place"),
    [
        (kind, *run)
        for first, kind in enumerate((Decoder, Encoder))
        for run in zoo.in_turn(SCHEMES[first::2], [place for place in PLACES if place != "plain"], first)
    ],
)
def test_every_document_is_what_it_is_alone(name: str, place: str, kind: type[Model]) -> None:
    """Packed or padded, in outputs and in the gradient of every parameter; and padding is finite."""
    model, ids, positions = zoo.model(zoo.kind_for(name, kind), name), zoo.tokens(), PLACES[place]
    out = model(ids, positions)
    weight = torch.randn_like(out)
    assert torch.isfinite(out).all()

    apart = torch.zeros((), dtype=torch.float64)
    for row, columns, alone in zoo.documents(positions):
        expected = model(ids[row, columns][None], alone)[0]
        torch.testing.assert_close(out[row, columns], expected, **CLOSE)
        apart = apart + (expected * weight[row, columns]).sum()
    real = zoo.real(positions)
    together = gradients(model, (out * weight)[real].sum())
    for mine, theirs in zip(together, gradients(model, apart), strict=True):
        torch.testing.assert_close(mine, theirs, **GRADIENT_CLOSE)
    # A loss that forgets to leave the padding out is a mistake, but not a reason for NaN.
    careless = gradients(model, (model(ids, positions) * weight).sum())
    assert all(torch.isfinite(gradient).all() for gradient in careless)


# -- the encoder -------------------------------------------------------------------------------------------------------


@BOTH
@torch.no_grad()
def test_positions_default_to_those_of_text(kind: type[Model]) -> None:
    model, ids = zoo.model(kind, "learned"), zoo.tokens()
    assert torch.equal(model(ids), model(ids, Positions.arange(TOKENS)))
    without = zoo.model(kind, NoPE())
    torch.manual_seed(1)
    default = kind(VOCAB, DIM, LAYERS, HEADS, KV_HEADS).double()
    default.load_state_dict(without.state_dict())
    assert torch.equal(default(ids), without(ids))


# -- parameters --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", LEARNED)
def test_layers_share_parameters_or_have_their_own(name: str) -> None:
    position = zoo.scheme(name)
    alone = sum(p.numel() for p in position.parameters())
    # What a layer projects for the scheme's features is the layer's own, whoever has the scheme.
    made = sum(f.size * (DIM + f.bias) for f in position.features.values())
    bare = LAYERS * made + sum(p.numel() for p in Decoder(VOCAB, DIM, LAYERS, HEADS, KV_HEADS).parameters())

    shared = Decoder(VOCAB, DIM, LAYERS, HEADS, KV_HEADS, position=position, inject="every_layer")
    assert list(shared.trunk.schemes) == [position]  # the one given, not a copy
    assert sum(p.numel() for p in shared.parameters()) == bare + alone

    each = Decoder(VOCAB, DIM, LAYERS, HEADS, KV_HEADS, position=position, inject="every_layer", per_layer=True)
    assert len(each.trunk.schemes) == LAYERS
    # Transformer-XL's two biases and DeBERTa's table are shared by the layers that project for themselves.
    common = {"transformer_xl": 2 * HEADS * HEAD_DIM, "deberta": 2 * zoo.LONGEST * DIM}.get(name, 0)
    assert sum(p.numel() for p in each.parameters()) == bare + LAYERS * (alone - common) + common
    # The trial schemes do not say how they are drawn, and some of the catalog are not.
    if name in set(NAMES) - {"cope", "query_scale"} and not all(
        "deterministic" in entry.laws for entry in entries_of(name)
    ):
        first, second = (list(held.parameters()) for held in each.trunk.schemes)
        drawn = [(a, b) for a, b in zip(first, second, strict=True) if a is not b and a.unique().numel() > 1]
        assert drawn
        assert not any((a == b).any() for a, b in drawn)


@pytest.mark.parametrize(
    ("name", "way", "kind"),
    [
        (*run, kind)
        for run, kind in zoo.in_turn([run for run in SCHEMES_AND_WAYS if run[0] in LEARNED], [Decoder, Encoder])
    ],
)
def test_a_gradient_reaches_every_parameter(name: str, way: str, kind: type[Model]) -> None:
    model = zoo.model(zoo.kind_for(name, kind), name, **WAYS[way])
    out = model(zoo.tokens(), PLACES["plain"])
    (out * torch.randn_like(out)).sum().backward()
    for key, parameter in model.named_parameters():
        assert parameter.grad is not None, key
        assert torch.isfinite(parameter.grad).all(), key
        assert parameter.grad.any(), key
    if name == "learned":
        for held in model.trunk.schemes:  # every position that occurs, and none besides
            assert (held.weight.grad != 0).any(-1).tolist() == [True] * TOKENS + [False] * (zoo.LONGEST - TOKENS)


# -- devices and precision ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "way"), zoo.one_way_each([run for run in SCHEMES_AND_WAYS if run[0] in NAMES]))
@torch.no_grad()
def test_construction_on_meta(name: str, way: str) -> None:
    """Weights come from a state_dict; what follows from the configuration needs none."""
    model, ids = zoo.model(Decoder, name, **WAYS[way]), zoo.tokens()
    with torch.device("meta"):
        empty = Decoder(VOCAB, DIM, LAYERS, HEADS, KV_HEADS, position=zoo.scheme(name), **WAYS[way]).double()
    assert all(parameter.is_meta for parameter in empty.parameters())
    filled = empty.to_empty(device="cpu")
    filled.load_state_dict(model.state_dict())
    assert torch.equal(filled(ids, PLACES["plain"]), model(ids, PLACES["plain"]))


def rms(x: Tensor) -> Tensor:
    return x.float().square().mean().sqrt()


# Of a kind of model, a way and a distance, every two meet in two of three schemes.
LOW = [(Decoder, "cast", True), (Encoder, "cast", False), (Decoder, "autocast", False), (Encoder, "autocast", True)]


@pytest.mark.parametrize(("name", "run"), zoo.in_turn([name for name in NAMES if name != "nope"], LOW), ids=str)
@torch.no_grad()
def test_bfloat16_loses_no_more_than_the_trunk_does(name: str, run: tuple[type[Model], str, bool]) -> None:
    """The budget is the error of the same trunk without positions, in bfloat16 against float32 with the same weights.
    Each door rounds at most once where the trunk rounds already (the sum, the turned query and key), so errors, which
    add in squares, grow by at most a factor of sqrt(2); 2 allows for chance. Far out too, at 2^20 where nothing ends
    before, since a phase taken in bfloat16 would be off there by thousands of radians."""
    kind, how, far = run
    kind = zoo.kind_for(name, kind)
    start = (
        (zoo.LONGEST if {"learned", "absolute_in_attention", "tupe"} & set(name.split("+")) else 2**20) - TOKENS
        if far
        else 0
    )
    positions = zoo.segmented(Positions.arange(TOKENS, start=start))
    ids = zoo.tokens()

    def error(position: Scheme) -> Tensor:
        torch.manual_seed(3)
        model = kind(VOCAB, DIM, LAYERS, HEADS, KV_HEADS, position=position).bfloat16()
        with torch.autocast("cpu", torch.bfloat16, enabled=how == "autocast"):
            low = (model.float() if how == "autocast" else model)(ids, positions)
        assert how == "autocast" or low.dtype == torch.bfloat16
        assert torch.isfinite(low).all()
        return rms(low.float() - model.float()(ids, positions))

    assert error(zoo.scheme(name, causal=kind is Decoder)) <= 2 * error(NoPE())


@pytest.mark.more
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "way", "place"), [("learned+segment", "per layer", "packed and padded"), ("shaw", "input", "left padded")]
)
def test_compiled_in_one_graph(name: str, way: str, place: str) -> None:
    """Forward and backward. With aot_eager: whether the graphs can be taken is posenc's matter, what a compiler makes
    of them is not, and takes a minute and a half."""
    torch._dynamo.reset()
    model, ids, positions = zoo.model(Decoder, name, **WAYS[way]), zoo.tokens(), PLACES[place]
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    out, expected = compiled(ids, positions), model(ids, positions)
    torch.testing.assert_close(out, expected, **CLOSE)
    weight = torch.randn_like(out)
    pairs = zip(gradients(model, (out * weight).sum()), gradients(model, (expected * weight).sum()), strict=True)
    for mine, theirs in pairs:
        torch.testing.assert_close(mine, theirs, **GRADIENT_CLOSE)
