// The scores of some queries in a block of keys: lines and vectors by distance, functions, and what is hidden.

#pragma once

#include "key_meeting.h"

namespace {

// A table's rows that some queries reach over in a block, clamped to the table: `from` up to `to`.
struct Reach {
    int64_t from, to;
};

Reach reach(const Part& p, int64_t i, int64_t rows, int64_t left, int64_t right, const Table& t) {
    return {std::clamp<int64_t>(p.place(i + rows - 1, left, t), 0, t.entries),
            std::clamp<int64_t>(p.place(i, right - 1, t) + 1, 0, t.entries)};
}

// Runs f(column, number) over columns, with the number that a table of width 1 has there.
template <typename F>
void along(const Part& p, int64_t h, int64_t i, int64_t left, int64_t right, const Table& t, F f) {
    const Real* line = t.x + h * t.head;
    const int64_t place = p.place(i, 0, t), inside = std::clamp<int64_t>(-place, left, right);
    const int64_t outside = std::clamp<int64_t>(t.entries - place, inside, right);
    for (int64_t j = left; j < inside; j++) f(j, line[0]);
    for (int64_t j = inside; j < outside; j++) f(j, line[place + j]);
    for (int64_t j = outside; j < right; j++) f(j, line[t.entries - 1]);
}

// Adds to the scores of query i in the columns left .. right what is a number for each pair.
void add_lines(const Call& call, const Part& p, int64_t b, int64_t h, int64_t i, int64_t left, int64_t right, Real* s) {
    if (call.bias.x) along(p, h, i, left, right, call.bias, [s](int64_t j, Real c) { s[j] += c; });
    if (call.places.query_place) add_places(call, p, b, h, i, left, right, s);
    if (call.broken.lines) add_broken(call, p, b, h, i, left, right, s);
    if (call.query_clock) {  // readings grow with the text, in double precision; differences do not
        const double own = call.query_clock[(b * call.heads + h) * call.queries + i];
        const double* others = call.key_clock + (b * call.heads + h) * call.keys + p.first;
        for (int64_t j = left; j < std::min(right, p.last - p.first); j++) s[j] += static_cast<Real>(own - others[j]);
    }
}

// What a query gives by the table's end entries, where it reaches past them: constants of its row.
void add_ends(const Part& p, int64_t i, int64_t left, int64_t right, const Table& t, Real low, Real high, Real* s) {
    const int64_t inside = std::clamp(p.column(i, 0, t), left, right);
    const int64_t outside = std::clamp(p.column(i, t.entries, t), inside, right);
    for (int64_t j = left; j < inside; j++) s[j] += low;
    for (int64_t j = outside; j < right; j++) s[j] += high;
}

// Sums of a row of pairs whose entries lie before the table's first, and past its last.
void ends(const Part& p, int64_t i, int64_t left, int64_t right, const Table& t, const Real* row, Real& low,
          Real& high) {
    const int64_t inside = std::clamp(p.column(i, 0, t), left, right);
    const int64_t outside = std::clamp(p.column(i, t.entries, t), inside, right);
    const auto weight = [row](int64_t j) { return row[j]; };
    low = sum_over(left, inside, weight);
    high = sum_over(outside, right, weight);
}

// The numbers that a table of width 1 has for query i at LANES columns from j on.
Vec numbers(const Part& p, int64_t h, int64_t i, int64_t j, const Table& t) {
    if (t.entries == 1) return all(*entry(t, h, 0));
    Real found[LANES];
    for (int l = 0; l < LANES; l++) found[l] = *entry(t, h, p.place(i, j + l, t));
    return load(found);
}

// f(s; c) in place: max(s, 0) c, or c tanh(s / c). Columns are whole vectors.
void apply(const Call& call, const Part& p, int64_t h, int64_t i, int64_t left, int64_t right, Real* s) {
    if (call.function == CAP) {
        for (int64_t j = left; j < right; j += LANES) {
            const Vec c = numbers(p, h, i, j, call.factor);
            store(s + j, c * tangent(load(s + j) / c));
        }
        return;
    }
    along(p, h, i, left, right, call.factor, [s](int64_t j, Real c) { s[j] = (s[j] <= 0 ? Real(0) : s[j]) * c; });
}

void hide(const Part& p, int64_t i, int64_t left, int64_t right, Real* s) {
    for (int64_t j = left; j < std::min(right, p.low(i)); j++) s[j] = NONE;
    for (int64_t j = std::max(left, p.high(i)); j < right; j++) s[j] = NONE;
}

// Adds to the pairs of some rows x_i what they give by vectors of the distance, which are packed from entry `begin` on;
// or as they stand in the table, where `packed` is null.
void by_vectors(const Part& p, int64_t h, int64_t i, int64_t rows, int64_t left, int64_t right, const Table& t,
                const Real* x, int64_t x_row, const Real* packed, int64_t begin, Real* s, int64_t ld) {
    const Reach near = reach(p, i, rows, left, right, t);
    if (near.from < near.to && !packed) {
        dots(rows, near.to - near.from, t.width, x, x_row, entry(t, h, near.from), t.width, s + p.column(i, near.from, t),
             ld + 1);
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

// The scale that queries have before their products with keys: one that is exact. What is left of it comes after, since a
// query that is scaled first would be rounded once more.
Real before(const Call& call) {
    int power;
    return std::frexp(call.scale, &power) == 0.5 ? Real(call.scale) : Real(1);
}
Real after(const Call& call) { return before(call) == 1 ? Real(call.scale) : Real(1); }

// Scores of `rows` queries from i on in the columns left .. right of a block; s is that of query i and key p.first. Keys
// and vectors are packed, unless they are null.
void scores(const Call& call, const Part& p, int64_t b, int64_t h, int64_t i, int64_t rows, int64_t left, int64_t right,
            const Real* q, const Real* keys, const Real* meeting, int64_t meeting_row, const Real* vectors,
            int64_t vectors_from, const Turned& turned, Real* s, int64_t ld, Real* bare) {
    const auto function = [&](int64_t r) {
        if (bare) std::copy(s + r * ld + left, s + r * ld + right, bare + r * ld + left);
        apply(call, p, h, i + r, left, right, s + r * ld);
    };
    for (int64_t r = 0; r < rows; r++) std::fill(s + r * ld + left, s + r * ld + right, Real(0));
    if (keys)
        multiply(rows, right - left, call.width, q, call.width, 1, keys + left * call.width, PANEL, PANEL * call.width,
                 s + left, ld);
    else
        dots(rows, std::min(right, p.last - p.first) - left, call.width, q, call.width,
             row_of(call.k, b, h / (call.heads / call.kv_heads), p.first + left), call.k.row, s + left, ld);
    const Real scale = after(call);
    if (scale != 1)
        for (int64_t r = 0; r < rows; r++)
            for (int64_t j = left; j < right; j++) s[r * ld + j] *= scale;
    if (call.function && !call.is_last)
        for (int64_t r = 0; r < rows; r++) function(r);
    if (call.vectors.x)
        by_vectors(p, h, i, rows, left, right, call.vectors, meeting, meeting_row, vectors, vectors_from, s, ld);
    if (call.key_vectors.x && keys) {
        meet_keys(p, i, rows, left, right, call.key_vectors, keys, turned, s, ld);
    } else if (call.key_vectors.x) {
        const Real* met = row_of(call.k, b, h / (call.heads / call.kv_heads), p.first);
        for (int64_t r = 0; r < rows; r++)
            for (int64_t j = left; j < std::min(right, p.last - p.first); j++)
                s[r * ld + j] += dot(met + j * call.k.row, entry(call.key_vectors, h, p.place(i + r, j, call.key_vectors)),
                                     call.width);
    }
    for (int64_t r = 0; r < rows; r++) {
        // After the products, so that a large bias is rounded once and not at every step of theirs.
        add_lines(call, p, b, h, i + r, left, right, s + r * ld);
        if (call.function && call.is_last) function(r);
        hide(p, i + r, left, right, s + r * ld);
    }
}

// A copy of rows, scaled, with a vector added.
void copy_rows(const Tensor4& t, int64_t b, int64_t h, int64_t start, int64_t rows, int64_t width, const Real* plus,
               Real scale, Real* to) {
    for (int64_t r = 0; r < rows; r++) {
        const Real* from = row_of(t, b, h, start + r);
        for (int64_t d = 0; d < width; d++) to[r * width + d] = (plus ? from[d] + plus[d] : from[d]) * scale;
    }
}

}  // namespace
