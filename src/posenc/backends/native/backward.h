// The backward pass of one task: the keys of a key head, or a part of them, and all queries that attend to them.

#pragma once

#include "buffers.h"

namespace {

class Backward : Buffers {
    int64_t slot = 0, part = 0, b = 0, kv = 0;

public:
    using Buffers::Buffers;

    void run(int64_t task) {
        kv = task % call.kv_heads, slot = task / call.kv_heads, part = slot % call.parts;
        for (b = slot / call.parts; b < call.batch; b += call.slots / call.parts) {
            if (!call.dq_sums.x) std::fill(dq_of_task, dq_of_task + groups * call.queries * D, Real(0));
            // Each key belongs to one part.
            for (int64_t block = part; block * COLUMNS < call.keys; block += call.parts) block_of_keys(block * COLUMNS);
            finish_queries();
        }
    }

private:
    // The accumulated gradient of query i, before the inverse rotation.
    Real* dq_row(int64_t h, int64_t i) const {
        if (call.dq_sums.x) return row_of(call.dq_sums, part * call.batch + b, h, i);
        return dq_of_task + ((h - kv * groups) * call.queries + i) * D;
    }

    void finish_queries() {
        for (int64_t h = kv * groups; h < (kv + 1) * groups; h++) {
            const Side queries = Side::of_queries(call, b, h);
            if (!queries.cos && !call.dq.x) continue;
            for (int64_t i = 0; i < call.queries; i++) {
                Real* row = dq_row(h, i);
                queries.turn(i, -1, row);
                if (!call.dq.x) continue;
                Stored* to = row_of(call.dq, b, h, i);
                for (int64_t d = 0; d < D; d += LANES) store(to + d, load(row + d));
            }
        }
    }

    // The block of keys from `begin` on, in all tiles.
    void block_of_keys(int64_t begin) {
        const int64_t end = std::min(begin + COLUMNS, call.keys);
        bool is_seen = false;
        for (int64_t n = 0; n < call.count; n++) {
            const Tile& tile = call.tiles[n];
            if (b < tile.batch || b >= tile.batch_end) continue;
            Part p{&tile, 0, 0, std::max(tile.first, begin), std::min(tile.last, end)};
            p.start = std::max(tile.start, p.first - tile.high);
            p.stop = std::min(tile.stop, p.last - tile.low);
            if (p.first >= p.last || p.start >= p.stop) continue;
            if (!is_seen) std::fill(dk_sums, dk_sums + COLUMNS * D, Real(0));
            if (!is_seen) std::fill(dv_sums, dv_sums + COLUMNS * V, Real(0));
            is_seen = true;
            keys_of(p, p.first - begin);
        }
        if (!is_seen) return;
        const Side side = Side::of_keys(call, b, kv);
        for (int64_t j = 0; j < end - begin; j++) {
            Stored *dk = row_of(call.dk, b, kv, begin + j), *dv = row_of(call.dv, b, kv, begin + j);
            side.turn(begin + j, -1, dk_sums + j * D);
            for (int64_t d = 0; d < D; d += LANES) store(dk + d, load(dk_sums + j * D + d));
            for (int64_t d = 0; d < V; d += LANES) store(dv + d, load(dv_sums + j * V + d));
        }
    }

    // The keys of a block that are in a tile; the first of them is number `at` of the block.
    void keys_of(const Part& p, int64_t at) {
        const int64_t count = p.last - p.first;
        pack_keys(p);
        std::fill(d_k, d_k + COLUMNS * D, Real(0));
        std::fill(d_v, d_v + COLUMNS * V, Real(0));
        if (call.key_vectors.x) {
            std::fill(turned_keys - MARGIN, turned_keys - MARGIN + D * ld, Real(0));
            std::fill(d_turned_keys - MARGIN, d_turned_keys - MARGIN + D * ld, Real(0));
            for (int64_t j = 0; j < count; j++)
                for (int64_t d = 0; d < D; d++) turned_keys[d * ld + j] = wide(row_of(call.k, b, kv, p.first + j)[d]);
        }
        for (int64_t h = kv * groups; h < (kv + 1) * groups; h++) {
            std::fill(d_clock, d_clock + COLUMNS, Real(0));
            for (int64_t i = p.start; i < p.stop; i += ROWS) pairs(p, h, i, std::min(ROWS, p.stop - i));
            if (call.d_key_clock)
                add(call.d_key_clock + (b * call.heads + h) * call.keys + p.first, d_clock, -1, count);
        }
        const Real scale = after(call);
        const auto at_row = [](int64_t j, int64_t d, int64_t width) { return IS_HALF ? d * COLUMNS + j : j * width + d; };
        for (int64_t j = 0; j < count; j++) {
            Real *dk = dk_sums + (at + j) * D, *dv = dv_sums + (at + j) * V;
            for (int64_t d = 0; d < D; d++) dk[d] += scale * d_k[at_row(j, d, D)];
            for (int64_t d = 0; d < D && call.key_vectors.x; d++) dk[d] += d_turned_keys[d * ld + j];
            for (int64_t d = 0; d < V; d++) dv[d] += d_v[at_row(j, d, V)];
        }
    }

