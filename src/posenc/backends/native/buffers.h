// The buffers of a task of the backward pass.

#pragma once

#include "gradients.h"

namespace {

constexpr int64_t ROWS = 64;      // queries of a block
constexpr int64_t COLUMNS = 256;  // keys of a block
static_assert(MARGIN >= ROWS, "each row of a block starts one column later");
static_assert(ROWS % (2 * WORDS) == 0 && COLUMNS % PANEL == 0, "");

struct Buffers {
    const Call& call;
    const int64_t groups, D, E, V, words_of_keys, words_of_values;
    // Rows of queries and of the output's gradients; keys and values in panels; vectors by distance.
    Real *q, *unshifted, *dout, *vectors, *value_vectors, *keys_as_rows, *whole;
    Word *q_words, *dout_words, *keys, *values, *rows;
    // Weights, gradients of scores, and scores before the function: rows are queries, columns are keys.
    Real *weights, *d_s, *bare;
    // Gradients of a block of queries and of its keys in a tile, and their sums over tiles and over the task.
    Real *d_q, *d_m, *d_k, *d_v, *d_clock, *sums, *dk_sums, *dv_sums, *dq_of_task;
    // Keys to multiply with vectors, transposed.
    Real *turned_keys, *d_turned_keys, *turned_x, *d_turned;
    // In half precision: operands of sums over queries ("down") and over keys. d_k and d_v then have a row per channel.
    Word *q_down, *dout_down, *keys_down, *weights_down, *d_s_down, *d_s_words;
    static constexpr int64_t ld = COLUMNS + 2 * MARGIN, HALF_ROWS = ROWS / 2;

    Buffers(const Call& c, Room& r)
        : call(c), groups(c.heads / c.kv_heads), D(c.width), E(c.vectors.width), V(c.value_width),
          words_of_keys(Side::words_of_width(D)), words_of_values(Side::words_of_width(V)) {
        const int64_t window = rounded(COLUMNS + ROWS, PANEL) + PANEL, K = c.key_vectors.width;
        const auto half = [](int64_t count) { return IS_HALF ? count : 0; };
        q = r.take(ROWS * D);
        unshifted = r.take(c.vectors.x && !c.meeting.x ? ROWS * D : 0);
        dout = r.take(half(ROWS * V));
        vectors = r.take(window * E);
        value_vectors = r.take(window * c.values.width);
        keys_as_rows = r.take(copies_keys() ? COLUMNS * D : 0);
        keys = r.take<Word>(COLUMNS * words_of_keys);
        values = r.take<Word>(COLUMNS * words_of_values);
        rows = r.take<Word>(PANEL * std::max(words_of_keys, words_of_values));
        whole = r.take(half(std::max(D, V)));
        for (Real** each : {&weights, &d_s, &bare}) {
            *each = r.take(ROWS * ld);
            if (*each) std::fill(*each, *each + ROWS * ld, Real(0));
            if (*each) *each += MARGIN;
        }
        d_q = r.take(ROWS * rounded(D, PANEL));
        d_m = r.take(ROWS * E);
        for (Real** each : {&d_k, &dk_sums}) *each = r.take(COLUMNS * D);
        for (Real** each : {&d_v, &dv_sums}) *each = r.take(COLUMNS * V);
        d_clock = r.take(COLUMNS);
        sums = r.take(2 * std::max(E, c.values.width));
        dq_of_task = r.take(c.dq_sums.x ? 0 : groups * c.queries * D);
        for (Real** each : {&turned_keys, &d_turned_keys}) {
            *each = r.take(ld * K);
            if (*each) *each += MARGIN;
        }
        for (Real** each : {&turned_x, &d_turned}) *each = r.take(stride() * K);
        q_words = r.take<Word>(half((ROWS + STRIP) * words_of_keys));
        dout_words = r.take<Word>(half((ROWS + STRIP) * words_of_values));
        q_down = r.take<Word>(half(rounded(D, STRIP) * HALF_ROWS));
        dout_down = r.take<Word>(half(rounded(V, STRIP) * HALF_ROWS));
        keys_down = r.take<Word>(half(COLUMNS / 2 * rounded(D, PANEL)));
        weights_down = r.take<Word>(half(COLUMNS * HALF_ROWS));
        d_s_down = r.take<Word>(half(COLUMNS * HALF_ROWS));
        d_s_words = r.take<Word>(half((ROWS + STRIP) * COLUMNS / 2));
    }

    // Whether products over keys need a copy, since the stored keys are not rotated.
    bool copies_keys() const { return !IS_HALF && call.turn.query_cos; }

    static int64_t stride() { return turned_stride(ROWS, COLUMNS); }
};

}  // namespace
