"""Faults in packages for text that were found by reading them: what stands in field/subjects is found by the checks."""

from field.kinds import LIMIT, WRONG, Fault

FAULTS_TEXT = (
    # -- local-attention -----------------------------------------------------------------------------------------------
    Fault(
        "local-attention-cached-keys.py",
        "local-attention: a cache keeps rotated keys, which are rotated again",
        WRONG,
        "A step with a cache rotates all keys anew, and keeps what came of it in place of the keys as they were. From "
        "the second step on keys are rotated twice, then three times, so that `generate` of a `LocalTransformer` gives "
        "other tokens with a cache (the default) than without. With xPos too; with dynamic positions nothing is "
        "rotated.",
        "`local_attention/transformer.py`, `LocalMHA.forward`, lines 152 and 169",
        "`generate(…, use_kv_cache=False)`.",
        package="local-attention",
    ),
    Fault(
        "local-attention-look-forward.py",
        "local-attention: queries that look forward are rotated as if they stood windows later",
        WRONG,
        "The keys of a window are those of the one before, its own and the one after; the queries are rotated as the "
        "last window of these, which is right only where none is looked forward to. So an encoder's query stands "
        "`look_forward` windows after its own key: the rotation prefers keys of the next window to those around.",
        "`local_attention/rotary.py`, `apply_rotary_pos_emb`, line 58",
        "`causal=True`, or `look_forward=0`.",
        package="local-attention",
    ),
    Fault(
        "local-attention-autopad.py",
        "local-attention: autopad without a mask adds keys",
        WRONG,
        "Zeros are put at the end of queries, keys and values to fill the last window, and nothing hides them unless a "
        "mask is given: tokens whose windows reach the end see keys with a score of 0 and a value of 0. Causal "
        "attention does not look there. `LocalMHA` always pads.",
        "`local_attention/local_attention.py`, `LocalAttention.forward`, lines 126 and 208",
        "give a mask of ones, or whole windows.",
        package="local-attention",
    ),
    Fault(
        "local-attention-exact-window.py",
        "local-attention: an exact window has one key more",
        WRONG,
        "The documentation says that with `exact_windowsize` each query sees at most as many keys as the window has, "
        "in the causal setting. It sees itself and `window_size · look_backward` before it.",
        "`local_attention/local_attention.py`, line 194",
        "give the window less one, where it matters.",
        package="local-attention",
    ),
    Fault(
        "local-attention-cached-scale.py",
        "local-attention: a cache forgets the scale of qk_rmsnorm",
        WRONG,
        "Normed queries and keys are multiplied by `qk_scale`, 8, all at once; a step with a cache multiplies by "
        "1/√dim_head whatever was asked for, which for the default head of 64 is a score 64 times smaller.",
        "`local_attention/transformer.py`, `LocalMHA.forward`, line 134",
        "decode without a cache.",
        package="local-attention",
    ),
    Fault(
        "local-attention-cached-window.py",
        "local-attention: without exact windows a cache loses one at the end of each",
        WRONG,
        "A step keeps the looked-back windows and the tokens of its own, counted as the length modulo the window: for "
        "the last token of a window that is 0, so that it sees one window less than all at once.",
        "`local_attention/transformer.py`, `LocalMHA.forward`, line 145",
        "`exact_windowsize=True`, the default of `LocalMHA`.",
        package="local-attention",
    ),
    Fault(
        "local-attention-given-window.py",
        "local-attention: a window given to the call does not move the exact one",
        LIMIT,
        "With xPos a call may ask for another window. Tokens are then cut into windows of that size, but "
        "`exact_windowsize` hides what is farther than that of the constructor, and `autopad` fills up to it.",
        "`local_attention/local_attention.py`, lines 126, 193 and 202",
        "set the attribute `window_size` instead.",
        package="local-attention",
    ),
    Fault(
        "local-attention-bfloat16.py",
        "local-attention: rotations do not run in half precision",
        LIMIT,
        "In place of xPos' scale stands a one in float32, which makes queries and keys float32, while values stay as "
        "they were: an error. Under autocast around a float32 module it runs.",
        "`local_attention/rotary.py`, line 42",
        "autocast, or xPos, whose positions bfloat16 then rounds past 256.",
        package="local-attention",
    ),
    # -- keras-hub -----------------------------------------------------------------------------------------------------
    Fault(
        "keras-hub-gpt-neox-cache.py",
        "keras-hub: GPT-NeoX decodes every token as the first",
        WRONG,
        "Keys are kept as they are and rotated at each step from position 0 on, which is right; but so is the query "
        "of the step, which stands at `cache_update_index`. Every generated token is scored as if it were the first "
        "of the text.",
        "`models/gpt_neo_x/gpt_neo_x_attention.py`, `GPTNeoXAttention.call`, line 208",
        "give `start_index=cache_update_index` to the query's rotation; Llama and the others do.",
        package="keras-hub",
    ),
    Fault(
        "keras-hub-xlnet-batch.py",
        "keras-hub: XLNet mixes the relative positions of a batch",
        WRONG,
        "The sinusoids of the distances are (distances, rows, channels) and are reshaped to (rows, distances, "
        "channels), where they ought to be transposed: with two rows the first gets each of the nearer half twice. "
        "What a text comes out as depends on how many texts are beside it; a batch of one is right.",
        "`models/xlnet/xlnet_content_and_query_embedding.py`, `ContentAndQueryEmbedding.call`, line 102",
        "`ops.transpose(pos_emb, (1, 0, 2))`, or batches of one.",
        package="keras-hub",
    ),
    Fault(
        "keras-hub-xlnet-padding.py",
        "keras-hub: XLNet hides tokens of one row by the padding of another",
        WRONG,
        "The padding mask (rows, tokens) is reshaped to (tokens, rows), where it ought to be transposed.",
        "`models/xlnet/xlnet_encoder.py`, `XLNetAttentionMaskLayer.call`, line 272",
        "`ops.transpose(inputs)`, or batches of one.",
        package="keras-hub",
    ),
    Fault(
        "keras-hub-rotary-dynamic.py",
        'keras-hub: rope_type="dynamic" slows all frequencies',
        WRONG,
        "Dynamic scaling multiplies the base by factor^(dim/(dim - 2)), so that the fastest frequency stays and the "
        "slowest is divided by the factor, and begins past the trained length. Here that power divides every "
        "frequency, at every length: neighbours are told apart less than with linear scaling of the same factor.",
        "`layers/modeling/rotary_embedding.py`, `RotaryEmbedding._get_inverse_freq`, lines 243-250",
        "multiply `max_wavelength` by factor^(dim/(dim - 2)) yourself.",
        package="keras-hub",
    ),
    Fault(
        "keras-hub-llama-scaling.py",
        "keras-hub: Llama's position_scaling_factor does nothing",
        WRONG,
        "The layer documents it as what positions are scaled by, and hands it to its parent, whose computation of "
        "frequencies it then replaces by one that does not look at it.",
        "`models/llama/llama_rotary_embedding.py`, `LlamaRotaryEmbedding._get_inverse_freq`",
        "`keras_hub.layers.RotaryEmbedding(scaling_factor=…)`.",
        package="keras-hub",
    ),
    Fault(
        "keras-hub-gpt-oss-window.py",
        "keras-hub: the sliding window of GPT-OSS has one token more",
        WRONG,
        "The documentation says that only `sliding_window` tokens are used to generate the next one, and the published "
        "model has a token see itself and the window less one before it. Here it sees itself and a whole window.",
        "`models/gpt_oss/gpt_oss_attention.py`, `GptOssAttention._compute_attention`, line 267",
        "give 127 for 128.",
        package="keras-hub",
    ),
    Fault(
        "keras-hub-sines-bfloat16.py",
        "keras-hub: positions in the compute dtype",
        WRONG,
        'Under the policies "mixed_bfloat16" and "bfloat16", `SinePositionEncoding`, and the rotations of ESM and '
        "RoFormer, and XLNet's distances, count in bfloat16, where positions past 256 fall together. "
        "`RotaryEmbedding` counts in float32.",
        "`layers/modeling/sine_position_encoding.py`, line 73; `models/esm/esm_attention.py`, lines 15 and 18; "
        "`models/roformer_v2/roformer_v2_attention.py`, line 51; "
        "`models/xlnet/xlnet_content_and_query_embedding.py`, line 62",
        'give these layers `dtype="float32"`.',
        package="keras-hub",
    ),
    Fault(
        "keras-hub-position-overrun.py",
        "keras-hub: one row that is left of a table is given to all tokens",
        WRONG,
        "Where `start_index` and the tokens reach past `sequence_length`, the slice is shorter than the tokens. Of two "
        "rows and more the broadcast is an error; a single one is spread over all tokens, which then look the same.",
        "`layers/modeling/position_embedding.py`, `PositionEmbedding.call`, lines 118-124",
        "keep `start_index` plus the tokens within `sequence_length`.",
        package="keras-hub",
    ),
    Fault(
        "keras-hub-llama-config.py",
        "keras-hub: two layers of rotation cannot be made from their own configuration",
        WRONG,
        "`LlamaRotaryEmbedding` writes `pretraining_sequence_length` by another name and its parent's "
        "`scaling_factor` beside its own, which the constructor refuses; `RoformrPositionalEmbedding` reads an "
        "attribute that it does not have. Backbones do not go through these.",
        "`models/llama/llama_rotary_embedding.py`, line 174; `models/roformer_v2/roformer_v2_attention.py`, line 95",
        "make them from their arguments.",
        package="keras-hub",
    ),
    Fault(
        "keras-hub-smollm3-partial.py",
        "keras-hub: SmolLM3 does not run with a partial rotation",
        WRONG,
        "Cosines are made for `partial_rotary_factor` of the channels, and multiply all of them: an error for any "
        "factor below 1. The published models have 1.",
        "`models/smollm3/smollm3_utils.py`, `apply_rotary_pos_emb`, line 13",
        "1, the only value that runs.",
        package="keras-hub",
    ),
    # -- fair-esm ------------------------------------------------------------------------------------------------------
    Fault(
        "fair-esm-msa-depth.py",
        "fair-esm: an alignment beside a deeper one comes out otherwise",
        WRONG,
        "Scores of the tied rows are divided by the root of how many there are, padding included, though rows of "
        "padding are zeroed so as not to count. In a batch of alignments, the shallower are attended to more evenly "
        "than alone.",
        "`esm/axial_attention.py`, `RowSelfAttention.align_scaling`, line 38",
        "batches of alignments of one depth.",
        package="fair-esm",
    ),
    Fault(
        "fair-esm-half-positions.py",
        "fair-esm: ESM-2's positions in half precision",
        WRONG,
        "The frequencies are a buffer that is cast with the model, and positions are made in their dtype: past 256 "
        "they fall together in bfloat16, and past 2,048 in half.",
        "`esm/rotary_embedding.py`, `RotaryEmbedding._update_cos_sin_tables`, line 54",
        "autocast around a model in float32.",
        package="fair-esm",
    ),
    Fault(
        "fair-esm-rotary-dtype.py",
        "fair-esm: ESM-2 keeps its table through a cast",
        WRONG,
        "The table is made anew for another length or device, not for another dtype. After `.half()` a sequence as "
        "long as the last one meets a float32 table and ends in an error; after `.float()` it is rotated by the "
        "rounded one, and nothing says so.",
        "`esm/rotary_embedding.py`, `RotaryEmbedding._update_cos_sin_tables`, line 52",
        "cast before the first call.",
        package="fair-esm",
    ),
    Fault(
        "fair-esm-inference-mode.py",
        "fair-esm: after a call under inference mode, no training on that length",
        LIMIT,
        "The table that was kept is one that autograd refuses. A sequence of another length makes a new one.",
        "`esm/rotary_embedding.py`, line 52",
        "`torch.no_grad()`.",
        package="fair-esm",
    ),
    Fault(
        "fair-esm-learned-padding.py",
        "fair-esm: LearnedPositionalEmbedding does not take padding_idx=None",
        WRONG,
        "Its documentation says that padding is ignored either by an offset or by setting `padding_idx` to None and "
        "giving position ids. `forward` compares with it and adds it either way.",
        "`esm/modules.py`, `LearnedPositionalEmbedding.forward`, line 247",
        "`torch.nn.Embedding`.",
        package="fair-esm",
    ),
    Fault(
        "fair-esm-esm1b-half.py",
        "fair-esm: ESM-1b with token dropout does not run in half precision",
        LIMIT,
        "The share of masked tokens is made in float32, which makes the embeddings float32 before layers that were "
        "cast. ESM-2 makes it in the dtype of the embeddings.",
        "`esm/model/esm1.py`, `ProteinBertModel.forward`, line 130",
        "autocast around a model in float32.",
        package="fair-esm",
    ),
    # -- conformer, axial-positional-embedding, liger-kernel -----------------------------------------------------------
    Fault(
        "conformer-padding.py",
        "conformer: the convolution sees what the mask hides",
        WRONG,
        "`ConformerBlock` takes a mask, which its attention keeps to and its convolution does not get: tokens within "
        "half a kernel of padding come out otherwise than without it. `Conformer` takes no mask at all.",
        "`conformer/conformer.py`, `ConformerBlock.forward`, line 207",
        "rows of one length.",
        package="conformer",
    ),
    Fault(
        "conformer-context.py",
        "conformer: attention to a context of another length does not run",
        WRONG,
        "Distances are those of the input with itself, whatever the context, and a mask that is left out is a "
        "function that no one calls. Blocks give no context.",
        "`conformer/conformer.py`, `Attention.forward`, lines 105-114",
        "a context as long as the input, with both masks or none.",
        package="conformer",
    ),
    Fault(
        "conformer-dropout.py",
        "conformer: dropouts of the whole reach no block",
        WRONG,
        "No matter of positions: `Conformer` takes `attn_dropout`, `ff_dropout` and `conv_dropout`, and builds its "
        "blocks without them.",
        "`conformer/conformer.py`, `Conformer.__init__`, line 235",
        "build the blocks yourself.",
        package="conformer",
    ),
    Fault(
        "axial-positional-embedding-image.py",
        "axial-positional-embedding: images of another shape get other places",
        WRONG,
        "An image is flattened, and given the first vectors of the axial shape: where its width is not that of the "
        "shape, rows run into one another, and nothing says so.",
        "`axial_positional_embedding/axial_positional_embedding.py`, `AxialPositionalEmbeddingImage.forward`, line 81",
        "images of the axial shape, or `ContinuousAxialPositionalEmbedding`.",
        package="axial-positional-embedding",
    ),
    Fault(
        "axial-positional-embedding-bfloat16.py",
        "axial-positional-embedding: continuous places after a cast to bfloat16",
        WRONG,
        "Places along an axis are made in the dtype of the weights: past 256 they fall together.",
        "`axial_positional_embedding/continuous_axial_positional_embedding.py`, lines 141 and 154",
        "autocast around a module in float32; axes up to 256 are exact.",
        package="axial-positional-embedding",
    ),
    Fault(
        "liger-kernel-in-place.py",
        "liger-kernel: queries and keys are rotated in place, which autograd does not see",
        LIMIT,
        "Where queries lie in memory with tokens before heads, as models of transformers have them, the kernel writes "
        "what it rotates over them, and the backward pass over the gradients it is given; neither is marked. What else "
        "uses them, such as a norm or a second rotation, computes with other numbers than it saw. A layer of "
        "transformers uses them for nothing else.",
        "`liger_kernel/ops/rope.py`, lines 97-109, `rope_forward` and `rope_backward`",
        "give it copies where they are used again.",
        package="liger-kernel",
    ),
)
