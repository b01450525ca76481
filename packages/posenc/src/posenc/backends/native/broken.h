// Piecewise linear functions of x = away(r) share_i. x decreases with r, so each piece applies to contiguous columns of
// a row of scores, which are known beforehand: no search per pair.

#pragma once

#include "places.h"

namespace {

// Calls f(left, right, n) for the columns of query i, among those with an entry, whose x is in the n-th piece.
template <typename F>
void over_lines(const Call& call, const Part& p, int64_t b, int64_t i, int64_t left, int64_t right, F f) {
    const Broken& t = call.broken;
    const int64_t *ends = t.ends + (b * t.batch + i) * (t.segments - 1), place = p.place(i, 0, call.away);
    int64_t j = std::clamp<int64_t>(-place, left, right);
    const int64_t stop = std::clamp<int64_t>(call.away.entries - place, j, right);
    for (int64_t n = t.segments - 1; n >= 0 && j < stop; n--) {
        const int64_t end = n ? std::clamp<int64_t>(ends[n - 1] - place, j, stop) : stop;
        if (j < end) f(j, end, n);
        j = end;
    }
}

// Adds the piecewise linear function of the head to the scores of query i.
void add_broken(const Call& call, const Part& p, int64_t b, int64_t h, int64_t i, int64_t left, int64_t right,
                Real* s) {
    const Broken& t = call.broken;
    const double *lines = t.lines + h * t.segments * 2, share = t.share[b * t.batch + i];
    const Real* away = call.away.x + p.place(i, 0, call.away);
    over_lines(call, p, b, i, left, right, [=](int64_t from, int64_t to, int64_t n) {
        const Real slope = Real(lines[2 * n] * share), start = Real(lines[2 * n + 1]);
        int64_t j = from;
        for (; j + LANES <= to; j += LANES) store(s + j, load(s + j) + (load(away + j) * slope + start));
        for (; j < to; j++) s[j] += away[j] * slope + start;
    });
}

// The backward pass of `add_broken`, given the gradients of the scores of query i.
void give_broken(const Call& call, const Part& p, int64_t part, int64_t slot, int64_t b, int64_t h, int64_t i,
                 int64_t left, int64_t right, const Real* d_s) {
    const Broken& t = call.broken;
    const double *lines = t.lines + h * t.segments * 2, share = t.share[b * t.batch + i];
    const int64_t place = p.place(i, 0, call.away);
    const Real* away = call.away.x + place;
    Real* d_away = call.away.gradient;
    if (d_away) d_away += slot * call.away.slot + h / call.away.share * call.away.entries + place;
    double* d_lines = t.d_lines ? t.d_lines + (slot * call.heads + h) * t.segments * 2 : nullptr;
    double d_share = 0;
    over_lines(call, p, b, i, left, right, [&](int64_t from, int64_t to, int64_t n) {
        const double of_x = sum_of_products(d_s, away, from, to);
        d_share += lines[2 * n] * of_x;
        if (d_lines) {
            d_lines[2 * n] += share * of_x;
            d_lines[2 * n + 1] += sum_of(d_s, from, to);
        }
        const Real slope = Real(lines[2 * n] * share);
        if (d_away)
            for (int64_t j = from; j < to; j++) d_away[j] += slope * d_s[j];
    });
    if (t.d_share) t.d_share[((part * call.batch + b) * call.heads + h) * call.queries + i] += d_share;
}

}  // namespace
