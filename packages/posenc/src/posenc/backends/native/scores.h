// The scores of some queries in a block of keys: biases and vectors by distance, functions, and the mask.

#pragma once

#include "key_meeting.h"
#include "rotation.h"

namespace {

// Rows of scores that are processed at once.
constexpr int64_t STRIP = IS_HALF ? 32 : REGISTER_ROWS;
constexpr int64_t MARGIN = 64;  // columns next to a block of scores, which its shifted rows use
constexpr int64_t CAP = 2;  // the function c tanh(s / c); the other one is max(s, 0) c

// The scores of `rows` queries of a head from i on, in the columns left .. right of a block of keys.
struct Block {
    const Part& p;
    int64_t b, h, i, rows, left, right;

    // Those that some query sees, in whole panels.
    static Block seen_by(const Part& p, int64_t b, int64_t h, int64_t i, int64_t rows) {
        return {p, b, h, i, rows, p.low(i) / PANEL * PANEL, rounded(p.high(i + rows - 1), PANEL)};
    }

    // Some of its queries, and the columns that they see.
    Block of_rows(int64_t from, int64_t count) const {
        const Block seen = seen_by(p, b, h, from, count);
        return {p, b, h, from, count, std::max(seen.left, left), std::min(seen.right, right)};
    }

    bool empty() const { return left >= right; }

