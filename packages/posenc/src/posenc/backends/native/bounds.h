// Finds columns of a block that are negligible for all queries of some rows, whatever the values.
//
// s_ij <= scale |q_i| |k_j| + b(r) + |products of q_i with vectors| + cumulative features. If this is so far below a
// score of the row, or its log-sum-exp, that all such keys together have less than skip_below of the weight, the pair
// is skipped.

#pragma once

#include "scores.h"

namespace {

constexpr int64_t SPAN = 64;  // keys, or entries, per maximum

// Upper bounds of the scores of some rows of a head, and a lower bound of their largest scores.
struct Bound {
    const Call& call;
    const Part& p;
    const int64_t b, h, i, rows, kv = h / (call.heads / call.kv_heads), spans = (call.keys + SPAN - 1) / SPAN;
    Real query, meeting = 0, floor;
    double clock = 0;

    Bound(const Call& c, const Block& block, const Real* floors)
        : call(c), p(block.p), b(block.b), h(block.h), i(block.i), rows(block.rows) {
        const int64_t at = (b * call.heads + h) * call.queries + i;
        query = greatest(call.query_most + at, rows);
        if (call.meeting_most) meeting = greatest(call.meeting_most + at, rows);
        if (call.query_clock) clock = *std::max_element(call.query_clock + at, call.query_clock + at + rows);
        floor = least(floors, rows);
    }

    // Whether a span of keys, with visible columns left .. right, must be computed.
    bool counts(int64_t span, int64_t left, int64_t right) const {
        Real most = query * call.key_most[(b * call.kv_heads + kv) * spans + span] + meeting;
        if (call.bias.x) {
            const Table& t = call.bias;
            const int64_t low = std::clamp<int64_t>(p.place(i + rows - 1, left, t), 0, t.entries - 1) / SPAN;
            const int64_t high = std::clamp<int64_t>(p.place(i, right - 1, t), 0, t.entries - 1) / SPAN;
            const int64_t line = t.head ? h * ((t.entries + SPAN - 1) / SPAN) : 0;
            most += greatest(call.bias_most + line + low, high - low + 1);
        }
        if (call.clock_least) most += Real(clock - call.clock_least[(b * call.heads + h) * spans + span]);
        return !(most < floor + call.skip_threshold);
    }

    // Removes negligible columns from both ends of left .. right.
    void narrow(int64_t& left, int64_t& right) const {
        int64_t from = left, to = std::min(right, p.last - p.first);
        while (from < to) {
            const int64_t span = (p.first + from) / SPAN, end = std::min(to, (span + 1) * SPAN - p.first);
            if (counts(span, from, end)) break;
            from = end;
        }
        while (from < to) {
            const int64_t span = (p.first + to - 1) / SPAN, start = std::max(from, span * SPAN - p.first);
            if (counts(span, start, to)) break;
            to = start;
        }
        left = from / PANEL * PANEL;
        right = from < to ? rounded(to, PANEL) : left;
    }
};

// Removes columns of a block that are negligible next to known scores of its rows, if there are bounds.
void narrow(const Call& call, Block& block, const Real* floors) {
    if (call.query_most) Bound(call, block, floors).narrow(block.left, block.right);
}

// A lower bound of the score of query i with its visible key nearest to distance 0: q is the query as used in products,
// `buffer` is a buffer for a key.
Real nearest(const Call& call, const Part& p, int64_t b, int64_t h, int64_t i, const Real* q, Real* buffer) {
    const int64_t kv = h / (call.heads / call.kv_heads);
    const int64_t low = std::max(p.tile->first, i + p.tile->low), high = std::min(p.tile->last - 1, i + p.tile->high);
    if (low > high) return NONE;
    const int64_t j = std::clamp(i - p.tile->distance, low, high);
    Real s = after(call) * dot(q, Side::of_keys(call, b, kv).numbers(j, buffer), call.width);
    const int64_t of_query = (b * call.heads + h) * call.queries + i;
    if (call.bias.x) s += *entry(call.bias, h, p.place(i, j - p.first, call.bias));
    if (call.query_clock) s += Real(call.query_clock[of_query] - call.key_clock[(b * call.heads + h) * call.keys + j]);
    if (call.meeting_most) s -= call.meeting_most[of_query];
    return s;
}

}  // namespace
