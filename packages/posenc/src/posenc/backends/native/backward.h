// The backward pass of one task: the keys of a key head, or a part of them, and all queries that attend to them.

#pragma once

#include "buffers.h"

namespace {

class Backward : Buffers {
    int64_t slot = 0, part = 0;

public:
    using Buffers::Buffers;

    void run(int64_t task) {
        kv = task % call.kv_heads, slot = task / call.kv_heads, part = slot % call.parts;
        for (b = slot / call.parts; b < call.batch; b += call.slots / call.parts) {
            if (!call.dq_sums.x) std::fill(dq_sums, dq_sums + groups * call.queries * D, Real(0));
            // Each key belongs to one part.
            for (int64_t n_block = part; n_block * BLOCK_N < call.keys; n_block += call.parts)
                block_of_keys(n_block * BLOCK_N);
            finish_queries();
        }
    }

private:
    static void write(const Real* row, int64_t width, Stored* to) {
        for (int64_t d = 0; d < width; d += LANES) store(to + d, load(row + d));
    }

    // The accumulated gradient of query i, before the inverse rotation.
    Real* dq_row(int64_t h, int64_t i) const {
        if (call.dq_sums.x) return row_of(call.dq_sums, part * call.batch + b, h, i);
        return dq_sums + ((h - kv * groups) * call.queries + i) * D;
    }

    void finish_queries() {
        for (int64_t h = kv * groups; h < (kv + 1) * groups; h++) {
            const Side queries = Side::of_queries(call, b, h);
            if (!queries.cos && !call.dq.x) continue;
            for (int64_t i = 0; i < call.queries; i++) {
                Real* row = dq_row(h, i);
                queries.rotate(i, -1, row);
                if (call.dq.x) write(row, D, row_of(call.dq, b, h, i));
            }
        }
    }

    // The block of keys from `begin` on, in all tiles.
    void block_of_keys(int64_t begin) {
        const int64_t end = std::min(begin + BLOCK_N, call.keys);
        bool is_seen = false;
        for (int64_t n = 0; n < call.count; n++) {
            const Tile& tile = call.tiles[n];
            if (b < tile.batch || b >= tile.batch_end) continue;
            Part p{&tile, 0, 0, std::max(tile.first, begin), std::min(tile.last, end)};
            p.start = std::max(tile.start, p.first - tile.high);
            p.stop = std::min(tile.stop, p.last - tile.low);
            if (p.first >= p.last || p.start >= p.stop) continue;
            if (!is_seen) std::fill(dk_sums, dk_sums + BLOCK_N * D, Real(0));
            if (!is_seen) std::fill(dv_sums, dv_sums + BLOCK_N * V, Real(0));
            is_seen = true;
            keys_of(p, p.first - begin);
        }
        if (!is_seen) return;
        const Side side = Side::of_keys(call, b, kv);
        for (int64_t j = 0; j < end - begin; j++) {
            side.rotate(begin + j, -1, dk_sums + j * D);
            write(dk_sums + j * D, D, row_of(call.dk, b, kv, begin + j));
            write(dv_sums + j * V, V, row_of(call.dv, b, kv, begin + j));
        }
    }

    // The keys of a block that are in a tile; the first of them is `number` of the block.
    void keys_of(const Part& p, int64_t number) {
        const int64_t count = p.last - p.first;
        pack_keys(p);
        std::fill(dk, dk + BLOCK_N * D, Real(0));
        std::fill(dv, dv + BLOCK_N * V, Real(0));
        for (int64_t h = kv * groups; h < (kv + 1) * groups; h++) {
            std::fill(d_clock, d_clock + BLOCK_N, Real(0));
            for (int64_t i = p.start; i < p.stop; i += BLOCK_M)
                pairs(Block::seen_by(p, b, h, i, std::min(BLOCK_M, p.stop - i)));
            if (call.d_key_clock)
                add(call.d_key_clock + (b * call.heads + h) * call.keys + p.first, d_clock, -1, count);
        }
        const Real scale = after(call);
        const auto at = [](int64_t j, int64_t d, int64_t width) { return IS_HALF ? d * BLOCK_N + j : j * width + d; };
        for (int64_t j = 0; j < count; j++) {
            Real *k_sum = dk_sums + (number + j) * D, *v_sum = dv_sums + (number + j) * V;
            for (int64_t d = 0; d < D; d++) k_sum[d] += scale * dk[at(j, d, D)];
            for (int64_t d = 0; d < D && call.key_vectors.x; d++) k_sum[d] += d_transposed_keys[d * ld + j];
            for (int64_t d = 0; d < V; d++) v_sum[d] += dv[at(j, d, V)];
        }
    }

