// What a call of attention is made of. The structures are those of `operator.py`, which compares every field.

#pragma once

#include <cstddef>
#include <cstdint>

#ifndef REAL
#define REAL float
#endif
typedef REAL Real;  // of scores, sums and tables

#if HALF
struct Stored {
    uint16_t bits;  // bfloat16: the upper half of a float
};
#else
typedef Real Stored;  // of queries, keys, values and the output
#endif

// A tensor (batch, heads, rows, channels), the channels side by side.
template <typename T>
struct Rows {
    T* x;
    int64_t batch, head, row;  // steps
};

// A table by distance, (heads, entries, width): entry 0 is that of the distance `low`, and the end entries go on.
struct Table {
    const Real* x;
    Real* gradient;
    int64_t head, low, entries, width, slot;  // steps from head to head and, of the gradient, from slot to slot
    int64_t share;                            // how many heads give to one gradient
};

// Turns pairs of channels, (a, b) -> (a cos - b sin, a sin + b cos): channels `first` + k and `first` + pairs + k, or,
// of interleaved ones, `first` + 2k and the next. No query_cos: nothing is turned.
struct Turn {
    const Real *query_cos, *query_sin, *key_cos, *key_sin;  // (batch or 1, heads or 1, tokens, pairs)
    int64_t query_batch, query_head, key_batch, key_head;   // steps
    int64_t pairs, first, interleaved;
};

// What goes by the differences of two coordinates: entry 0, of either, is that of the difference `low`, and there are
// `entries` of each. No query_place: nothing does.
struct Places {
    const int64_t *query_place, *key_place;  // (batch or 1, tokens, 2)
    const int64_t* run_end;                  // (batch or 1, keys): up to which key the second alone rises, by one
    int64_t query_batch, key_batch;          // steps from row to row, in tokens
    int64_t low, entries;
    const Real* plane;                       // (heads, entries, entries), the first coordinate's first
    Real* d_plane;                           // (slot, heads, entries, entries)
    const Real *by_row, *by_column;          // (batch, heads, queries, entries): what a query gives to each difference
    Real *d_by_row, *d_by_column;            // (part, batch, heads, queries, entries)
};

// Adds l x + m, x = away(r) share_i, with one line (l, m) of several, which goes by how great x is. No lines: nothing
// does.
struct Broken {
    const double* lines;  // (heads, segments, 2)
    const double* share;  // (batch or 1, queries)
    const int64_t*
        ends;  // (batch or 1, queries, segments - 1): entries of `away` before the n-th have a later line than n
    double* d_lines;      // (slot, heads, segments, 2)
    double* d_share;      // (part, batch, heads, queries)
    int64_t segments, batch;  // batch: the step from row to row, in queries
};

struct Tile {
    int64_t batch, batch_end, start, stop, first, last, low, high, distance;
};

struct Call {
    Rows<Stored> q, k, v, out, dout;
    Rows<Real> lse, meeting, delta;
    Rows<Stored> dq, dk, dv;   // no dq: its sums are all that is wanted
    Rows<Real> dq_sums;        // (part, batch), heads, queries, width; none: sums of a task, which end in dq
    Rows<Real> d_meeting;
    Table bias, vectors, values, factor, key_vectors, away;
    Turn turn;
    Places places;
    Broken broken;
    const Real* shift;  // (heads, width)
    Real* d_shift;      // (slot, heads, width)
    const double *query_clock, *key_clock;
    Real *d_query_clock, *d_key_clock;
    // What scores can be at most; no query_most: nothing is left out.
    const Real* query_most;      // (batch, heads, queries): scale times the length of q_i
    const Real* key_most;        // (batch, kv_heads, spans): the greatest length of the keys of a span
    const Real* bias_most;       // (heads or 1, spans of entries)
    const Real* meeting_most;    // (batch, heads, queries): of all products with vectors
    const double* clock_least;   // (batch, heads, spans)
    const Tile* tiles;
    int64_t count, batch, heads, kv_heads, queries, keys, width, value_width, function, is_last, threads, slots, parts;
    double scale, faint;  // faint: a score that lies this far below its row's log-sum-exp does not count
    Real* work;  // of `work_size` numbers for each thread
    int64_t work_size;
    void (*pool)(void (*)(void*), void*, unsigned, unsigned);  // GOMP_parallel of the OpenMP that PyTorch uses, or null
};
