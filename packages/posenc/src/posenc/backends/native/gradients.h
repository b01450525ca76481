// Gradients of the terms of scores, given those of the scores of a row.

#pragma once

#include "bounds.h"

namespace {

Real* gradient(const Table& t, int64_t slot, int64_t head, int64_t n) {
    return t.gradient + slot * t.slot + (head / t.share * t.entries + n) * t.width;
}

// Adds the gradients of the pairs of query i to `line`, those of a table of width 1: f(j) returns them for LANES
// columns from j on. Columns are whole vectors.
template <typename F>
void give_along(const Part& p, Real* line, int64_t i, int64_t left, int64_t right, const Table& t, F f) {
    const int64_t place = p.place(i, 0, t), end = t.entries - 1;
    Vec before{}, after{};
    for (int64_t j = left; j < right; j += LANES) {
        const int64_t n = place + j;
        const Vec given = f(j);
        if (n >= 0 && n + LANES <= t.entries) {
            store(line + n, load(line + n) + given);
        } else if (n + LANES <= 1) {
            before += given;
        } else if (n >= end) {
            after += given;
        } else {
            for (int l = 0; l < LANES; l++) line[std::clamp<int64_t>(n + l, 0, end)] += given[l];
        }
    }
    line[0] += sum(before);
    line[end] += sum(after);
}

// The backward pass of f(s; c): replaces the gradients of a row of f(s) by those of s, and adds those of c to `line`,
// unless it is null. Columns are whole vectors.
void apply_backward(const Call& call, const Part& p, int64_t h, int64_t i, int64_t left, int64_t right,
                    const Real* bare, Real* d_s, Real* line) {
    const bool is_cap = call.function == CAP;
    const auto of_number = [=](int64_t j, Vec c) {
        const Vec s = load(bare + j), g = load(d_s + j);
        if (!is_cap) return g * (s <= all(0) ? all(0) : s);
        const Vec t = tangent(s / c);
        return g * t - g * (Real(1) - t * t) * (s / c);
    };
    const auto of_score = [=](int64_t j, Vec c) {
        const Vec s = load(bare + j), g = load(d_s + j);
        if (!is_cap) return s <= all(0) ? all(0) : g * c;
        const Vec t = tangent(s / c);
        return g * (Real(1) - t * t);
    };
    const Real* factor = call.factor.x + h * call.factor.head;
    const int64_t place = p.place(i, 0, call.factor), entries = call.factor.entries;
    if (line)
        give_along(p, line, i, left, right, call.factor,
                   [=](int64_t j) { return of_number(j, numbers(factor, place + j, entries)); });
    for (int64_t j = left; j < right; j += LANES) store(d_s + j, of_score(j, numbers(factor, place + j, entries)));
}

void add(Real* to, const Real* x, Real times, int64_t n) {
    for (int64_t d = 0; d < n; d++) to[d] += times * x[d];
}

// The backward pass of a product of rows x_i with vectors by distance, given the gradients of the pairs: adds those of
// the vectors to their table, and those of the rows to d_x, unless it is null.
void by_distance_backward(const Block& block, const Table& t, int64_t slot, const Real* x, int64_t x_row,
                          const Real* d_s, int64_t ld, Real* d_x, Real* sums) {
    const Part& p = block.p;
    const int64_t h = block.h, i = block.i, rows = block.rows, left = block.left, right = block.end();
    const Reach near = reach(p, i, rows, left, right, t);
    const Real* pairs = d_s + p.column(i, near.from, t);
    if (near.from < near.to) {
        if (d_x)
            multiply(rows, t.width, near.to - near.from, pairs, ld + 1, 1, entry(t, h, near.from), t.width, PANEL, d_x,
                     t.width);
        if (t.gradient)
            multiply(near.to - near.from, t.width, rows, pairs, 1, ld + 1, x, x_row, PANEL,
                     gradient(t, slot, h, near.from), t.width);
    }
    // Summed over these rows first, since a single running sum over all pairs would lose precision.
    std::fill(sums, sums + 2 * t.width, Real(0));
    bool past = false;
    for (int64_t r = 0; r < rows; r++) {
        if (p.place(i + r, left, t) >= 0 && p.place(i + r, right - 1, t) < t.entries) continue;
        past = true;
        Real low, high;
        ends(p, i + r, left, right, t, d_s + r * ld, low, high);
        add(sums, x + r * x_row, low, t.width);
        add(sums + t.width, x + r * x_row, high, t.width);
        if (!d_x) continue;
        add(d_x + r * t.width, entry(t, h, 0), low, t.width);
        add(d_x + r * t.width, entry(t, h, t.entries - 1), high, t.width);
    }
    if (!past || !t.gradient) return;
    add(gradient(t, slot, h, 0), sums, 1, t.width);
    add(gradient(t, slot, h, t.entries - 1), sums + t.width, 1, t.width);
}

// Adds dout . o to delta of a head: the gradients of a row of scores are those of its weights, minus delta, times the
// weights.
void give_output(const Call& call, int64_t b, int64_t h) {
    for (int64_t i = 0; i < call.queries; i++) {
        const Stored *o = row_of(call.o, b, h, i), *dout = row_of(call.dout, b, h, i);
        Vec total{};
        for (int64_t d = 0; d < call.value_width; d += LANES) total += load(o + d) * load(dout + d);
        *row_of(call.delta, b, h, i) += sum(total);
    }
}

}  // namespace