    void pack_keys(const Part& p) {
        const int64_t count = p.last - p.first;
        const Side side = Side::of_keys(call, b, kv), of_values{call, row_of(call.v, b, kv, 0), call.v.row, V};
        side.pack_rows(p.first, p.last, keys, rows, whole);
        of_values.pack_rows(p.first, p.last, values, rows, whole);
        if (copies_keys())
            for (int64_t j = 0; j < count; j++) side.copy(p.first + j, nullptr, 1, keys_as_rows + j * D);
#if HALF
        pack_down(count, D, rounded(count, PANEL) / 2, COLUMNS / 2 * PANEL, keys_down, [&](int64_t n) {
            return reinterpret_cast<const Stored*>(side.packed(p.first + n, rows + n % 2 * words_of_keys, whole));
        });
#endif
    }

    void pairs(const Part& p, int64_t h, int64_t i, int64_t rows) {
        int64_t left = p.low(i) / PANEL * PANEL, right = rounded(p.high(i + rows - 1), PANEL);
        if (call.query_most) Bound(call, p, b, h, i, rows, row_of(call.lse, b, h, i)).narrow(left, right);
        if (left >= right) return;
        const Side queries = Side::of_queries(call, b, h), grown{call, row_of(call.dout, b, h, 0), call.dout.row, V};
        copy_rows(queries, i, rows, call.shift ? call.shift + h * D : nullptr, before(call), q, q_words);
        const Real* given = row_of_dout(grown, i, rows);
        const int64_t given_row = IS_HALF ? V : call.dout.row;
        Queries met{q, q_words, unshifted, D};
        Operands operands{keys, vectors, 0, {}};
        int64_t value_from = 0;
        if (call.meeting.x) met.meeting = row_of(call.meeting, b, h, i), met.meeting_row = call.meeting.row;
        if (call.vectors.x) {
            for (int64_t n = 0; n < rows && !call.meeting.x; n++)
                for (int64_t d = 0; d < D; d++)
                    unshifted[n * D + d] = wide(row_of(call.q, b, h, i + n)[d]) * Real(call.scale);
            operands.vectors_from =
                pack_vectors(reach(p, i, rows, left, right, call.vectors), call.vectors, h, vectors);
        }
        if (call.values.x)
            value_from = pack_vectors(reach(p, i, rows, left, right, call.values), call.values, h, value_vectors);
        if (call.key_vectors.x)
            operands.turned = turn(p, h, i, rows, left, right, call.key_vectors, turned_x, stride());
        for (int64_t strip = 0; strip < rows; strip += STRIP)
            gradients_of_scores(p, h, i, strip, std::min<int64_t>(STRIP, rows - strip), left, right, met, operands,
                                given, given_row, value_from);
        give(p, h, i, rows, left, right, met, operands.turned, given, given_row);
    }

    static int64_t pack_vectors(Reach r, const Table& t, int64_t h, Real* to) {
        pack(r.from, r.to, t.width, to, [&](int64_t n) { return entry(t, h, n); });
        return r.from;
    }

    // The gradients of the output as Real; in half precision also as words.
    const Real* row_of_dout(const Side& side, int64_t i, int64_t rows) {
#if HALF
        copy_rows(side, i, rows, nullptr, 1, dout, dout_words);
        return dout;
#else
        return (void)rows, side.x + i * side.row;
#endif
    }

