// Which columns of a block no query of some rows can see anything of, whatever the contents.
//
// s_ij <= scale |q_i| |k_j| + b(r) + |what q_i meets| + clocks. Where that lies so far below a score that the row has
// already, or its log-sum-exp, that all such keys together weigh less than is asked for, the pair is not computed.

#pragma once

#include "scores.h"

namespace {

constexpr int64_t SPAN = 64;  // keys, or entries, of which the greatest is known

// Some rows of a head: what bounds their scores from above, and the least that any of them is known to have.
struct Bound {
    const Call& call;
    const Part& p;
    int64_t b, h, kv, i, rows, spans;
    Real query, meeting, floor;
    double clock;

    Bound(const Call& c, const Part& part, int64_t batch, int64_t head, int64_t first, int64_t count,
          const Real* floors)
        : call(c),
          p(part),
          b(batch),
          h(head),
          kv(head / (c.heads / c.kv_heads)),
          i(first),
          rows(count),
          spans((c.keys + SPAN - 1) / SPAN),
          meeting(0),
          clock(0) {
        const int64_t at = (b * call.heads + h) * call.queries + i;
        query = greatest(call.query_most + at, rows);
        if (call.meeting_most) meeting = greatest(call.meeting_most + at, rows);
        if (call.query_clock) clock = *std::max_element(call.query_clock + at, call.query_clock + at + rows);
        floor = least(floors, rows);
    }

    // Whether the span of keys may count, of which the columns left .. right are seen.
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
        return !(most < floor + call.faint);
    }

    // Takes off left .. right, to either side, what does not count.
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

// The score of query i with the key that it sees nearest to the distance 0, at least: q is the query as products take
// it. A key has room for its numbers.
Real nearest(const Call& call, const Part& p, int64_t b, int64_t h, int64_t i, const Real* q, Real* room) {
    const int64_t kv = h / (call.heads / call.kv_heads);
    const int64_t low = std::max(p.tile->first, i + p.tile->low), high = std::min(p.tile->last - 1, i + p.tile->high);
    if (low > high) return NONE;
    const int64_t j = std::clamp(i - p.tile->distance, low, high);
    Real s = after(call) * dot(q, Side::of_keys(call, b, kv).numbers(j, room), call.width);
    const int64_t of_query = (b * call.heads + h) * call.queries + i;
    if (call.bias.x) s += *entry(call.bias, h, p.place(i, j - p.first, call.bias));
    if (call.query_clock) s += Real(call.query_clock[of_query] - call.key_clock[(b * call.heads + h) * call.keys + j]);
    if (call.meeting_most) s -= call.meeting_most[of_query];
    return s;
}

}  // namespace
