"""What is known of findings in packages for text: local-attention, keras-hub, fair-esm, conformer, axial positions."""

from field.kinds import LIMIT, MEANT, TIDY, WRONG, Note

NOTES_TEXT = (
    # -- local-attention -----------------------------------------------------------------------------------------------
    Note(
        "of_local_attention",
        (8,),
        "local-attention: a cache keeps rotated keys, which are rotated again",
        WRONG,
        "A step with a cache rotates all keys anew, and keeps what came of it in place of the keys as they were. From "
        "the second step on keys are rotated twice, then three times, so that `generate` of a `LocalTransformer` gives "
        "other tokens with a cache (the default) than without.",
        "`local_attention/transformer.py`, `LocalMHA.forward`, lines 152 and 169",
        ("decoder", "decoder_xpos", "transformer"),
    ),
    Note(
        "of_local_attention",
        (8,),
        "local-attention: a cache forgets the scale of qk_rmsnorm",
        WRONG,
        "Normed queries and keys are multiplied by `qk_scale`, 8, all at once; a step with a cache multiplies by "
        "1/√dim_head whatever was asked for.",
        "`local_attention/transformer.py`, `LocalMHA.forward`, line 134",
        ("decoder_normed",),
    ),
    Note(
        "of_local_attention",
        (8,),
        "local-attention: without exact windows a cache loses one at the end of each",
        WRONG,
        "A step keeps the looked-back windows and the tokens of its own, counted as the length modulo the window: for "
        "the last token of a window that is 0, so that it sees one window less than all at once.",
        "`local_attention/transformer.py`, `LocalMHA.forward`, line 145",
        ("decoder_blocks",),
    ),
    Note(
        "of_local_attention",
        (5, 7, 8, 11, 13, 19),
        "local-attention: autopad without a mask adds keys",
        WRONG,
        "Zeros fill the last window, and without a mask nothing hides them from tokens that look forward.",
        "`local_attention/local_attention.py`, lines 126 and 208",
        ("attention", "encoder"),
        ("with a mask alone", "what it holds", "alone", "rows of other lengths", "values all the same"),
    ),
    Note(
        "of_local_attention",
        (19,),
        "local-attention: an exact window has one key more",
        WRONG,
        "The documentation says that with `exact_windowsize` each query sees at most as many keys as the window has, "
        "in the causal setting. It sees itself and `window_size · look_backward` before it.",
        "`local_attention/local_attention.py`, line 194",
        ("attention_causal",),
        ("window",),
    ),
    Note(
        "of_local_attention",
        (7,),
        "local-attention: padding inside a row is a distance",
        MEANT,
        "Rotations and windows go by the index, and `mask` moves no positions.",
        "",
        trials=("with a mask alone",),
    ),
    Note(
        "of_local_attention",
        (1, 2),
        "local-attention: rotations do not run in half precision",
        LIMIT,
        "In place of xPos' scale stands a one in float32, which makes queries and keys float32, while values stay as "
        "they were. Under autocast around a float32 module it runs. The dynamic bias is made in float32 for layers "
        "that were cast.",
        "`local_attention/rotary.py`, line 42; `local_attention/transformer.py`, line 227",
    ),
    # -- keras-hub -----------------------------------------------------------------------------------------------------
    Note(
        "of_keras_hub",
        (8,),
        "keras-hub: GPT-NeoX decodes every token as the first",
        WRONG,
        "The query of a step with a cache is rotated as if it stood at position 0.",
        "`models/gpt_neo_x/gpt_neo_x_attention.py`, line 208",
        ("gpt_neo_x",),
    ),
    Note(
        "of_keras_hub",
        (7, 19),
        "keras-hub: XLNet mixes the relative positions of a batch",
        WRONG,
        "Sinusoids of distances and the padding mask are reshaped where they ought to be transposed, so that a row "
        "gets positions and padding of others.",
        "`models/xlnet/xlnet_content_and_query_embedding.py`, line 102; `models/xlnet/xlnet_encoder.py`, line 272",
        ("xlnet",),
    ),
    Note(
        "of_keras_hub",
        (1, 14),
        'keras-hub: rope_type="dynamic" slows all frequencies',
        WRONG,
        "factor^(dim/(dim - 2)) is to multiply the base; it divides every frequency.",
        "`layers/modeling/rotary_embedding.py`, lines 243-250",
        ("rotary_dynamic",),
    ),
    Note(
        "of_keras_hub",
        (14,),
        "keras-hub: Llama's position_scaling_factor does nothing",
        WRONG,
        "It is handed to the parent, whose computation of frequencies is replaced by one that does not look at it.",
        "`models/llama/llama_rotary_embedding.py`, `_get_inverse_freq`",
        ("rotary_llama",),
        ("options count",),
    ),
    Note(
        "of_keras_hub",
        (14,),
        "keras-hub: an unknown rope_type is taken for none",
        LIMIT,
        "Of what is not linear, dynamic or yarn, frequencies are left as they are, and so is `scaling_factor`.",
        "`layers/modeling/rotary_embedding.py`, line 253",
        ("rotary",),
    ),
    Note(
        "of_keras_hub",
        (1, 2),
        "keras-hub: positions in the compute dtype",
        WRONG,
        "In bfloat16 positions past 256 fall together. `RotaryEmbedding` counts in float32.",
        "`layers/modeling/sine_position_encoding.py`, line 73; `models/roformer_v2/roformer_v2_attention.py`, line 51",
        ("sines", "rotary_roformer"),
    ),
    Note(
        "of_keras_hub",
        (7, 8),
        "keras-hub: padding inside a row is a distance",
        MEANT,
        "`padding_mask` moves no positions.",
        "",
        ("deberta", "learned"),
        ("with a mask alone", "ragged, with a mask alone"),
    ),
    Note(
        "of_keras_hub",
        (19,),
        "keras-hub: what is past the end of a table",
        LIMIT,
        "Position -1 is its last row. Past the end, on torch, there is an error of the index; where a single row of "
        "the table is left for several tokens, it is given to all.",
        "`layers/modeling/position_embedding.py`, lines 114 and 118",
        ("learned",),
    ),
    Note(
        "of_keras_hub",
        (3,),
        "keras-hub: weights that are loaded by assignment are not those that it computes with",
        LIMIT,
        "A layer computes with variables of Keras, and names their tensors to PyTorch as parameters. "
        "`load_state_dict(assign=True)` puts others in the place of the parameters alone. Without `assign` it works.",
        "`keras/src/backend/torch/layer.py`, lines 24 and 60",
        trials=("loaded by assignment",),
    ),
    Note(
        "of_keras_hub",
        (5,),
        "keras-hub: a layer notes that it was called",
        TIDY,
        "Keras sets `_called` on every layer at its first call.",
        "",
        trials=("what is written",),
    ),
    # -- fair-esm ------------------------------------------------------------------------------------------------------
    Note(
        "of_fair_esm",
        (1, 2),
        "fair-esm: ESM-2's positions in half precision",
        WRONG,
        "Positions are made in the dtype of the frequencies, a buffer that is cast with the model: past 256 they fall "
        "together in bfloat16, and past 2,048 in half.",
        "`esm/rotary_embedding.py`, line 54",
        ("rotary", "esm2"),
    ),
    Note(
        "of_fair_esm",
        (5,),
        "fair-esm: after a call under inference mode, no training on that length",
        LIMIT,
        "The table that was kept is one that autograd refuses. A sequence of another length makes a new one.",
        "`esm/rotary_embedding.py`, line 52",
        trials=("inference, then training",),
    ),
    Note(
        "of_fair_esm",
        (4,),
        "fair-esm: ESM-2 saves its frequencies",
        TIDY,
        "`inv_freq` is a persistent buffer, so what a checkpoint holds overrules the configuration.",
        "`esm/rotary_embedding.py`, line 41",
        trials=("what is saved",),
    ),
    Note(
        "of_fair_esm",
        (7,),
        "fair-esm: padding is a distance",
        MEANT,
        "Rotations go by the index, and so do the sinusoids of ESM-1, of which left padding is therefore a matter too. "
        "The batch converter pads on the right. The learned positions of ESM-1b count tokens alone.",
        "`esm/rotary_embedding.py`, line 54; `esm/modules.py`, line 280",
        trials=("with a mask alone",),
    ),
    # -- conformer -----------------------------------------------------------------------------------------------------
    Note(
        "of_conformer",
        (7,),
        "conformer: the convolution sees what the mask hides",
        WRONG,
        "`ConformerBlock` gives its mask to attention alone: tokens within half a kernel of padding come out otherwise "
        "than without it.",
        "`conformer/conformer.py`, line 207",
        ("block",),
    ),
    Note(
        "of_conformer",
        (7,),
        "conformer: padding inside a row is a distance",
        MEANT,
        "Shaw's distances go by the index.",
        "`conformer/conformer.py`, line 105",
        trials=("with a mask alone",),
    ),
    # -- axial-positional-embedding ------------------------------------------------------------------------------------
    Note(
        "of_axial_positional_embedding",
        (19, 20),
        "axial-positional-embedding: images of another shape get other places",
        WRONG,
        "An image is flattened, and given the first vectors of the axial shape: where its width is not that of the "
        "shape, rows run into one another, and nothing says so.",
        "`axial_positional_embedding/axial_positional_embedding.py`, line 81",
        ("image",),
    ),
    Note(
        "of_axial_positional_embedding",
        (1, 2),
        "axial-positional-embedding: continuous places after a cast to bfloat16",
        WRONG,
        "Places along an axis are made in the dtype of the weights: past 256 they fall together.",
        "`axial_positional_embedding/continuous_axial_positional_embedding.py`, line 154",
        ("continuous",),
    ),
)
