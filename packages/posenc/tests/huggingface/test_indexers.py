"""Indexers of sparse attention are those of transformers' models: what they choose, and what is read of them."""

import importlib
from typing import Any

import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("transformers")

from transformers import CONFIG_MAPPING

from posenc import Indexer, Positions, RoPE
from posenc.huggingface import scheme_from_config
from posenc.huggingface.indexers import indexer_of
from posenc.huggingface.questions import Asked
from tests.huggingface.configs import LATENT, SHARED, SIZES, YARN, rope
from tests.huggingface.tiny_models import disagreements

# So many heads that no two scores are exactly 0, of which torch.topk may take either.
OF_INDEXER = {"index_n_heads": 13, "index_head_dim": 20, "index_topk": 7}
DSA = SIZES | LATENT | SHARED | {"q_lora_rank": 8, "num_key_value_heads": 3, **OF_INDEXER}
FAMILIES: dict[str, tuple[dict[str, Any], str, int]] = {
    "deepseek_v32": ({"rope_parameters": YARN}, "half", 0),
    "glm_moe_dsa": (rope("default", 3e4) | {"index_topk_pattern": "FSFS"}, "interleaved", 0),
    "axk2": (rope("default", 3e4), "half", 0),
    "hy_v4": (rope("default", 3e4), "half", 8),
    "dots3_note_text": ({"layer_types": ["indexed_attention"] * 4}, "interleaved", 0),
}
"""Keys of tiny models, and the layout and the first channel of their indexers, by their code."""


def config_of(name: str, **more: Any) -> Any:
    return CONFIG_MAPPING[name](**DSA | FAMILIES[name][0] | more)


def parts_of(name: str, config: Any, kind: str = "Indexer") -> tuple[Any, Any]:
    """An indexer of the model with random weights, and its rotary module."""
    code = importlib.import_module(CONFIG_MAPPING[name].__module__.replace("configuration_", "modeling_"))
    found = [each for each in vars(code).values() if isinstance(each, type) and each.__module__ == code.__name__]
    [indexer] = [each for each in found if each.__name__.endswith(kind)]
    rotary = next(each for each in found if each.__name__.endswith("RotaryEmbedding") and "Vision" not in each.__name__)
    torch.manual_seed(0)
    made = indexer(config, 0).double()
    for parameter in made.parameters():
        nn.init.normal_(parameter, std=0.5)
    return made, rotary(config)


LINE = torch.arange(26)
AT = Positions.padded(torch.tensor([[0] * 4 + [1] * 22, [1] * 26], dtype=torch.bool))
SPACED = Positions((LINE * 7 + 5)[None], order=LINE[None])
PACKED = Positions.packed([9, 12, 5])


def seen(positions: Positions) -> Tensor:
    """The mask that transformers makes, (rows, 1, queries, keys)."""
    same = positions.document[:, :, None] == positions.document[:, None, :]
    same = same & (positions.document >= 0)[:, None] & (positions.order[:, None] <= positions.order[..., None])
    return same.expand(2, -1, -1)[:, None]


def choice(name: str, positions: Positions, layout: Any, first: int, offset: int = 0) -> tuple[Tensor, Tensor]:
    """What the model's indexer chooses, and posenc's from what its linear layers give."""
    config = config_of(name)
    indexer, rotary = parts_of(name, config)
    x, latent = (torch.randn(2, 26, n, dtype=torch.float64) for n in (36, 8))
    kind = {"layer_type": "indexed_attention"} if name == "dots3_note_text" else {}
    cos_sin = rotary(x, positions.coords, **kind)
    mask = seen(positions)
    chosen = indexer(x, latent, cos_sin, mask[:, 0], None).long()
    theirs = torch.zeros(2, 26, 26, dtype=torch.bool).scatter(-1, chosen, True)[:, None] & mask
    query = indexer.wq_b(latent).unflatten(-1, (13, 20)).transpose(1, 2)
    key, weights = indexer.k_norm(indexer.wk(x).to(indexer.k_norm.weight.dtype)), indexer.weights_proj(x)
    base = config.rope_parameters.get("indexed_attention", config.rope_parameters)["rope_theta"]
    scaling = YARN if name == "deepseek_v32" else None
    turn = RoPE(20, base, layout, 12, first_channel=first, scaling=scaling)
    moved = Positions(positions.coords + offset, order=positions.order, document=positions.document)
    options = {"query_positions": positions, "key_positions": moved, "is_causal": True}
    return theirs, Indexer(13, turn, 7)(query, key.double()[:, None], weights.double().mT, **options)


@pytest.mark.parametrize("positions", [AT, SPACED, PACKED], ids=["padded", "spaced", "packed"])
@pytest.mark.parametrize("name", FAMILIES)
def test_it_chooses_the_keys_that_the_model_chooses(name: str, positions: Positions) -> None:
    theirs, ours = choice(name, positions, *FAMILIES[name][1:])
    assert torch.equal(ours, theirs)
    assert ours.sum(-1).max() == 7


