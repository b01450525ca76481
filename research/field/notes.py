"""What is known of each finding: if it is a mistake, a limitation, or what was meant, and where the code does it."""

from field.kinds import LIMIT, MEANT, TIDY, WRONG, Note
from field.notes_text import NOTES_TEXT
from field.notes_transformers import NOTES_TRANSFORMERS
from field.notes_vision import NOTES_VISION

NOTES = (
    *NOTES_TEXT,  # before what is said of all files
    *NOTES_VISION,
    *NOTES_TRANSFORMERS,
    # -- wrong results -------------------------------------------------------------------------------------------------
    Note(
        "of_equinox",
        (14, 5),
        "equinox: RotaryPositionalEmbedding forgets theta after the first module of its size",
        WRONG,
        "Cosines and sines are remembered for the whole process by embedding size and dtype, and not by `theta`: a "
        "module with another theta gets those of whichever was called first, unless it meets a longer row.",
        "`equinox/nn/_embedding.py`, line 222",
        script="equinox-theta.py",
    ),
    Note(
        "of_attn_gym",
        (19,),
        "attention-gym: ALiBi slopes for head counts that are no power of two",
        WRONG,
        "`generate_alibi_bias(H)` uses 2^(-8h/H) for every H. The paper it cites has that for powers of two; its "
        "code, which other libraries follow, takes for other counts the slopes of the next lower power and then "
        "every other one of twice as many.",
        "`attn_gym/mods/alibi.py`, line 18",
        script="attn-gym-alibi-slopes.py",
    ),
    Note(
        "of_self_attention_cv",
        (20,),
        "self-attention-cv: RelPosEmb2D never sees how many rows apart two patches are",
        WRONG,
        "Its two parts are both laid out as if they went along the columns: the part for rows comes out transposed, "
        "so that it goes by the column offset too, and by the query of another patch. Patches straight above one "
        "another look the same at every distance, and moving an image down changes the scores.",
        "`self_attention_cv/pos_embeddings/relative_embeddings_2D.py`, line 47, where `r_w` needs the other order",
        script="self-attention-cv-rows.py",
    ),
    Note(
        "of_self_attention_cv",
        (14,),
        "self-attention-cv: heads= makes no table per head",
        WRONG,
        "The documentation says that the table is shared if `heads` is None, and is per head otherwise. A number is "
        "taken for True, so it is always shared.",
        "`self_attention_cv/pos_embeddings/relative_embeddings_1D.py`, line 59",
        script="self-attention-cv-heads.py",
    ),
    Note(
        "of_rotary_embedding_torch",
        (8, 9),
        "rotary-embedding-torch: xPos with a cache disagrees with xPos without",
        WRONG,
        "`rotate_queries_with_cached_keys` scales queries around the middle of the new queries, and keys around the "
        "middle of all keys; `rotate_queries_and_keys` has one middle for both. The scores differ by a factor that "
        "grows with the length of the cache.",
        "`rotary_embedding_torch.py`, lines 204 and 205, and 261",
        ("xpos",),
        script="rotary-embedding-torch-xpos-cache.py",
    ),
    Note(
        "of_rotary_embedding_torch",
        (1, 2),
        "rotary-embedding-torch: positions in bfloat16 and float16",
        WRONG,
        "Positions are made in the dtype of the queries, and the frequencies are a parameter that is cast with the "
        "module. In bfloat16 positions past 256 fall together, with or without autocast. Keeping the module and the "
        "queries in float32 avoids it.",
        "`rotary_embedding_torch.py`, lines 131 and 184",
        script="rotary-embedding-torch-bfloat16.py",
    ),
    Note(
        "of_rotary_embedding_torch",
        (5,),
        "rotary-embedding-torch: a call in bfloat16 spoils later ones in float32",
        WRONG,
        "Phases are remembered up to the longest row so far, in whatever precision that row had; what is called "
        "afterwards in float32 gets them. `cache_if_possible=False` avoids it.",
        "`rotary_embedding_torch.py`, lines 336-348",
        trials=("calls between",),
        script="rotary-embedding-torch-remembered.py",
    ),
    Note(
        "of_positional_encodings",
        (5,),
        "positional-encodings: a call in bfloat16 spoils later ones of the same shape",
        WRONG,
        "What was last given is remembered by the shape of the input alone. The same shape in float32 gets the "
        "sinusoids that were made for bfloat16.",
        "`positional_encodings/torch_encodings.py`, line 35",
        trials=("calls between",),
        script="positional-encodings-remembered.py",
    ),
    Note(
        "of_x_transformers",
        (7, 8, 19),
        "x-transformers: scaled sinusoidal positions cannot be left-padded",
        WRONG,
        "`seq_start_pos` makes positions one row for each sequence, and the module multiplies them as if they were "
        "one row for all: an error, so that `generate` with `prompt_lens` fails with `scaled_sinu_pos_emb=True`.",
        "`x_transformers.py`, line 470",
        ("decoder_sinusoidal",),
        script="x-transformers-sinusoidal-left-padding.py",
    ),
    Note(
        "of_torchtune",
        (19,),
        "torchtune: position -1 is answered",
        LIMIT,
        "`input_pos` indexes a table, so that -1 is its last row: the token is rotated as if it stood at max_seq_len "
        "- 1. Past the end there is an error of the index, where the documentation promises that the table is "
        "recomputed.",
        "`torchtune/modules/position_embeddings.py`, lines 29 and 96",
    ),
    # -- low precision -------------------------------------------------------------------------------------------------
    Note(
        "of_x_transformers",
        (1, 2),
        "x-transformers: positions after a cast to bfloat16",
        WRONG,
        "The frequencies are a buffer that is cast with the model, and positions are made in their dtype: in "
        "`model.bfloat16()` positions past 256 fall together. Autocast around a float32 model is handled, and safe.",
        "`x_transformers.py`, lines 852 and 879; sinusoids: 453 and 470",
        ("rotary", "rotary_partial", "decoder_rotary", "decoder_xpos", "encoder_rotary", "decoder_sinusoidal"),
        script="x-transformers-bfloat16.py",
    ),
    Note(
        "of_x_transformers",
        (1,),
        "x-transformers: the dynamic position bias does not run after a cast to bfloat16",
        LIMIT,
        "Distances are made in float32 and handed to layers that were cast. It says so with an error, and runs under "
        "autocast.",
        "`x_transformers.py`, line 617",
        ("dynamic", "decoder_dynamic"),
    ),
    Note(
        "of_positional_encodings",
        (1,),
        "positional-encodings: positions after a cast to bfloat16",
        WRONG,
        "Positions are made in the dtype of `inv_freq`, a buffer that is cast with the module: past 256 they fall "
        "together. Leaving the module in float32 avoids it.",
        "`positional_encodings/torch_encodings.py`, lines 24 and 41",
        script="positional-encodings-bfloat16.py",
    ),
    Note(
        "of_torchscale",
        (1,),
        "torchscale: phases after a cast to bfloat16",
        WRONG,
        "Phases are cast to the dtype of the scale, a buffer, before their sine is taken: in bfloat16 those of late "
        "tokens are off by radians.",
        "`torchscale/component/xpos_relative_position.py`, line 12",
        script="torchscale-bfloat16.py",
    ),
    Note(
        "of_labml_nn",
        (1,),
        "labml-nn: ALiBi of late tokens in bfloat16",
        LIMIT,
        "The bias counts from the first key rather than from the query, which a softmax does not see; but added to "
        "scores in bfloat16 it is a large number, whose last digits are lost where they matter, next to the query.",
        "`labml_nn/transformers/alibi/__init__.py`, lines 84-108 and 167",
    ),
    # -- casts and tables ----------------------------------------------------------------------------------------------
    Note(
        "of_x_transformers",
        (4,),
        "x-transformers: tables are rounded by a cast and do not recover",
        LIMIT,
        "Frequencies and scales of rotations, and the ALiBi bias that was made while the model was in bfloat16, are "
        "buffers that keep their rounding when the model is cast back.",
        "`x_transformers.py`, lines 453, 647, 852 and 864",
        trials=("cast and back",),
    ),
    Note(
        "of_x_transformers",
        (4,),
        "x-transformers: frequencies are saved",
        TIDY,
        "`inv_freq` and `scale` are persistent buffers, so what a checkpoint holds overrules the configuration.",
        "`x_transformers.py`, lines 852 and 864",
        trials=("what is saved",),
    ),
    Note(
        "of_rotary_embedding_torch",
        (4,),
        "rotary-embedding-torch: with xPos it cannot be copied or pickled",
        WRONG,
        "The constructor stores a `staticmethod` object on the module, which Python cannot pickle; `copy.deepcopy` "
        "and saving the whole module fail. Without xPos the constructor returns before that line.",
        "`rotary_embedding_torch.py`, line 165",
        ("xpos",),
        ("deepcopy", "pickle"),
        script="rotary-embedding-torch-xpos-copy.py",
    ),
    Note(
        "of_",
        (4,),
        "Tables that a cast to bfloat16 and back leaves rounded",
        LIMIT,
        "Frequencies, scales or tables of cosines are buffers (in rotary-embedding-torch what was computed in "
        "bfloat16 stays remembered), which are cast with the module and keep their rounding.",
        "`rotary_embedding_torch.py`, line 347; `torch_encodings.py`, line 24; torchscale's "
        "`xpos_relative_position.py`, line 45; torchtune's `position_embeddings.py`, lines 51 and 67; "
        "local-attention's `rotary.py`, lines 21 and 31; `esm/rotary_embedding.py`, line 41, and `esm/modules.py`, "
        "line 273; timm's `pos_embed_rel.py`, line 475; diffusers' `embeddings.py`, line 1144, and "
        "`transformer_wan.py`, line 392",
        trials=("cast and back",),
    ),
    Note(
        "of_",
        (4,),
        "Derived tables in the state_dict",
        TIDY,
        "What follows from the configuration is saved with the weights, so that a checkpoint overrules it.",
        "`positional_encodings/torch_encodings.py`, line 24; torchscale's `xpos_relative_position.py`, line 45; "
        "local-attention's `rotary.py`, line 21",
        trials=("what is saved",),
    ),
    Note(
        "of_torchtune",
        (3,),
        'torchtune: built on "meta", its tables must be made by hand',
        MEANT,
        "Its recipes call `rope_init()` on every module that was built without memory. Who does not knows no other "
        "way: the tables are buffers that no checkpoint holds.",
        "`torchtune/modules/position_embeddings.py`, line 46",
    ),
    Note(
        "of_",
        (3,),
        'Built on "meta", tables hold garbage',
        LIMIT,
        "Slopes, scales or frequencies are buffers that no checkpoint holds and nothing makes again after "
        "`to_empty()`.",
        "`x_transformers.py`, lines 453 and 646; `rotary_embedding_torch.py`, line 159; local-attention's "
        "`rotary.py`, line 31",
    ),
    Note(
        "of_x_transformers",
        (5,),
        "x-transformers: an ALiBi bias made under inference mode cannot be trained with",
        LIMIT,
        "The bias is remembered up to the longest row so far. What was remembered under `torch.inference_mode()` is "
        "handed out for training afterwards.",
        "`x_transformers.py`, line 699",
        trials=("inference, then training",),
    ),
    Note(
        "of_",
        (5,),
        "Tables that are kept from call to call",
        TIDY,
        "A call leaves a table, or its length, on the module. Where that makes an output wrong it stands above.",
        "`rotary_embedding_torch.py`, line 347; `x_transformers.py`, line 699; `torch_encodings.py`, line 46; "
        "labml-nn's `alibi/__init__.py`, line 162",
        trials=("what is written",),
    ),
    # -- padding -------------------------------------------------------------------------------------------------------
    Note(
        "of_x_transformers",
        (7, 8),
        "x-transformers: padding inside a row is a distance",
        MEANT,
        "`seq_start_pos` tells of left padding alone, and `mask` moves no positions. With `pos` the tokens can be "
        "counted where the encoding takes it: rotations, ALiBi and learned positions.",
        "",
        trials=("with a mask alone", "ragged, with a mask alone"),
    ),
    # -- lengths -------------------------------------------------------------------------------------------------------
    Note(
        "of_x_transformers",
        (6, 13),
        "x-transformers: xPos far from the start",
        LIMIT,
        "Scales are powers with exponent (position - middle)/512, the middle half of the highest position: for a "
        "token at 100,000 by itself that of a query is 0 in float32 and that of a key infinite. xPos is meant for "
        "rows that begin near 0.",
        "`x_transformers.py`, line 886",
        ("decoder_xpos",),
    ),
    # -- bounds --------------------------------------------------------------------------------------------------------
    Note(
        "of_",
        (19,),
        "Positions past the end: the error names neither the position nor the limit",
        LIMIT,
        "Rows of a table are looked up without a check: on the CPU that is an IndexError, on a GPU an assertion in a "
        "kernel. Position -1 is an error too for embeddings, and the last row for tables that are indexed.",
        trials=("positions past the end", "the longest row"),
    ),
)

NOT_RUN = {
    "flash-attention, TransformerEngine, vLLM": "run on a GPU alone",
    "liger-kernel": "its kernels are Triton's, which on a CPU are interpreted, minutes for each check; what was read "
    "in them stands above, with a script that needs Triton",
    "torchvision": "is not installed beside a CPU build of torch, and what needs it is left out",
    "transformers 4.57.6": "would replace transformers 5; BERT's `relative_key` and Transformer-XL are only there",
}