    // The pairs of some queries with the keys of a block: dq, dk, dv, and what is learned.
    void pairs(Block block) {
        narrow(call, block, row_of(call.lse, b, block.h, block.i));
        if (block.empty()) return;
        const Given given = prepared(block);
        for (int64_t strip = 0; strip < block.rows; strip += STRIP)
            gradients_of_scores(block, strip, std::min<int64_t>(STRIP, block.rows - strip), given);
        give_to_values(block, given);
        give_to_terms(block, given);
        give_to_queries_and_keys(block);
    }

    // The weights of the rows strip .. strip + count of a block, and the gradients of their scores.
    void gradients_of_scores(const Block& block, int64_t strip, int64_t count, const Given& given) {
        Block mine = block.of_rows(block.i + strip, count);
        const Real *lse = row_of(call.lse, b, mine.h, mine.i), *delta = row_of(call.delta, b, mine.h, mine.i);
        narrow(call, mine, lse);
        if (!mine.empty()) scores_and_products(mine, strip, given);
        for (int64_t r = 0; r < count; r++) {
            Real *weight = weights + (strip + r) * ld, *d_score = ds + (strip + r) * ld;
            const Real offset = lse[r] == NONE ? -NONE : lse[r], own = delta[r];
            for (int64_t j = mine.left; j < mine.right; j += LANES) {
                const Vec now = power_of_two((load(weight + j) - offset) * LOG2_E);
                store(weight + j, now);
                store(d_score + j, now * (load(d_score + j) - own));
            }
            clear(weight, block, mine);
            clear(d_score, block, mine);
            if (call.function) clear(bare + (strip + r) * ld, block, mine);
        }
    }

    // The scores of a strip in place of its weights, and dout . v in place of their gradients.
    void scores_and_products(const Block& mine, int64_t strip, const Given& given) {
        Real *s = weights + strip * ld, *d = ds + strip * ld;
        const Queries& of = given.queries;
        const Queries queries{q + strip * D, q_words + strip * words_of_keys, of.meeting + strip * of.meeting_row,
                              of.meeting_row};
        const Real* dout = given.dout + strip * given.dout_row;
        scores(call, mine, queries, given.operands, s, ld, call.function ? bare + strip * ld : nullptr, nullptr);
#if HALF
        multiply_halves(mine.rows, mine.right - mine.left, words_of_values, dout_words + strip * words_of_values,
                        words_of_values, v + mine.left * words_of_values, PANEL * words_of_values, d + mine.left, ld,
                        false);
#else
        multiply(mine.rows, mine.right - mine.left, V, dout, given.dout_row, 1, v + mine.left * V, PANEL, PANEL * V,
                 d + mine.left, ld, false);
#endif
        if (call.values.x) by_vectors(mine, call.values, dout, given.dout_row, value_vectors, given.values_from, d, ld);
    }

    // Zeros columns of a row that have no product, and those next to the block, since they are read with it.
    static void clear(Real* row, const Block& block, const Block& mine) {
        const int64_t left = mine.empty() ? block.left : mine.left, right = mine.empty() ? block.left : mine.right;
        std::fill(row + block.left - MARGIN, row + left, Real(0));
        std::fill(row + right, row + block.right + MARGIN, Real(0));
    }

    // The gradients of what is added to the products of queries and keys, and those of the products, in place of ds.
    void give_to_terms(const Block& block, const Given& given) {
        if (call.values.x && call.values.gradient)
            by_distance_backward(block, call.values, slot, given.dout, given.dout_row, weights, ld, nullptr, sums);
        if (call.function && call.is_last) through_function(block);
        for (int64_t r = 0; r < block.rows; r++) give_to_lines(block, r);
        if constexpr (!IS_HALF)
            if (call.key_vectors.x) give_to_key_vectors(block, given.operands.transposed);
        if (call.vectors.x) give_to_vectors(block, given.queries);
        if (call.function && !call.is_last) through_function(block);
    }

    void through_function(const Block& block) {
        const auto& [p, b, h, i, rows, left, right] = block;
        Real* line = call.factor.gradient ? gradient(call.factor, slot, h, 0) : nullptr;
        for (int64_t r = 0; r < rows; r++)
            apply_backward(call, p, h, i + r, left, right, bare + r * ld, ds + r * ld, line);
    }

