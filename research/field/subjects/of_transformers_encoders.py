"""transformers: encoders with random weights, called by input_ids, attention_mask and position_ids.

Padding has the padding token, as a tokenizer gives it, and where a family counts positions from the token, positions
that are told count from where its own do.
"""

import transformers

from posenc_check import hugging_face
from posenc_check.transformers_calls import encode_by_index, encode_with_positions

SMALL = {
    "vocab_size": 64,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 2048,
    "pad_token_id": 48,
}


def build(family, **options):
    """The encoder of a family, with random weights."""
    return transformers.AutoModel.from_config(transformers.AutoConfig.for_model(family, **{**SMALL, **options}))


def build_either(family, attn_implementation="sdpa", **options):
    return build(family, attn_implementation=attn_implementation, **options)


def build_t5(**options):
    config = transformers.T5Config(
        vocab_size=64, d_model=32, d_kv=16, d_ff=48, num_layers=2, num_heads=2, pad_token_id=48, **options
    )
    return transformers.T5EncoderModel(config)


def build_xlnet(**options):
    return transformers.XLNetModel(
        transformers.XLNetConfig(vocab_size=64, d_model=32, n_layer=2, n_head=2, d_inner=48, pad_token_id=48, **options)
    )


def encode_from_padding(model, ids, positions=None, padding=None):
    """Positions count from one after the padding token."""
    if positions is not None:
        positions = positions + model.config.pad_token_id + 1
    return encode_with_positions(model, ids, positions, padding)


bert = hugging_face(build_either, options={"family": "bert"}, relative=False, max_positions=2048)
roberta = hugging_face(
    build_either, options={"family": "roberta"}, call=encode_from_padding, relative=False, max_positions=1999
)
esm = hugging_face(
    build_either,
    options={"family": "esm", "position_embedding_type": "rotary", "mask_token_id": 49, "token_dropout": False},
    relative=True,
)
modernbert = hugging_face(
    build_either,
    options={"family": "modernbert", "local_attention": 8, "cls_token_id": 49, "sep_token_id": 49},
    relative=True,
)
nomic_bert = hugging_face(build_either, options={"family": "nomic_bert"}, relative=True)
roformer = hugging_face(build, options={"family": "roformer", "embedding_size": 32}, max_positions=2048)
t5 = hugging_face(build_t5, relative=True)
deberta = hugging_face(
    build,
    options={
        "family": "deberta-v2",
        "relative_attention": True,
        "pos_att_type": ["p2c", "c2p"],
        "position_biased_input": False,
        "position_buckets": 8,
        "max_relative_positions": 16,
        "norm_rel_ebd": "layer_norm",
        "share_att_key": True,
    },
    call=encode_by_index,
    relative=True,
)
xlnet = hugging_face(build_xlnet, relative=True)

SUBJECTS = (
    ("BERT", bert),
    ("RoBERTa", roberta),
    ("ESM, rotary", esm),
    ("ModernBERT", modernbert),
    ("NomicBERT", nomic_bert),
    ("RoFormer", roformer),
    ("T5 encoder", t5),
    ("DeBERTa-v2", deberta),
    ("XLNet", xlnet),
)
