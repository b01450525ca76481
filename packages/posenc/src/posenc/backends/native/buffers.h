// The buffers of a task of the backward pass, and what fills them.

#pragma once

#include "gradients.h"

namespace {

struct Buffers {
    static constexpr int64_t BLOCK_M = 64, BLOCK_N = 256;  // queries and keys of a block
    static constexpr int64_t ld = BLOCK_N + 2 * MARGIN, HALF_M = BLOCK_M / 2;
    static_assert(MARGIN >= BLOCK_M, "each row of a block starts one column later");
    static_assert(BLOCK_M % (2 * WORDS) == 0 && BLOCK_N % PANEL == 0, "");

    const Call& call;
    Workspace& workspace;
    const int64_t groups = call.heads / call.kv_heads, D = call.width, E = call.vectors.width, V = call.value_width;
    const int64_t K = call.key_vectors.width, window = rounded(BLOCK_N + BLOCK_M, PANEL) + PANEL;
    const int64_t words_of_keys = Side::words_of_width(D), words_of_values = Side::words_of_width(V);
    // Whether products over keys need a copy, since the stored keys are not rotated.
    const bool copies_keys = !IS_HALF && call.rotation.query_cos;

    // Of a block of queries: rows of them, also without the shift, and of dout.
    Real* const q = workspace.allocate(BLOCK_M * D);
    Real* const unshifted = workspace.allocate(call.vectors.x && !call.meeting.x ? BLOCK_M * D : 0);
    Real* const dout = workspace.allocate(half(BLOCK_M * V));
    // Of a block of keys: panels of keys and values, keys as rows, and vectors by distance.
    Word* const k = workspace.allocate<Word>(BLOCK_N * words_of_keys);
    Word* const v = workspace.allocate<Word>(BLOCK_N * words_of_values);
    Real* const keys_as_rows = workspace.allocate(copies_keys ? BLOCK_N * D : 0);
    Real* const vectors = workspace.allocate(window * E);
    Real* const value_vectors = workspace.allocate(window * call.values.width);
    Word* const rows_of_panel = workspace.allocate<Word>(PANEL * std::max(words_of_keys, words_of_values));
    Real* const one_row = workspace.allocate(half(std::max(D, V)));
    // Weights, gradients of scores, and scores before the function: rows are queries, columns are keys.
    Real* const weights = pairs();
    Real* const ds = pairs();
    Real* const bare = pairs();
    // Gradients of a block of queries and of the keys of a block in a tile; sums over tiles, and over a task.
    Real* const dq = workspace.allocate(BLOCK_M * rounded(D, PANEL));
    Real* const d_meeting = workspace.allocate(BLOCK_M * E);
    Real* const dk = workspace.allocate(BLOCK_N * D);
    Real* const dv = workspace.allocate(BLOCK_N * V);
    Real* const d_clock = workspace.allocate(BLOCK_N);
    Real* const sums = workspace.allocate(2 * std::max(E, call.values.width));
    Real* const dk_sums = workspace.allocate(BLOCK_N * D);
    Real* const dv_sums = workspace.allocate(BLOCK_N * V);
    Real* const dq_sums = workspace.allocate(call.dq_sums.x ? 0 : groups * call.queries * D);
    // Keys that meet vectors, and these vectors, transposed, with their gradients.
    Real* const transposed_keys = workspace.allocate_inside(ld * K, MARGIN);
    Real* const d_transposed_keys = workspace.allocate_inside(ld * K, MARGIN);
    Real* const transposed = workspace.allocate(stride() * K);
    Real* const d_transposed = workspace.allocate(stride() * K);
    // In half precision: operands of sums over queries ("down") and over keys. dk and dv then have a row per channel.
    Word* const q_words = workspace.allocate<Word>(half((BLOCK_M + STRIP) * words_of_keys));
    Word* const dout_words = workspace.allocate<Word>(half((BLOCK_M + STRIP) * words_of_values));
    Word* const q_down = workspace.allocate<Word>(half(rounded(D, STRIP) * HALF_M));
    Word* const dout_down = workspace.allocate<Word>(half(rounded(V, STRIP) * HALF_M));
    Word* const k_down = workspace.allocate<Word>(half(BLOCK_N / 2 * rounded(D, PANEL)));
    Word* const weights_down = workspace.allocate<Word>(half(BLOCK_N * HALF_M));
    Word* const ds_down = workspace.allocate<Word>(half(BLOCK_N * HALF_M));
    Word* const ds_words = workspace.allocate<Word>(half((BLOCK_M + STRIP) * BLOCK_N / 2));

