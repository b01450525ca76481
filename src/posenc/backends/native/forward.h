// The forward pass of one task.

#pragma once

#include "bounds.h"

namespace {

constexpr int64_t FEW = 4;

// Queries of a task, of each head of a group.
int64_t size_of_task(const Call& call) { return std::max<int64_t>(STRIP, QUERIES * call.kv_heads / call.heads); }

int64_t tasks_forward(const Call& call) {
    const int64_t size = size_of_task(call);
    return (call.queries + size - 1) / size * call.batch * call.kv_heads;
}

// Whether packing keys and vectors costs more than it saves: a token or a few against a cache.
bool is_few(const Call& call) { return call.queries * (call.heads / call.kv_heads) <= FEW; }

// Entries of a table that a task reaches over in a block of keys, in whole panels.
int64_t window_forward(const Call& call) { return rounded(KEYS + size_of_task(call), PANEL) + PANEL; }

int64_t work_forward(const Call& call) {
    const int64_t rows = size_of_task(call) * call.heads / call.kv_heads;
    return rows * (2 * call.width + call.value_width + 5) + KEYS * call.width +
           window_forward(call) * call.vectors.width + STRIP * (KEYS + 2 * MARGIN) + MARGIN +
           turned_stride(size_of_task(call), KEYS) * call.key_vectors.width;
}

// The greatest score of a row, or NaN.
Real most_of(const Real* row, int64_t left, int64_t right) {
    Vec most = all(NONE);
    for (int64_t j = left; j < right; j += LANES) {
        const Vec now = load(row + j);
        most = (now > most) | (now != now) ? now : most;
    }
    return greatest(reinterpret_cast<const Real*>(&most), LANES);
}

void forward(const Call& call, int64_t task, Real* x) {
    const int64_t groups = call.heads / call.kv_heads, size = size_of_task(call);
    const int64_t chunks = (call.queries + size - 1) / size;
    const int64_t chunk = chunks - 1 - task / (call.batch * call.kv_heads);  // those with the most keys come first
    const int64_t b = task / call.kv_heads % call.batch, kv = task % call.kv_heads;
    const int64_t start = chunk * size, stop = std::min(call.queries, start + size);
    const int64_t D = call.width, E = call.vectors.width, V = call.value_width, all_rows = groups * size;
    const int64_t ld = KEYS + 2 * MARGIN;
    Real *q = x, *unshifted = q + all_rows * D, *o = unshifted + all_rows * D, *keys = o + all_rows * V;
    Real *vectors = keys + KEYS * D, *s = vectors + window_forward(call) * E + MARGIN, *m = s + STRIP * ld, *l = m + all_rows;
    Real *l_low = l + all_rows, *l_high = l_low + all_rows, *floor = l_high + all_rows;
    Real* turned_x = floor + all_rows;
    const bool few = is_few(call);
    for (int64_t g = 0; g < groups; g++) {
        const Real* shift = call.shift ? call.shift + (kv * groups + g) * D : nullptr;
        copy_rows(call.q, b, kv * groups + g, start, stop - start, D, shift, before(call), q + g * size * D);
        if (call.vectors.x && !call.meeting.x)
            copy_rows(call.q, b, kv * groups + g, start, stop - start, D, nullptr, call.scale, unshifted + g * size * D);
    }
    std::fill(o, o + all_rows * V, Real(0));
    std::fill(m, m + all_rows, NONE);
    std::fill(floor, floor + all_rows, NONE);
    std::fill(l, l + 3 * all_rows, Real(0));
    for (int64_t n = 0; n < call.count; n++) {
        const Tile& tile = call.tiles[n];
        Part p{&tile, std::max(start, tile.start), std::min(stop, tile.stop), 0, 0};
        if (b < tile.batch || b >= tile.batch_end || p.start >= p.stop) continue;
        const int64_t first = std::max(tile.first, p.start + tile.low), last = std::min(tile.last, p.stop + tile.high);
        if (call.query_most)
            for (int64_t g = 0; g < groups; g++)
                for (int64_t i = p.start, at = g * size + i - start; i < p.stop; i++, at++)
                    floor[at] = std::max(floor[at], nearest(call, p, b, kv * groups + g, i, q + at * D));
        for (int64_t key = last - 1; key >= first; key = p.first - 1) {  // the nearest to the end first
            p.last = key + 1;
            p.first = std::max(first, p.last - KEYS);
            int64_t packed_head = -1, from = 0, packed_low = 0, packed_high = 0;
            for (int64_t g = 0; g < groups; g++) {
                const int64_t h = kv * groups + g;
                int64_t least = 0, most = rounded(p.last - p.first, PANEL);
                if (call.query_most) Bound(call, p, b, h, p.start, p.stop - p.start, floor + g * size + p.start - start).narrow(least, most);
                if (least >= most) continue;
                if (!few && (least < packed_low || most > packed_high)) {
                    packed_low = packed_high > packed_low ? std::min(packed_low, least) : least;
                    packed_high = std::max(packed_high, most);
                    pack(row_of(call.k, b, kv, p.first), call.k.row, packed_low, std::min(packed_high, p.last - p.first), D,
                         keys + packed_low * D);
                }
                if (call.vectors.x && !few && (packed_head < 0 || call.vectors.head)) {
                    const Reach r = reach(p, p.start, p.stop - p.start, 0, p.last - p.first, call.vectors);
                    pack(entry(call.vectors, h, 0), E, r.from, r.to, E, vectors);
                    from = r.from;
                    packed_head = h;
                }
                Turned turned{};
                if (call.key_vectors.x && !few)
                    turned = turn(p, h, p.start, p.stop - p.start, least, most, call.key_vectors, turned_x,
                                  turned_stride(size, KEYS));
                for (int64_t i = p.start; i < p.stop; i += STRIP) {
                    const int64_t rows = std::min<int64_t>(STRIP, p.stop - i), at = g * size + i - start;
                    int64_t left = std::max(p.low(i) / PANEL * PANEL, least);
                    int64_t right = std::min(rounded(p.high(i + rows - 1), PANEL), most);
                    if (call.query_most) Bound(call, p, b, h, i, rows, floor + at).narrow(left, right);
                    if (left >= right) continue;
                    const Real* meeting = call.meeting.x ? row_of(call.meeting, b, h, i) : unshifted + at * D;
                    scores(call, p, b, h, i, rows, left, right, q + at * D, few ? nullptr : keys, meeting,
                           call.meeting.x ? call.meeting.row : D, few ? nullptr : vectors, from, turned, s, ld, nullptr);
                    const int64_t seen = std::min(right, p.last - p.first);
                    Real tops[STRIP];
                    bool counts = false;
                    for (int64_t r = 0; r < rows; r++) {
                        tops[r] = most_of(s + r * ld, left, right);
                        counts |= !(tops[r] < floor[at + r] + call.faint);
                    }
                    if (!counts) continue;
                    for (int64_t r = 0; r < rows; r++) {
                        Real* row = s + r * ld;
                        const Real highest = std::max(m[at + r], tops[r]);  // not NaN, which weights will be
                        const Real offset = highest == NONE ? Real(0) : highest;
                        const Real fade = std::exp(m[at + r] - offset);
                        m[at + r] = highest;
                        floor[at + r] = std::max(floor[at + r], highest);
                        Vec total{};
                        for (int64_t j = left; j < right; j += LANES) {
                            const Vec weight = exponential(load(row + j) - offset);
                            store(row + j, weight);
                            total += weight;
                        }
                        l[at + r] = l[at + r] * fade + sum(total);
                        if (fade != Real(1))
                            for (int64_t d = 0; d < V; d++) o[(at + r) * V + d] *= fade;
                        if (call.values.x) {
                            Real low, high;
                            ends(p, i + r, left, seen, call.values, row, low, high);
                            l_low[at + r] = l_low[at + r] * fade + low;
                            l_high[at + r] = l_high[at + r] * fade + high;
                            std::fill(row + left - MARGIN / 2, row + left, Real(0));
                            std::fill(row + right, row + right + MARGIN / 2, Real(0));
                        }
                    }
                    const Real* seen_values = row_of(call.v, b, kv, p.first + left);
                    if (few)
                        weigh(rows, V, seen - left, s + left, ld, seen_values, call.v.row, o + at * V, V);
                    else
                        multiply(rows, V, seen - left, s + left, ld, 1, seen_values, call.v.row, PANEL, o + at * V, V);
                    if (call.values.x) {
                        const Reach near = reach(p, i, rows, left, seen, call.values);
                        if (near.from < near.to)
                            multiply(rows, V, near.to - near.from, s + p.column(i, near.from, call.values), ld + 1, 1,
                                     entry(call.values, h, near.from), V, PANEL, o + at * V, V);
                    }
                }
            }
        }
    }
    for (int64_t g = 0; g < groups; g++)
        for (int64_t i = start; i < stop; i++) {
            const int64_t h = kv * groups + g, at = g * size + i - start;
            Real* to = const_cast<Real*>(row_of(call.out, b, h, i));
            const Real share = l[at] > 0 ? 1 / l[at] : l[at] == 0 ? Real(0) : l[at];
            const Real low = l_low[at] * share, high = l_high[at] * share;
            for (int64_t d = 0; d < V; d++) to[d] = o[at * V + d] * share;
            if (call.values.x)
                for (int64_t d = 0; d < V; d++)
                    to[d] += low * entry(call.values, h, 0)[d] + high * entry(call.values, h, call.values.entries - 1)[d];
            *const_cast<Real*>(row_of(call.lse, b, h, i)) = m[at] == NONE && l[at] == 0 ? NONE : m[at] + std::log(l[at]);
        }
}

}  // namespace
