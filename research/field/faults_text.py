"""Faults in packages for text that were found by reading them: what stands in field/subjects is found by the checks."""

from field.kinds import LIMIT, WRONG, Fault

FAULTS_TEXT = (
    # -- local-attention -----------------------------------------------------------------------------------------------
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
        "local-attention-given-window.py",
        "local-attention: a window given to the call does not move the exact one",
        LIMIT,
        "With xPos a call may ask for another window. Tokens are then cut into windows of that size, but "
        "`exact_windowsize` hides what is farther than that of the constructor, and `autopad` fills up to it.",
        "`local_attention/local_attention.py`, lines 126, 193 and 202",
        "set the attribute `window_size` instead.",
        package="local-attention",
    ),
    # -- keras-hub -----------------------------------------------------------------------------------------------------
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
    # -- torch ---------------------------------------------------------------------------------------------------------
    Fault(
        "torch-flex-context-parallel-bias.py",
        "torch: FlexAttention under context parallelism is wrong with any bias",
        WRONG,
        "`_create_cp_block_mask` rewrites `mask_mod`, so that it is given indices of the whole text. `score_mod` gets "
        "the index of the query in its process, and that of the key among the gathered keys, which the load balancer "
        "has put into another order. So the mask is right and the bias is of other distances. In contiguous shards a "
        "bias that is linear in the distance is still right under a causal mask, since the error is the same for a "
        "whole row. The API is private; no report was found.",
        "`torch/distributed/tensor/experimental/_context_parallel/_attention.py`, `_create_cp_block_mask`",
        "map the indices in `score_mod` yourself, as `_rewrite_mask_mod` does; or `posenc.distributed.attention`.",
        package="torch",
    ),
)