@pytest.mark.parametrize("name", FAMILIES)
def test_another_layout_or_slice_or_offset_chooses_others(name: str) -> None:
    _, layout, first = FAMILIES[name]
    other = "half" if layout == "interleaved" else "interleaved"
    for wrong in ((other, first), (layout, 8 - first), (layout, first, 1), (layout, first, -1)):
        theirs, ours = choice(name, SPACED, *wrong)
        assert not torch.equal(ours, theirs), wrong


QWEN4 = {"indexer_n_heads": 13, "indexer_kv_heads": 1, "indexer_head_dim": 20, "head_dim": 20}
QWEN4 |= {"indexer_budget": 6, "indexer_compress_ratio": 3} | rope("default", 1e4, partial_rotary_factor=0.6)


@pytest.mark.parametrize("positions", [AT, SPACED, PACKED], ids=["padded", "spaced", "packed"])
def test_in_blocks_it_chooses_the_keys_that_qwen4_chooses(positions: Positions) -> None:
    config = CONFIG_MAPPING["qwen4_exp_text"](**SIZES | QWEN4 | {"layer_types": ["full_attention"] * 4})
    indexer, _ = parts_of("qwen4_exp_text", config, "QSAIndexer")
    x = torch.randn(2, 26, 36, dtype=torch.float64)
    turn = RoPE(20, 1e4, rotary_dim=12)
    cos, sin = turn.tokens(positions, dtype=torch.float64).cos_sin()
    twice = [torch.cat((each, each), -1).expand(2, -1, -1) for each in (cos, sin)]
    theirs = indexer(x, twice, seen(positions), None)
    query, key = indexer.index_qk_proj(x).split([260, 20], -1)
    query = indexer.q_layernorm(query.unflatten(-1, (13, 20))).transpose(1, 2)
    made = Indexer(13, turn, 6, block=3, scale=20**-0.5)
    ours = made(query, key[:, None], query_positions=positions, is_causal=True, norm=indexer.k_layernorm)
    assert torch.equal(ours, theirs)


WORDS = {
    "deepseek_v32": "channels 0..11 of 20, half layout, YaRN(factor=4.0",
    "glm_moe_dsa": "layers 1, 3: RoPE, base 30000, channels 5..16 of 17, interleaved layout, whole text, the keys that "
    "the last indexer before it has chosen",
    "axk2": "layers 0-3: RoPE, base 30000, channels 5..16 of 17, interleaved layout, whole text, the 7 best keys of an "
    "indexer (heads: 13; RoPE, base 30000, channels 0..11 of 20, half layout)",
    "hy_v4": "RoPE, base 30000, channels 8..19 of 20, half layout)",
    "dots3_note_text": "channels 5..16 of 17, interleaved layout, whole text, the 7 best keys of an indexer (heads: 13"
    "; RoPE, base 80000000, channels 0..11 of 20, interleaved layout)",
}


@pytest.mark.parametrize("name", FAMILIES)
def test_a_configuration_says_what_its_indexer_does(name: str) -> None:
    _, layout, first = FAMILIES[name]
    config = config_of(name)
    said = scheme_from_config(config)
    assert WORDS[name] in repr(said)
    for layer in said.layers:
        if layer.indexer is not None:
            assert (layer.indexer.num_heads, layer.indexer.top_k, layer.indexer.block) == (13, 7, 1)
            turn: Any = layer.indexer.rotation
            assert (turn.layout, turn.channels) == (layout, range(first, first + 12))
    if name == "glm_moe_dsa":
        assert [layer.indexer_of for layer in said.layers] == [None, 0, None, 2]
    config.rope_interleave = said.schedule[0][0].layout == "interleaved"  # as DeepSeek-V3's says it
    assert disagreements(config, said) == []


def test_what_an_indexer_does_otherwise_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    config = config_of("axk2")
    code = importlib.import_module(type(config).__module__.replace("configuration_", "modeling_"))
    own = code.apply_rotary_pos_emb
    monkeypatch.setattr(code, "apply_rotary_pos_emb", lambda q, k, c, s, **n: own(q, k, c**2, s, **n))
    with pytest.raises(ValueError, match="in layer 0 an indexer of 13 heads of 20 channels does not turn 12 of them"):
        scheme_from_config(config)
    monkeypatch.setattr(code.AXK2Indexer, "forward", lambda self, x, *args, **n: torch.zeros(1, x.size(1), 3).int())
    with pytest.raises(ValueError, match="in layer 0 attention gets indices, which no indexer that is known gave"):
        scheme_from_config(config)


def test_another_rotation_than_the_indexer_has_is_seen() -> None:
    asked = Asked(config_of("axk2"))
    asked.reset(1)
    places = torch.tensor([0, 2, 9, 400])
    call = asked(places).calls[0]
    assert repr(indexer_of(RoPE(17, 3e4, rotary_dim=12), call, places).rotation) == repr(RoPE(20, 3e4, rotary_dim=12))
    for wrong in (RoPE(17, 3.1e4, rotary_dim=12), RoPE(17, 3e4, rotary_dim=10)):
        with pytest.raises(ValueError, match=r"does not turn 1. of them as attention does"):
            indexer_of(wrong, call, places)