    // The end of the columns that have a key.
    int64_t end() const { return std::min(right, p.last - p.first); }
};

// The entries of a table for some queries in a block, clamped to the table: `from` up to `to`.
struct Reach {
    int64_t from, to;
};

Reach reach(const Part& p, int64_t i, int64_t rows, int64_t left, int64_t right, const Table& t) {
    return {std::clamp<int64_t>(p.place(i + rows - 1, left, t), 0, t.entries),
            std::clamp<int64_t>(p.place(i, right - 1, t) + 1, 0, t.entries)};
}

// The entries of a table of width 1 from `place` on, for LANES columns; the end entries are repeated.
inline Vec numbers(const Real* line, int64_t place, int64_t entries) {
    if (place >= 0 && place + LANES <= entries) return load(line + place);
    if (place >= entries - 1) return all(line[entries - 1]);
    if (place + LANES <= 1) return all(line[0]);
    Real found[LANES];
    for (int l = 0; l < LANES; l++) found[l] = line[std::clamp<int64_t>(place + l, 0, entries - 1)];
    return load(found);
}

// Calls f(column, numbers) for columns, which are whole vectors, with the entries of a table of width 1.
template <typename F>
void along(const Part& p, int64_t h, int64_t i, int64_t left, int64_t right, const Table& t, F f) {
    const Real* line = t.x + h * t.head;
    const int64_t place = p.place(i, 0, t);
    for (int64_t j = left; j < right; j += LANES) f(j, numbers(line, place + j, t.entries));
}

// Adds the terms that are a number for each pair to the scores of query i in the columns left .. right.
void add_lines(const Call& call, const Part& p, int64_t b, int64_t h, int64_t i, int64_t left, int64_t right, Real* s) {
    if (call.bias.x) along(p, h, i, left, right, call.bias, [s](int64_t j, Vec c) { store(s + j, load(s + j) + c); });
    if (call.places.query_place) add_places(call, p, b, h, i, left, right, s);
    if (call.broken.lines) add_broken(call, p, b, h, i, left, right, s);
    if (call.query_clock) {  // float64 sums grow with the text; their differences do not
        const double own = call.query_clock[(b * call.heads + h) * call.queries + i];
        const double* others = call.key_clock + (b * call.heads + h) * call.keys + p.first;
        for (int64_t j = left; j < std::min(right, p.last - p.first); j++) s[j] += static_cast<Real>(own - others[j]);
    }
}

// Adds a query's products with the end entries of a table, where columns are beyond them.
void add_ends(const Part& p, int64_t i, int64_t left, int64_t right, const Table& t, Real low, Real high, Real* s) {
    const int64_t inside = std::clamp(p.column(i, 0, t), left, right);
    const int64_t outside = std::clamp(p.column(i, t.entries, t), inside, right);
    for (int64_t j = left; j < inside; j++) s[j] += low;
    for (int64_t j = outside; j < right; j++) s[j] += high;
}

// The sums of a row of pairs whose entries are before the table's first and after its last.
void ends(const Part& p, int64_t i, int64_t left, int64_t right, const Table& t, const Real* row, Real& low,
          Real& high) {
    const int64_t inside = std::clamp(p.column(i, 0, t), left, right);
    const int64_t outside = std::clamp(p.column(i, t.entries, t), inside, right);
    low = sum_of(row, left, inside);
    high = sum_of(row, outside, right);
}

// f(s; c) in place.
void apply(const Call& call, const Part& p, int64_t h, int64_t i, int64_t left, int64_t right, Real* s) {
    along(p, h, i, left, right, call.factor, [&call, s](int64_t j, Vec c) {
        const Vec now = load(s + j);
        store(s + j, call.function == CAP ? c * tangent(now / c) : (now <= all(0) ? all(0) : now) * c);
    });
}

void hide(const Part& p, int64_t i, int64_t left, int64_t right, Real* s) {
    for (int64_t j = left; j < std::min(right, p.low(i)); j++) s[j] = NONE;
    for (int64_t j = std::max(left, p.high(i)); j < right; j++) s[j] = NONE;
}

// Adds the products of the rows x_i of a block with vectors by distance, which are packed from entry `begin` on or, if
// `packed` is null, read from the table.
void by_vectors(const Block& block, const Table& t, const Real* x, int64_t x_row, const Real* packed, int64_t begin,
                Real* s, int64_t ld) {
    const auto& [p, b, h, i, rows, left, right] = block;
    const Reach near = reach(p, i, rows, left, right, t);
    if (near.from < near.to && !packed) {
        dots(rows, near.to - near.from, t.width, x, x_row, entry(t, h, near.from), t.width,
             s + p.column(i, near.from, t), ld + 1);
    } else if (near.from < near.to) {  // in whole panels
        const int64_t from = begin + (near.from - begin) / PANEL * PANEL;
        multiply(rows, rounded(near.to - from, PANEL), t.width, x, x_row, 1, packed + (from - begin) * t.width, PANEL,
                 PANEL * t.width, s + p.column(i, from, t), ld + 1);
    }
    for (int64_t r = 0; r < rows; r++) {
        if (p.place(i + r, left, t) >= 0 && p.place(i + r, right - 1, t) < t.entries) continue;
        const Real low = dot(x + r * x_row, entry(t, h, 0), t.width);
        const Real high = dot(x + r * x_row, entry(t, h, t.entries - 1), t.width);
        add_ends(p, i + r, left, right, t, low, high, s + r * ld);
    }
}

// The scale is applied to queries only if it is a power of two, which is exact; otherwise to the products, to avoid
// rounding queries once more.
Real before(const Call& call) {
    int power;
    return std::frexp(call.softmax_scale, &power) == 0.5 ? Real(call.softmax_scale) : Real(1);
}
Real after(const Call& call) { return before(call) == 1 ? Real(call.softmax_scale) : Real(1); }

// Some queries of a head: for products with keys, as Real and as words, and for products with vectors.
struct Queries {
    const Real* numbers;
    const Word* words;
    const Real* meeting;
    int64_t meeting_row;
};

// Packed keys and vectors by distance; null for a few queries, which read them unpacked.
struct Operands {
    const Word* keys;
    const Real* vectors;
    int64_t vectors_from;
    Transposed transposed;
};

// s = q . k in a block.
void products_with_keys(const Call& call, const Block& block, const Side& keys, const Queries& q, const Word* packed,
                        Real* s, int64_t ld, Real* buffer) {
    const auto& [p, b, h, i, rows, left, right] = block;
    const int64_t words = keys.words();
    if (!packed) {
        for (int64_t r = 0; r < rows; r++) std::fill(s + r * ld + left, s + r * ld + right, Real(0));
        if (!keys.cos)
            dots(rows, block.end() - left, call.width, q.numbers, call.width, keys.x + (p.first + left) * keys.row,
                 keys.row, s + left, ld);
        for (int64_t j = left; j < block.end() && keys.cos; j++)
            dots(rows, 1, call.width, q.numbers, call.width, keys.numbers(p.first + j, buffer), 0, s + j, ld);
    } else {
#if HALF
        multiply_halves(rows, right - left, words, q.words, words, packed + left * words, PANEL * words, s + left, ld,
                        false);
#else
        multiply(rows, right - left, words, q.numbers, words, 1, packed + left * words, PANEL, PANEL * words, s + left,
                 ld, false);
#endif
    }
    const Real scale = after(call);
    if (scale != 1)
        for (int64_t r = 0; r < rows; r++)
            for (int64_t j = left; j < right; j += LANES) store(s + r * ld + j, load(s + r * ld + j) * scale);
}

// The scores of a block; s is that of query i and key p.first. The scores before the function are copied to `bare`,
// unless it is null.
void scores(const Call& call, const Block& block, const Queries& q, const Operands& given, Real* s, int64_t ld,
            Real* bare, Real* buffer) {
    const auto& [p, b, h, i, rows, left, right] = block;
    const auto function = [&, left = left, right = right](int64_t r) {
        if (bare) std::copy(s + r * ld + left, s + r * ld + right, bare + r * ld + left);
        apply(call, block.p, block.h, block.i + r, left, right, s + r * ld);
    };
    const Side keys = Side::of_keys(call, b, h / (call.heads / call.kv_heads));
    products_with_keys(call, block, keys, q, given.keys, s, ld, buffer);
    if (call.function && !call.is_last)
        for (int64_t r = 0; r < rows; r++) function(r);
    if (call.vectors.x)
        by_vectors(block, call.vectors, q.meeting, q.meeting_row, given.vectors, given.vectors_from, s, ld);
#if !HALF
    if (call.key_vectors.x && given.keys) {
        meet_keys(p, i, rows, left, right, call.key_vectors, given.keys, given.transposed, s, ld);
    } else if (call.key_vectors.x) {
        for (int64_t j = left; j < block.end(); j++) {
            const Real* key = keys.numbers(p.first + j, buffer);
            for (int64_t r = 0; r < rows; r++)
                s[r * ld + j] += dot(key, entry(call.key_vectors, h, p.place(i + r, j, call.key_vectors)), call.width);
        }
    }
#endif
    for (int64_t r = 0; r < rows; r++) {
        // After the products, so that a large bias is rounded only once.
        add_lines(call, p, b, h, i + r, left, right, s + r * ld);
        if (call.function && call.is_last) function(r);
        hide(p, i + r, left, right, s + r * ld);
    }
}

// Packs the entries of a table that are in reach; gives the first of them.
int64_t pack_vectors(Reach r, const Table& t, int64_t h, Real* to) {
    pack(r.from, r.to, t.width, to, [&](int64_t n) { return entry(t, h, n); });
    return r.from;
}

// Copies queries of a head times softmax_scale, not rotated, as vectors by distance meet them.
void copy_scaled(const Call& call, int64_t b, int64_t h, int64_t start, int64_t rows, Real* to) {
    for (int64_t n = 0; n < rows; n++)
        for (int64_t d = 0; d < call.width; d++)
            to[n * call.width + d] = wide(row_of(call.q, b, h, start + n)[d]) * Real(call.softmax_scale);
}

// Copies rows contiguously as Real and, in half precision, as words.
void copy_rows(const Side& from, int64_t start, int64_t rows, const Real* plus, Real scale, Real* to, Word* words) {
    for (int64_t r = 0; r < rows; r++) {
        from.copy(start + r, plus, scale, to + r * from.width);
#if HALF
        if (words) round_row(to + r * from.width, from.width, from.words(), words + r * from.words());
#else
        (void)words;
#endif
    }
}

}  // namespace