    // The weights of the rows strip .. strip + count of a block, and the gradients of their scores.
    void gradients_of_scores(const Part& p, int64_t h, int64_t i, int64_t strip, int64_t count, int64_t left,
                             int64_t right, const Queries& met, const Operands& operands, const Real* given,
                             int64_t given_row, int64_t value_from) {
        const int64_t first = i + strip;
        const Real *lse = row_of(call.lse, b, h, first), *delta = row_of(call.delta, b, h, first);
        int64_t low = std::max(p.low(first) / PANEL * PANEL, left);
        int64_t high = std::min(rounded(p.high(first + count - 1), PANEL), right);
        if (call.query_most) Bound(call, p, b, h, first, count, lse).narrow(low, high);
        Real *w = weights + strip * ld, *d = d_s + strip * ld, *before_function = bare + strip * ld;
        if (low < high) {
            const Queries of_strip{q + strip * D, q_words + strip * words_of_keys,
                                   met.meeting + strip * met.meeting_row, met.meeting_row};
            scores(call, p, b, h, first, count, low, high, of_strip, operands, w, ld,
                   call.function ? before_function : nullptr, nullptr);
#if HALF
            multiply_halves(count, high - low, words_of_values, dout_words + strip * words_of_values, words_of_values,
                            values + low * words_of_values, PANEL * words_of_values, d + low, ld, false);
#else
            multiply(count, high - low, V, given + strip * given_row, given_row, 1, values + low * V, PANEL, PANEL * V,
                     d + low, ld, false);
#endif
            if (call.values.x)
                by_vectors(p, h, first, count, low, high, call.values, given + strip * given_row, given_row,
                           value_vectors, value_from, d, ld);
        }
        for (int64_t r = 0; r < count; r++) {
            Real *weight = w + r * ld, *d_score = d + r * ld;
            const Real offset = lse[r] == NONE ? -NONE : lse[r], own = delta[r];
            for (int64_t j = low; j < high; j += LANES) {
                const Vec now = power_of_two((load(weight + j) - offset) * LOG2_E);
                store(weight + j, now);
                store(d_score + j, now * (load(d_score + j) - own));
            }
            clear(weight, left, right, low, high);
            clear(d_score, left, right, low, high);
            if (call.function) clear(before_function + r * ld, left, right, low, high);
        }
    }

    // Sets pairs that the strip did not compute, and those next to the block, to 0, since products read them.
    void clear(Real* row, int64_t left, int64_t right, int64_t low, int64_t high) const {
        if (low >= high) low = high = left;
        std::fill(row + left - MARGIN, row + low, Real(0));
        std::fill(row + high, row + right + MARGIN, Real(0));
    }

    // Accumulates all gradients of a block, given its weights and the gradients of its scores.
    void give(const Part& p, int64_t h, int64_t i, int64_t rows, int64_t left, int64_t right, const Queries& met,
              const Turned& turned, const Real* given, int64_t given_row) {
        const int64_t seen = std::min(right, p.last - p.first), row = (b * call.heads + h) * call.queries + i;
        give_to_values(rows, left, right, seen, given, given_row);
        if (call.values.x && call.values.gradient)
            by_distance_backward(p, i, rows, left, seen, call.values, h, slot, given, given_row, weights, ld, nullptr,
                                 sums);
        if (call.function && call.is_last) through(p, h, i, rows, left, right);
        if (call.bias.x && call.bias.gradient)
            for (int64_t r = 0; r < rows; r++) {
                const Real* d = d_s + r * ld;
                give_along(p, gradient(call.bias, slot, h, 0), i + r, left, right, call.bias,
                           [d](int64_t j) { return load(d + j); });
            }
        for (int64_t r = 0; r < rows; r++) {
            const Real* d = d_s + r * ld;
            if (call.broken.lines) give_broken(call, p, part, slot, b, h, i + r, left, seen, d);
            if (call.places.query_place) give_places(call, p, part, slot, b, h, i + r, left, seen, d);
            if (!call.d_query_clock) continue;
            add(d_clock + left, d + left, 1, seen - left);
            call.d_query_clock[part * call.batch * call.heads * call.queries + row + r] += sum_of(d, left, seen);
        }
        if constexpr (!IS_HALF)
            if (call.key_vectors.x) give_to_key_vectors(p, h, i, rows, left, right, turned);
        if (call.vectors.x) {
            std::fill(d_m, d_m + rows * E, Real(0));
            by_distance_backward(p, i, rows, left, seen, call.vectors, h, slot, met.meeting, met.meeting_row, d_s, ld,
                                 d_m, sums);
            for (int64_t r = 0; r < rows; r++) {
                if (call.meeting.x) add(row_of(call.d_meeting, part * call.batch + b, h, i + r), d_m + r * E, 1, E);
                else add(dq_row(h, i + r), d_m + r * E, call.scale, E);
            }
        }
        if (call.function && !call.is_last) through(p, h, i, rows, left, right);
        give_to_queries_and_keys(p, h, i, rows, left, right, seen);
    }

