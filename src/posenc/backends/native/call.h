// What a call of attention is made of. The structures are those of `operator.py`, field by field.

#pragma once

#include <cstdint>

#ifndef REAL
#define REAL float
#endif
typedef REAL Real;

extern "C" {

// A table by distance, (heads, entries, width): entry 0 is that of the distance `low`, and the end entries go on.
struct Table {
    const Real* x;
    Real* gradient;
    int64_t head, low, entries, width, slot;  // steps from head to head and, of the gradient, from slot to slot
    int64_t share;                            // how many heads give to one gradient
};

struct Tensor4 {
    Real* x;
    int64_t batch, head, row;  // steps
};

struct Tile {
    int64_t batch, batch_end, start, stop, first, last, low, high, distance;
};

struct Call {
    Tensor4 q, k, v, out, lse, meeting, dout, delta, dq, dk, dv, d_meeting;
    Table bias, vectors, values, factor;
    const Real* shift;  // (heads, width)
    Real* d_shift;      // (slot, heads, width)
    const double *query_clock, *key_clock;
    Real *d_query_clock, *d_key_clock;
    const Tile* tiles;
    int64_t count, batch, heads, kv_heads, queries, keys, width, value_width, function, is_last, threads, slots, parts;
    double scale;
    Real* work;  // of `work_size` numbers for each thread
    int64_t work_size;
};
}