    // The gradients of terms that are a number for each pair, of query i + r.
    void give_to_lines(const Block& block, int64_t r) {
        const auto& [p, b, h, i, rows, left, right] = block;
        const Real* d = ds + r * ld;
        const int64_t seen = block.end();
        if (call.bias.x && call.bias.gradient)
            give_along(p, gradient(call.bias, slot, h, 0), i + r, left, right, call.bias,
                       [d](int64_t j) { return load(d + j); });
        if (call.broken.lines) give_broken(call, p, part, slot, b, h, i + r, left, seen, d);
        if (call.places.query_place) give_places(call, p, part, slot, b, h, i + r, left, seen, d);
        if (!call.d_query_clock) return;
        add(d_clock + left, d + left, 1, seen - left);
        call.d_query_clock[((part * call.batch + b) * call.heads + h) * call.queries + i + r] += sum_of(d, left, seen);
    }

    void give_to_key_vectors(const Block& block, const Transposed& transposed) {
        const auto& [p, b, h, i, rows, left, right] = block;
        const Table& t = call.key_vectors;
        meet_keys_backward(p, i, rows, left, right, t, transposed_keys, ld, transposed, ds, ld,
                           d_transposed_keys, d_transposed);
        for (int64_t n = 0; t.gradient && n < transposed.count; n++) {
            Real* to = gradient(t, slot, h, std::clamp<int64_t>(transposed.first + n, 0, t.entries - 1));
            for (int64_t d = 0; d < D; d++) to[d] += d_transposed[d * transposed.stride + n];
        }
    }

    void give_to_vectors(const Block& block, const Queries& queries) {
        std::fill(d_meeting, d_meeting + block.rows * E, Real(0));
        by_distance_backward(block, call.vectors, slot, queries.meeting, queries.meeting_row, ds, ld, d_meeting, sums);
        for (int64_t r = 0; r < block.rows; r++) {
            const int64_t h = block.h, i = block.i + r;
            if (call.meeting.x) add(row_of(call.d_meeting, part * call.batch + b, h, i), d_meeting + r * E, 1, E);
            else add(dq_row(h, i), d_meeting + r * E, call.softmax_scale, E);
        }
    }

#if HALF
    void give_to_values(const Block& block, const Given& given) {
        transpose_down(given.dout, block.rows, V, HALF_M, dout_down);
        round_down(weights, ld, block.rows, block.left, block.right, HALF_M, weights_down);
        multiply_halves(V, block.right - block.left, rounded(block.rows, 2 * WORDS) / 2, dout_down, HALF_M,
                        weights_down + block.left * HALF_M, PANEL * HALF_M, dv + block.left, BLOCK_N, true);
    }

    void give_to_queries_and_keys(const Block& block) {
        const auto& [p, b, h, i, rows, left, right] = block;
        constexpr int64_t words = BLOCK_N / 2;
        const int64_t width = rounded(D, PANEL);
        for (int64_t r = 0; r < rows; r++)
            round_row(ds + r * ld + left, right - left, (right - left) / 2, ds_words + r * words + left / 2);
        multiply_halves(rows, width, (right - left) / 2, ds_words + left / 2, words, k_down + left / 2 * PANEL,
                        BLOCK_N / 2 * PANEL, dq, width, false);
        add_to_queries(block, width);
        transpose_down(q, rows, D, HALF_M, q_down);
        round_down(ds, ld, rows, left, right, HALF_M, ds_down);
        multiply_halves(D, right - left, rounded(rows, 2 * WORDS) / 2, q_down, HALF_M, ds_down + left * HALF_M,
                        PANEL * HALF_M, dk + left, BLOCK_N, true);
    }
#else
    void give_to_values(const Block& block, const Given& given) {
        const int64_t left = block.left;
        multiply(block.end() - left, V, block.rows, weights + left, 1, ld, given.dout, given.dout_row, PANEL,
                 dv + left * V, V);
    }

    void give_to_queries_and_keys(const Block& block) {
        const int64_t left = block.left, seen = block.end() - left;
        const Real* keys = copies_keys ? keys_as_rows + left * D : row_of(call.k, b, kv, block.p.first + left);
        multiply(block.rows, D, seen, ds + left, ld, 1, keys, copies_keys ? D : call.k.row, PANEL, dq, D, false);
        add_to_queries(block, D);
        multiply(seen, D, block.rows, ds + left, 1, ld, q, D, PANEL, dk + left * D, D);
    }
#endif

    void add_to_queries(const Block& block, int64_t width) {
        for (int64_t r = 0; r < block.rows; r++) {
            add(dq_row(block.h, block.i + r), dq + r * width, call.softmax_scale, D);
            if (call.d_shift)
                add(call.d_shift + (slot * call.heads + block.h) * D, dq + r * width, call.softmax_scale, D);
        }
    }
};

}  // namespace