    int64_t b = 0, kv = 0;  // row of the batch, key head

    Buffers(const Call& c, Workspace& w) : call(c), workspace(w) {}

    static int64_t stride() { return transposed_stride(BLOCK_M, BLOCK_N); }

    // What the pairs of a block are made of; `values_from` is the first entry of the packed vectors of values.
    struct Given {
        Queries queries;
        Operands operands;
        const Real* dout;
        int64_t dout_row, values_from;
    };

    void pack_keys(const Part& p) {
        const int64_t count = p.last - p.first;
        const Side side = Side::of_keys(call, b, kv), of_values{call, row_of(call.v, b, kv, 0), call.v.row, V};
        side.pack_rows(p.first, p.last, k, rows_of_panel, one_row);
        of_values.pack_rows(p.first, p.last, v, rows_of_panel, one_row);
        if (copies_keys)
            for (int64_t j = 0; j < count; j++) side.copy(p.first + j, nullptr, 1, keys_as_rows + j * D);
        if (call.key_vectors.x) {
            std::fill(transposed_keys - MARGIN, transposed_keys - MARGIN + D * ld, Real(0));
            std::fill(d_transposed_keys - MARGIN, d_transposed_keys - MARGIN + D * ld, Real(0));
            for (int64_t j = 0; j < count; j++)
                for (int64_t d = 0; d < D; d++)
                    transposed_keys[d * ld + j] = wide(row_of(call.k, b, kv, p.first + j)[d]);
        }
#if HALF
        pack_down(count, D, rounded(count, PANEL) / 2, BLOCK_N / 2 * PANEL, k_down, [&](int64_t n) {
            Word* buffer = rows_of_panel + n % 2 * words_of_keys;
            return reinterpret_cast<const Stored*>(side.packed(p.first + n, buffer, one_row));
        });
#endif
    }

    // Copies the queries of a block, and packs the vectors by distance that they meet.
    Given prepared(const Block& block) {
        const auto& [p, b, h, i, rows, left, right] = block;
        copy_rows(Side::of_queries(call, b, h), i, rows, call.shift ? call.shift + h * D : nullptr, before(call), q,
                  q_words);
        const int64_t dout_row = IS_HALF ? V : call.dout.row;
        Given given{{q, q_words, unshifted, D}, {k, vectors, 0, {}}, rows_of_dout(block), dout_row, 0};
        if (call.meeting.x)
            given.queries.meeting = row_of(call.meeting, b, h, i), given.queries.meeting_row = call.meeting.row;
        if (call.vectors.x && !call.meeting.x) copy_scaled(call, b, h, i, rows, unshifted);
        if (call.vectors.x)
            given.operands.vectors_from =
                pack_vectors(reach(p, i, rows, left, right, call.vectors), call.vectors, h, vectors);
        if (call.values.x)
            given.values_from =
                pack_vectors(reach(p, i, rows, left, right, call.values), call.values, h, value_vectors);
        if (call.key_vectors.x)
            given.operands.transposed = transpose(p, h, i, rows, left, right, call.key_vectors, transposed, stride());
        return given;
    }

    // The gradients of the output as Real; in half precision also as words.
    const Real* rows_of_dout(const Block& block) {
        const Side side{call, row_of(call.dout, b, block.h, 0), call.dout.row, V};
#if HALF
        copy_rows(side, block.i, block.rows, nullptr, 1, dout, dout_words);
        return dout;
#else
        return side.x + block.i * side.row;
#endif
    }

private:
    static int64_t half(int64_t count) { return IS_HALF ? count : 0; }

    // A number for each pair of a block, zero, with MARGIN columns on both sides.
    Real* pairs() {
        Real* found = workspace.allocate(BLOCK_M * ld);
        if (!found) return found;
        std::fill(found, found + BLOCK_M * ld, Real(0));
        return found + MARGIN;
    }
};

}  // namespace