    void through(const Part& p, int64_t h, int64_t i, int64_t rows, int64_t left, int64_t right) {
        Real* line = call.factor.gradient ? gradient(call.factor, slot, h, 0) : nullptr;
        for (int64_t r = 0; r < rows; r++)
            apply_backward(call, p, h, i + r, left, right, bare + r * ld, d_s + r * ld, line);
    }

    void give_to_key_vectors(const Part& p, int64_t h, int64_t i, int64_t rows, int64_t left, int64_t right,
                             const Turned& turned) {
        const Table& t = call.key_vectors;
        meet_keys_backward(p, i, rows, left, right, t, turned_keys, ld, turned, d_s, ld, d_turned_keys, d_turned);
        for (int64_t n = 0; t.gradient && n < turned.count; n++) {
            Real* to = gradient(t, slot, h, std::clamp<int64_t>(turned.first + n, 0, t.entries - 1));
            for (int64_t d = 0; d < D; d++) to[d] += d_turned[d * turned.stride + n];
        }
    }

#if HALF
    void give_to_values(int64_t rows, int64_t left, int64_t right, int64_t, const Real* given, int64_t) {
        turn_down(given, rows, V, HALF_ROWS, dout_down);
        round_down(weights, ld, rows, left, right, HALF_ROWS, weights_down);
        multiply_halves(V, right - left, rounded(rows, 2 * WORDS) / 2, dout_down, HALF_ROWS,
                        weights_down + left * HALF_ROWS, PANEL * HALF_ROWS, d_v + left, COLUMNS, true);
    }

    void give_to_queries_and_keys(const Part&, int64_t h, int64_t i, int64_t rows, int64_t left, int64_t right,
                                  int64_t) {
        constexpr int64_t words = COLUMNS / 2;
        const int64_t width = rounded(D, PANEL);
        for (int64_t r = 0; r < rows; r++)
            round_row(d_s + r * ld + left, right - left, (right - left) / 2, d_s_words + r * words + left / 2);
        multiply_halves(rows, width, (right - left) / 2, d_s_words + left / 2, words, keys_down + left / 2 * PANEL,
                        COLUMNS / 2 * PANEL, d_q, width, false);
        add_to_queries(h, i, rows, width);
        turn_down(q, rows, D, HALF_ROWS, q_down);
        round_down(d_s, ld, rows, left, right, HALF_ROWS, d_s_down);
        multiply_halves(D, right - left, rounded(rows, 2 * WORDS) / 2, q_down, HALF_ROWS, d_s_down + left * HALF_ROWS,
                        PANEL * HALF_ROWS, d_k + left, COLUMNS, true);
    }
#else
    void give_to_values(int64_t rows, int64_t left, int64_t, int64_t seen, const Real* given, int64_t given_row) {
        multiply(seen - left, V, rows, weights + left, 1, ld, given, given_row, PANEL, d_v + left * V, V);
    }

    void give_to_queries_and_keys(const Part& p, int64_t h, int64_t i, int64_t rows, int64_t left, int64_t,
                                  int64_t seen) {
        const Real* met = copies_keys() ? keys_as_rows + left * D : row_of(call.k, b, kv, p.first + left);
        multiply(rows, D, seen - left, d_s + left, ld, 1, met, copies_keys() ? D : call.k.row, PANEL, d_q, D, false);
        add_to_queries(h, i, rows, D);
        multiply(seen - left, D, rows, d_s + left, 1, ld, q, D, PANEL, d_k + left * D, D);
    }
#endif

    void add_to_queries(int64_t h, int64_t i, int64_t rows, int64_t width) {
        for (int64_t r = 0; r < rows; r++) {
            add(dq_row(h, i + r), d_q + r * width, call.scale, D);
            if (call.d_shift) add(call.d_shift + (slot * call.heads + h) * D, d_q + r * width, call.scale, D);
        }
    }
};

}  // namespace
