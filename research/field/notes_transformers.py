"""What is known of findings in models of transformers."""

from field.kinds import LIMIT, MEANT, TIDY, WRONG, Note

OTHER_ROWS = ("rows of other places", "rows of other lengths")
NOTES_TRANSFORMERS = (
    Note(
        "of_transformers_decoders",
        (16,),
        "transformers: Falcon with ALiBi adds its bias twice under eager attention",
        WRONG,
        "The model puts ALiBi into the mask that it hands to every layer, for all implementations; the eager layer "
        'then adds it to the scores once more. So `attn_implementation="eager"` gives other logits than `"sdpa"`, '
        "which adds it once; with the layer's own addition taken out the two agree to 1e-6. The rotary Falcon is not "
        "concerned.",
        "`models/falcon/modeling_falcon.py`, lines 763-778 (the mask) and 394 (the scores)",
        ("falcon_alibi",),
        script="transformers-falcon-alibi-twice.py",
    ),
    Note(
        "of_transformers_decoders",
        (1,),
        "transformers: BLOOM's ALiBi in bfloat16",
        LIMIT,
        "The bias counts from the first key, and is rounded to the dtype of the model before it meets the scores: "
        "past 256 neighbouring keys get the same in bfloat16.",
        "`models/bloom/modeling_bloom.py`, `build_alibi_tensor`",
        ("bloom",),
    ),
    Note(
        "of_transformers_decoders",
        (4,),
        "transformers: Gemma's scale of embeddings is rounded by a cast",
        MEANT,
        "No matter of positions: the factor by which embeddings are multiplied is a buffer, which "
        "`.to(torch.bfloat16)` rounds (they run in bfloat16 with it), and which a later `.float()` does not restore. "
        "The frequencies of rotations are rounded with it, as in the other families.",
        "`embed_scale` in `models/gemma2/modeling_gemma2.py` and `models/gemma3/modeling_gemma3.py`",
        ("gemma2", "gemma3"),
        ("cast and back",),
    ),
    Note(
        "of_transformers",
        (4,),
        "transformers: frequencies are rounded by model.bfloat16() and do not recover",
        LIMIT,
        "`inv_freq` (for GPT-J, ESM and others its table) is a buffer, which `.to(torch.bfloat16)` casts with the "
        "model. Phases are then made in float32, but of rounded frequencies, and a later `.float()` keeps these. "
        "`from_pretrained(dtype=…)` leaves buffers in float32 and is not concerned (transformers#30709).",
        "`models/llama/modeling_llama.py`, line 86, and alike in the other families",
        trials=("cast and back",),
    ),
    Note(
        "of_transformers_encoders",
        (4,),
        "transformers: ESM saves its frequencies",
        TIDY,
        "`inv_freq` is a persistent buffer, so what a checkpoint holds overrules the configuration.",
        "`models/esm/modeling_esm.py`, line 118",
        ("esm",),
        ("what is saved",),
    ),
    Note(
        "of_transformers_scaling",
        (5,),
        "transformers: dynamic gives what the longest call before it left behind",
        WRONG,
        "Frequencies grow with the longest call and go back only for a call that is shorter than the trained length. "
        "After a longer one, a call of exactly that length, or of any up to the longest, is rotated by the "
        "frequencies of the longest: the same call gives one thing before it and another after.",
        "`modeling_rope_utils.py`, lines 101 and 113",
        ("dynamic",),
        ("calls between",),
        script="transformers-dynamic-left-behind.py",
    ),
    Note(
        "of_transformers_scaling",
        (5,),
        "transformers: dynamic and longrope write their frequencies in every call",
        MEANT,
        "The buffer `inv_freq` is replaced (dynamic) or overwritten (longrope) according to the highest position of "
        "the call, and longrope keeps a second set of frequencies at the first. For longrope what a call gives "
        "depends on itself alone; but two threads cannot share a model.",
        "`modeling_rope_utils.py`, lines 47-117",
        trials=("what is written",),
    ),
    Note(
        "of_transformers_decoders",
        (6,),
        "transformers: Falcon with ALiBi does not look at position_ids",
        LIMIT,
        "It takes `position_ids`, by which its rotary sibling goes. ALiBi counts the tokens of `attention_mask`, "
        "and nothing says that it does not look at them.",
        "`models/falcon/modeling_falcon.py`, `build_alibi_tensor`",
        ("falcon_alibi",),
        ("some moved",),
    ),
    Note(
        "of_transformers_decoders",
        (7,),
        "transformers: a sliding window counts padding",
        MEANT,
        "With `position_ids` that count the tokens alone, rotations go by them, and the window by the index: padding "
        "inside a row uses up part of the window. Padding at the ends is not concerned.",
        "`masking_utils.py`, line 95",
        ("mistral_window", "gemma2", "gemma3"),
        ("with positions",),
    ),
    Note(
        "of_transformers_encoders",
        (7, 10),
        "transformers: ModernBERT's window goes by the index",
        MEANT,
        "Rotations go by `position_ids`, the local window by the index: tokens handed in another order with their "
        "positions, or with padding between them, see others.",
        "`masking_utils.py`, line 145",
        ("modernbert",),
        ("with positions", "text", "padding"),
    ),
    Note(
        "of_transformers",
        (7,),
        "transformers: learned positions leave left padding to who calls",
        MEANT,
        "Without `position_ids`, tokens count from the index, padding included, so that a left-padded row is "
        "embedded as if it began later. The documentation of GPT-2 and BERT advises padding on the right, and "
        "`generate` makes `position_ids` from the mask; a plain forward call does not. OPT, RoBERTa and ESM count "
        "tokens alone by themselves.",
        "`models/gpt2/modeling_gpt2.py`, line 569; `models/bert/modeling_bert.py`, line 83",
        ("gpt2", "bert"),
    ),
    Note(
        "of_transformers_scaling",
        (8, 13, 19),
        "transformers: dynamic and longrope change past a length, and a cache does not",
        MEANT,
        "Past the trained length all frequencies change with the length, but a cache keeps keys as they were rotated "
        "before: a text that is decoded step by step past it gives something else than the same text at once "
        "(transformers#25104).",
        "`modeling_rope_utils.py`, lines 47-117",
        ("dynamic", "longrope"),
        (
            "positions by itself",
            "with",
            "ragged",
            "cached",
            "packed",
            "long",
            "far",
            *(f"{rows}, cached" for rows in OTHER_ROWS),
        ),
    ),
    Note(
        "of_transformers_scaling",
        (7, 19),
        "transformers: longrope and dynamic choose their frequencies for a batch as a whole",
        MEANT,
        "The highest position of a batch, padding counted where `position_ids` are not given, decides which set of "
        "frequencies all its rows are rotated by: the same row gives something else beside a longer one.",
        "`modeling_rope_utils.py`, lines 49 and 79",
        ("longrope", "dynamic"),
        ("with positions", "with a mask alone, at the ends", "as many rows as tokens", *OTHER_ROWS),
    ),
    Note(
        "of_transformers",
        (7, 8),
        "transformers: padding inside a row is a distance",
        MEANT,
        "With `attention_mask` alone, positions go by the index, so that tokens on both sides of a gap are as far "
        "apart as their indices. Left and right padding are no matter to rotations and relative biases. With "
        "`position_ids` that count the tokens every one of these families gives what it gives without padding.",
        "the default of `position_ids`; `models/mpt/modeling_mpt.py`, line 49; T5, DeBERTa-v2 and XLNet take no "
        "positions",
        trials=("with a mask alone, inside too", "ragged, with a mask alone"),
    ),
)
