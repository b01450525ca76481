// The arguments of a call. `operator.py` has the same structures and compares every field.

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

// A tensor (batch, heads, rows, channels), contiguous along channels.
template <typename T>
struct Rows {
    T* x;
    int64_t batch, head, row;  // strides
};

// A table by distance, (heads, entries, width): entry 0 is for the distance `low`, and the end entries are repeated.
struct Table {
    const Real* x;
    Real* gradient;
    int64_t head, low, entries, width, slot;  // strides of heads and, in the gradient, of slots
    int64_t share;                            // the number of heads per gradient
};

// A rotation of channel pairs, (a, b) -> (a cos - b sin, a sin + b cos): channels `first` + k and `first` + pairs + k
// or, if interleaved, `first` + 2k and the next. query_cos is null without a rotation.
struct Rotation {
    const Real *query_cos, *query_sin, *key_cos, *key_sin;  // (batch or 1, heads or 1, tokens, pairs)
    int64_t query_batch, query_head, key_batch, key_head;   // strides
    int64_t pairs, first, interleaved;
};

// Terms by the differences of two coordinates: entry 0, of either, is for the difference `low`, and there are `entries`
// of each. query_place is null without such terms.
struct Places {
    const int64_t *query_place, *key_place;  // (batch or 1, tokens, 2)
    const int64_t* run_end;                  // (batch or 1, keys): end of the run where only the second increases, by 1
    int64_t query_batch, key_batch;          // strides of batch rows, in tokens
    int64_t low, entries;
    const Real* plane;                       // (heads, entries, entries), by the first coordinate first
    Real* d_plane;                           // (slot, heads, entries, entries)
    const Real *by_row, *by_column;          // (batch, heads, queries, entries): a term per difference
    Real *d_by_row, *d_by_column;            // (part, batch, heads, queries, entries)
};

// A piecewise linear function l x + m of x = away(r) share_i, with (l, m) by the piece of x. lines is null without one.
struct Broken {
    const double* lines;  // (heads, segments, 2)
    const double* share;  // (batch or 1, queries)
    const int64_t*
        ends;  // (batch or 1, queries, segments - 1): entries of `away` before the n-th end are in a later piece than n
    double* d_lines;      // (slot, heads, segments, 2)
    double* d_share;      // (part, batch, heads, queries)
    int64_t segments, batch;  // batch: the stride of batch rows, in queries
};

struct Tile {
    int64_t batch, batch_end, start, stop, first, last, low, high, distance;
};

struct Call {
    Rows<Stored> q, k, v, o, dout;
    Rows<Real> lse, meeting, delta;
    Rows<Stored> dq, dk, dv;   // dq is null if only dq_sums is needed
    Rows<Real> dq_sums;        // (part, batch), heads, queries, width; null: each task accumulates and writes dq
    Rows<Real> d_meeting;
    Table bias, vectors, values, factor, key_vectors, away;
    Rotation rotation;
    Places places;
    Broken broken;
    const Real* shift;  // (heads, width)
    Real* d_shift;      // (slot, heads, width)
    const double *query_clock, *key_clock;
    Real *d_query_clock, *d_key_clock;
    // Upper bounds of scores; query_most is null if no keys are skipped.
    const Real* query_most;      // (batch, heads, queries): scale times the norm of q_i
    const Real* key_most;        // (batch, kv_heads, spans): the largest norm of the keys of a span
    const Real* bias_most;       // (heads or 1, spans of entries)
    const Real* meeting_most;    // (batch, heads, queries): of the products with vectors
    const double* clock_least;   // (batch, heads, spans)
    const Tile* tiles;
    int64_t count, batch, heads, kv_heads, queries, keys, width, value_width, function, is_last, threads, slots, parts;
    double softmax_scale, skip_threshold;  // skip_threshold: scores below log-sum-exp + this are negligible
    Real* work;  // `work_size` elements for each thread
    int64_t work_size;
    void (*pool)(void (*)(void*), void*, unsigned, unsigned);  // GOMP_parallel of the OpenMP that PyTorch uses, or null
};
