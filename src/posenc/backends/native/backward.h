// The backward pass of one task: the keys of a key head, or a part of them, and all queries that see them.

#pragma once

#include "bounds.h"

namespace {

Real* gradient(const Table& t, int64_t slot, int64_t head, int64_t n) {
    return t.gradient + slot * t.slot + (head / t.share * t.entries + n) * t.width;
}

// Adds to the gradients of a table of width 1 those of the pairs of query i.
template <typename F>
void give_along(const Part& p, Real* line, int64_t i, int64_t left, int64_t right, const Table& t, F f) {
    const int64_t place = p.place(i, 0, t), inside = std::clamp<int64_t>(-place, left, right);
    const int64_t outside = std::clamp<int64_t>(t.entries - place, inside, right);
    for (int64_t j = inside; j < outside; j++) line[place + j] += f(j);
    line[0] += sum_over(left, inside, f);
    line[t.entries - 1] += sum_over(outside, right, f);
}

// Back through f(s; c): the gradients of a row of f(s) become those of s.
void apply_backward(const Call& call, const Part& p, int64_t h, int64_t i, int64_t left, int64_t right,
                    const Real* bare, Real* d_s, Real* line) {
    if (call.function == CAP) {
        Real of_cap[COLUMNS + PANEL];
        for (int64_t j = left; j < right; j += LANES) {  // past the last column gradients are 0
            const Vec g = load(d_s + j), c = numbers(p, h, i, j, call.factor), ratio = load(bare + j) / c, t = tangent(ratio);
            const Vec of_score = g * (Real(1) - t * t);
            store(of_cap + j, g * t - of_score * ratio);
            store(d_s + j, of_score);
        }
        if (line) give_along(p, line, i, left, right, call.factor, [&](int64_t j) { return of_cap[j]; });
        return;
    }
    if (line) give_along(p, line, i, left, right, call.factor, [=](int64_t j) { return bare[j] <= 0 ? Real(0) : d_s[j] * bare[j]; });
    along(p, h, i, left, right, call.factor, [=](int64_t j, Real c) { d_s[j] = bare[j] <= 0 ? Real(0) : d_s[j] * c; });
}

void add(Real* to, const Real* x, Real times, int64_t n) {
    for (int64_t d = 0; d < n; d++) to[d] += times * x[d];
}

// The gradients of a product of rows x_i with vectors of the distance, given those of the pairs: of the vectors into
// their table, and of the rows into d_x, unless that is null.
void by_distance_backward(const Part& p, int64_t i, int64_t rows, int64_t left, int64_t right, const Table& t,
                          int64_t h, int64_t slot, const Real* x, int64_t x_row, const Real* d_s, int64_t ld,
                          Real* d_x, Real* sums) {
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
    // Summed over these rows first, since there are far more pairs than the last digits of a running sum can hold.
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

struct Backward {
    const Call& call;
    int64_t slot, part;
    Real *q, *unshifted, *keys, *values, *vectors, *value_vectors, *weights, *d_s, *bare, *d_q, *d_m, *d_k, *d_v, *d_clock, *sums;
    Real *turned_keys, *d_turned_keys, *turned_x, *d_turned;
    static constexpr int64_t ld = COLUMNS + 2 * MARGIN;

    static int64_t window() { return rounded(COLUMNS + ROWS, PANEL) + PANEL; }

    static int64_t stride() { return turned_stride(ROWS, COLUMNS); }

    static constexpr int PARTS = 19;
    static void sizes(const Call& c, int64_t* found) {
        const int64_t D = c.width, V = c.value_width, E = c.vectors.width, W = c.values.width, K = c.key_vectors.width;
        const int64_t all[PARTS] = {ROWS * D,  ROWS * D,  COLUMNS * D, COLUMNS * V, window() * E, window() * W,
                                    ROWS * ld, ROWS * ld, ROWS * ld,   ROWS * D,    ROWS * E,     COLUMNS * D,
                                    COLUMNS * V, COLUMNS, 2 * std::max(E, W), ld * K, ld * K, stride() * K, stride() * K};
        for (int n = 0; n < PARTS; n++) found[n] = rounded(all[n], 16);
    }

    static int64_t work(const Call& c) {
        int64_t found[PARTS], needed = 0;
        sizes(c, found);
        for (int64_t size : found) needed += size;
        return needed;
    }

    Backward(const Call& c, int64_t task, Real* x) : call(c) {
        slot = task / c.kv_heads;
        part = slot % c.parts;
        Real** const all[PARTS] = {&q,   &unshifted, &keys, &values, &vectors, &value_vectors, &weights, &d_s,
                                   &bare, &d_q,   &d_m,  &d_k,    &d_v,     &d_clock,       &sums,
                                    &turned_keys, &d_turned_keys, &turned_x, &d_turned};
        int64_t found[PARTS];
        sizes(c, found);
        for (int n = 0; n < PARTS; n++) {
            *all[n] = x;
            x += found[n];
        }
        std::fill(weights, weights + 3 * ROWS * ld, Real(0));
        weights += MARGIN;
        d_s += MARGIN;
        bare += MARGIN;
        turned_keys += MARGIN;
        d_turned_keys += MARGIN;
    }

    void run(int64_t kv) {
        for (int64_t b = slot / call.parts; b < call.batch; b += call.slots / call.parts)
            for (int64_t n = 0; n < call.count; n++) {
                const Tile& tile = call.tiles[n];
                if (b < tile.batch || b >= tile.batch_end) continue;
                // Blocks begin at the same keys in all tiles, so each key is of one part.
                for (int64_t block = tile.first / COLUMNS; block * COLUMNS < tile.last; block++)
                    if (block % call.parts == part)
                        keys_of(tile, b, kv, std::max(tile.first, block * COLUMNS),
                                std::min(tile.last, (block + 1) * COLUMNS));
            }
    }

    void keys_of(const Tile& tile, int64_t b, int64_t kv, int64_t first, int64_t last) {
        const int64_t D = call.width, V = call.value_width, groups = call.heads / call.kv_heads;
        Part p{&tile, 0, 0, first, last};
        p.start = std::max(tile.start, p.first - tile.high);
        p.stop = std::min(tile.stop, p.last - tile.low);
        if (p.start >= p.stop) return;
        const int64_t count = p.last - p.first;
        pack(row_of(call.k, b, kv, p.first), call.k.row, 0, count, D, keys);
        pack(row_of(call.v, b, kv, p.first), call.v.row, 0, count, V, values);
        std::fill(d_k, d_k + COLUMNS * D, Real(0));
        std::fill(d_v, d_v + COLUMNS * V, Real(0));
        if (call.key_vectors.x) {
            std::fill(turned_keys - MARGIN, turned_keys - MARGIN + D * ld, Real(0));
            std::fill(d_turned_keys - MARGIN, d_turned_keys - MARGIN + D * ld, Real(0));
            for (int64_t j = 0; j < count; j++)
                for (int64_t d = 0; d < D; d++) turned_keys[d * ld + j] = row_of(call.k, b, kv, p.first + j)[d];
        }
        for (int64_t h = kv * groups; h < (kv + 1) * groups; h++) {
            std::fill(d_clock, d_clock + COLUMNS, Real(0));
            for (int64_t i = p.start; i < p.stop; i += ROWS) pairs(p, b, kv, h, i, std::min(ROWS, p.stop - i));
            if (call.d_key_clock) add(call.d_key_clock + (b * call.heads + h) * call.keys + p.first, d_clock, -1, count);
        }
        for (int64_t j = 0; j < count; j++) {
            Real* to = const_cast<Real*>(row_of(call.dk, b, kv, p.first + j));
            add(to, d_k + j * D, after(call), D);
            if (call.key_vectors.x)
                for (int64_t d = 0; d < D; d++) to[d] += d_turned_keys[d * ld + j];
            add(const_cast<Real*>(row_of(call.dv, b, kv, p.first + j)), d_v + j * V, 1, V);
        }
    }

    void pairs(const Part& p, int64_t b, int64_t kv, int64_t h, int64_t i, int64_t rows) {
        const int64_t D = call.width, V = call.value_width, E = call.vectors.width;
        int64_t left = p.low(i) / PANEL * PANEL, right = rounded(p.high(i + rows - 1), PANEL);
        if (call.query_most) Bound(call, p, b, h, i, rows, row_of(call.lse, b, h, i)).narrow(left, right);
        if (left >= right) return;
        const int64_t seen = std::min(right, p.last - p.first);
        copy_rows(call.q, b, h, i, rows, D, call.shift ? call.shift + h * D : nullptr, before(call), q);
        const Real* meeting = call.meeting.x ? row_of(call.meeting, b, h, i) : unshifted;
        const int64_t meeting_row = call.meeting.x ? call.meeting.row : D;
        int64_t from = 0, value_from = 0;
        if (call.vectors.x) {
            if (!call.meeting.x) copy_rows(call.q, b, h, i, rows, D, nullptr, call.scale, unshifted);
            const Reach r = reach(p, i, rows, left, right, call.vectors);
            from = r.from;
            pack(entry(call.vectors, h, 0), E, r.from, r.to, E, vectors);
        }
        if (call.values.x) {
            const Reach r = reach(p, i, rows, left, right, call.values);
            value_from = r.from;
            pack(entry(call.values, h, 0), V, r.from, r.to, V, value_vectors);
        }
        Turned turned{};
        if (call.key_vectors.x) turned = turn(p, h, i, rows, left, right, call.key_vectors, turned_x, stride());
        const Real *dout = row_of(call.dout, b, h, i), *delta = row_of(call.delta, b, h, i), *lse = row_of(call.lse, b, h, i);
        for (int64_t strip = 0; strip < rows; strip += STRIP) {
            const int64_t count = std::min<int64_t>(STRIP, rows - strip), first = i + strip;
            int64_t low = std::max(p.low(first) / PANEL * PANEL, left);
            int64_t high = std::min(rounded(p.high(first + count - 1), PANEL), right);
            if (call.query_most) Bound(call, p, b, h, first, count, lse + strip).narrow(low, high);
            Real *w = weights + strip * ld, *d = d_s + strip * ld;
            if (low < high) {
                scores(call, p, b, h, first, count, low, high, q + strip * D, keys, meeting + strip * meeting_row,
                       meeting_row, vectors, from, turned, w, ld, call.function ? bare + strip * ld : nullptr);
                for (int64_t r = 0; r < count; r++) {
                    const Real own = delta[strip + r];
                    for (int64_t j = low; j < high; j++) d[r * ld + j] = -own;
                }
                multiply(count, high - low, V, dout + strip * call.dout.row, call.dout.row, 1,
                         values + low * V, PANEL, PANEL * V, d + low, ld);
                if (call.values.x) by_vectors(p, h, first, count, low, high, call.values, dout + strip * call.dout.row,
                                              call.dout.row, value_vectors, value_from, d, ld);
            }
            for (int64_t r = 0; r < count; r++) {
                Real *weight = w + r * ld, *d_score = d + r * ld;
                const Real offset = lse[strip + r] == NONE ? -NONE : lse[strip + r];
                for (int64_t j = low; j < high; j += LANES) {
                    const Vec now = exponential(load(weight + j) - offset);
                    store(weight + j, now);
                    store(d_score + j, now * load(d_score + j));
                }
                clear(weight, left, right, low, high);
                clear(d_score, left, right, low, high);
                if (call.function) clear(bare + (strip + r) * ld, left, right, low, high);
            }
        }
        multiply(seen - left, V, rows, weights + left, 1, ld, dout, call.dout.row, PANEL, d_v + left * V, V);
        if (call.values.x && call.values.gradient)
            by_distance_backward(p, i, rows, left, seen, call.values, h, slot, dout, call.dout.row, weights, ld, nullptr, sums);
        if (call.function && call.is_last) through(p, h, i, rows, left, seen);
        if (call.bias.x && call.bias.gradient)
            for (int64_t r = 0; r < rows; r++) {
                const Real* row = d_s + r * ld;
                give_along(p, gradient(call.bias, slot, h, 0), i + r, left, seen, call.bias, [=](int64_t j) { return row[j]; });
            }
        if (call.broken.lines)
            for (int64_t r = 0; r < rows; r++) give_broken(call, p, part, slot, b, h, i + r, left, seen, d_s + r * ld);
        if (call.places.query_place)
            for (int64_t r = 0; r < rows; r++) give_places(call, p, part, slot, b, h, i + r, left, seen, d_s + r * ld);
        if (call.d_query_clock)
            for (int64_t r = 0; r < rows; r++) {
                const Real* row = d_s + r * ld;
                for (int64_t j = left; j < seen; j++) d_clock[j] += row[j];
                const Real total = sum_over(left, seen, [row](int64_t j) { return row[j]; });
                call.d_query_clock[((part * call.batch + b) * call.heads + h) * call.queries + i + r] += total;
            }
        if (call.key_vectors.x) {
            const Table& t = call.key_vectors;
            meet_keys_backward(p, i, rows, left, right, t, turned_keys, ld, turned, d_s, ld, d_turned_keys, d_turned);
            for (int64_t n = 0; t.gradient && n < turned.count; n++) {
                Real* to = gradient(t, slot, h, std::clamp<int64_t>(turned.first + n, 0, t.entries - 1));
                for (int64_t d = 0; d < D; d++) to[d] += d_turned[d * turned.stride + n];
            }
        }
        if (call.vectors.x) {
            std::fill(d_m, d_m + rows * E, Real(0));
            by_distance_backward(p, i, rows, left, seen, call.vectors, h, slot, meeting, meeting_row, d_s, ld, d_m, sums);
            const Tensor4& to = call.meeting.x ? call.d_meeting : call.dq;
            for (int64_t r = 0; r < rows; r++)
                add(const_cast<Real*>(row_of(to, part * call.batch + b, h, i + r)), d_m + r * E,
                    call.meeting.x ? Real(1) : call.scale, E);
        }
        if (call.function && !call.is_last) through(p, h, i, rows, left, seen);
        std::fill(d_q, d_q + rows * D, Real(0));
        multiply(rows, D, seen - left, d_s + left, ld, 1, row_of(call.k, b, kv, p.first + left), call.k.row, PANEL, d_q, D);
        for (int64_t r = 0; r < rows; r++) {
            add(const_cast<Real*>(row_of(call.dq, part * call.batch + b, h, i + r)), d_q + r * D, call.scale, D);
            if (call.d_shift) add(call.d_shift + (slot * call.heads + h) * D, d_q + r * D, call.scale, D);
        }
        multiply(seen - left, D, rows, d_s + left, 1, ld, q, D, PANEL, d_k + left * D, D);
    }

    void through(const Part& p, int64_t h, int64_t i, int64_t rows, int64_t left, int64_t seen) {
        Real* line = call.factor.gradient ? gradient(call.factor, slot, h, 0) : nullptr;
        for (int64_t r = 0; r < rows; r++) apply_backward(call, p, h, i + r, left, seen, bare + r * ld, d_s + r * ld, line);
    }

    // Pairs that a strip has no product for, and those beside the block, are read with it: they are 0.
    void clear(Real* row, int64_t left, int64_t right, int64_t low, int64_t high) const {
        if (low >= high) low = high = left;
        std::fill(row + left - MARGIN, row + low, Real(0));
        std::fill(row + high, row + right + MARGIN, Real(0));
    }
};

}  // namespace
