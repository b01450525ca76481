// The scores of some queries in a block of keys: lines and vectors by distance, functions, and what is hidden.

#pragma once

#include "key_meeting.h"
#include "turn.h"

namespace {

// Rows of scores that are worked on at once.
constexpr int64_t STRIP = IS_HALF ? 32 : REGISTER_ROWS;
constexpr int64_t MARGIN = 64;  // columns beside a block of scores, which its shifted rows reach over
constexpr int64_t CAP = 2;  // of the functions of a score, c tanh(s / c); another is max(s, 0) c

// A table's rows that some queries reach over in a block, clamped to the table: `from` up to `to`.
struct Reach {
    int64_t from, to;
};

Reach reach(const Part& p, int64_t i, int64_t rows, int64_t left, int64_t right, const Table& t) {
    return {std::clamp<int64_t>(p.place(i + rows - 1, left, t), 0, t.entries),
            std::clamp<int64_t>(p.place(i, right - 1, t) + 1, 0, t.entries)};
}

// The numbers that a table of width 1 has from an entry on, for LANES columns; the end entries go on.
inline Vec numbers(const Real* line, int64_t place, int64_t entries) {
    if (place >= 0 && place + LANES <= entries) return load(line + place);
    if (place >= entries - 1) return all(line[entries - 1]);
    if (place + LANES <= 1) return all(line[0]);
    Real found[LANES];
    for (int l = 0; l < LANES; l++) found[l] = line[std::clamp<int64_t>(place + l, 0, entries - 1)];
    return load(found);
}

// Runs f(column, numbers) over columns, which are whole vectors, with the numbers that a table of width 1 has there.
template <typename F>
void along(const Part& p, int64_t h, int64_t i, int64_t left, int64_t right, const Table& t, F f) {
    const Real* line = t.x + h * t.head;
    const int64_t place = p.place(i, 0, t);
    for (int64_t j = left; j < right; j += LANES) f(j, numbers(line, place + j, t.entries));
}

// Adds to the scores of query i in the columns left .. right what is a number for each pair.
void add_lines(const Call& call, const Part& p, int64_t b, int64_t h, int64_t i, int64_t left, int64_t right, Real* s) {
    if (call.bias.x) along(p, h, i, left, right, call.bias, [s](int64_t j, Vec c) { store(s + j, load(s + j) + c); });
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

// Adds to the pairs of some rows x_i what they give by vectors of the distance, which are packed from entry `begin` on;
// or as they stand in the table, where `packed` is null.
void by_vectors(const Part& p, int64_t h, int64_t i, int64_t rows, int64_t left, int64_t right, const Table& t,
                const Real* x, int64_t x_row, const Real* packed, int64_t begin, Real* s, int64_t ld) {
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

// The scale that queries have before their products with keys: one that is exact. What is left of it comes after, since
// a query that is scaled first would be rounded once more.
Real before(const Call& call) {
    int power;
    return std::frexp(call.scale, &power) == 0.5 ? Real(call.scale) : Real(1);
}
Real after(const Call& call) { return before(call) == 1 ? Real(call.scale) : Real(1); }

// Some queries of a head in three forms: as products with keys take them, in numbers and in words, and as they meet
// vectors.
struct Queries {
    const Real* numbers;
    const Word* words;
    const Real* meeting;
    int64_t meeting_row;
};

// Keys and vectors by distance in panels; null where a few queries take them as they stand.
struct Operands {
    const Word* keys;
    const Real* vectors;
    int64_t vectors_from;
    Turned turned;
};

// s = q . k in the columns left .. right of a block.
void products_with_keys(const Call& call, const Part& p, const Side& keys, int64_t rows, int64_t left, int64_t right,
                        const Queries& q, const Word* packed, Real* s, int64_t ld, Real* room) {
    const int64_t words = keys.words();
    if (!packed) {
        for (int64_t r = 0; r < rows; r++) std::fill(s + r * ld + left, s + r * ld + right, Real(0));
        const int64_t seen = std::min(right, p.last - p.first);
        if (!keys.cos)
            dots(rows, seen - left, call.width, q.numbers, call.width, keys.x + (p.first + left) * keys.row, keys.row,
                 s + left, ld);
        for (int64_t j = left; j < seen && keys.cos; j++)
            dots(rows, 1, call.width, q.numbers, call.width, keys.numbers(p.first + j, room), 0, s + j, ld);
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

// Scores of `rows` queries from i on in the columns left .. right of a block; s is that of query i and key p.first.
// What a function of the score is given goes to `bare`, unless it is null.
void scores(const Call& call, const Part& p, int64_t b, int64_t h, int64_t i, int64_t rows, int64_t left, int64_t right,
            const Queries& q, const Operands& given, Real* s, int64_t ld, Real* bare, Real* room) {
    const auto function = [&](int64_t r) {
        if (bare) std::copy(s + r * ld + left, s + r * ld + right, bare + r * ld + left);
        apply(call, p, h, i + r, left, right, s + r * ld);
    };
    const Side keys = Side::of_keys(call, b, h / (call.heads / call.kv_heads));
    products_with_keys(call, p, keys, rows, left, right, q, given.keys, s, ld, room);
    if (call.function && !call.is_last)
        for (int64_t r = 0; r < rows; r++) function(r);
    if (call.vectors.x)
        by_vectors(p, h, i, rows, left, right, call.vectors, q.meeting, q.meeting_row, given.vectors,
                   given.vectors_from, s, ld);
#if !HALF
    if (call.key_vectors.x && given.keys) {
        meet_keys(p, i, rows, left, right, call.key_vectors, given.keys, given.turned, s, ld);
    } else if (call.key_vectors.x) {
        for (int64_t j = left; j < std::min(right, p.last - p.first); j++) {
            const Real* key = keys.numbers(p.first + j, room);
            for (int64_t r = 0; r < rows; r++)
                s[r * ld + j] += dot(key, entry(call.key_vectors, h, p.place(i + r, j, call.key_vectors)), call.width);
        }
    }
#endif
    for (int64_t r = 0; r < rows; r++) {
        // After the products, so that a large bias is rounded once and not at every step of theirs.
        add_lines(call, p, b, h, i + r, left, right, s + r * ld);
        if (call.function && call.is_last) function(r);
        hide(p, i + r, left, right, s + r * ld);
    }
}

// Some rows side by side, in numbers and, where products take them, in words.
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
