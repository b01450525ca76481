// Products of keys with vectors by distance: s_ij += k_j . a(j - i).
//
// For one query, contiguous keys have contiguous vectors. With both transposed, it is an elementwise product of each
// channel's keys with that channel's vectors, which start one entry earlier for each query.

#pragma once

#include "broken.h"

namespace {

constexpr int CHANNELS = 8;  // channels that fit into registers

// The transposed entries of a table for some queries and columns left .. right, including repeated end entries: entry n
// of channel d is x[d * stride + n].
struct Transposed {
    Real* x;
    int64_t stride, first, count;  // `first` in the table

    // The entry of query i and a column.
    int64_t at(const Part& p, int64_t i, int64_t column, const Table& t) const { return p.place(i, column, t) - first; }
};

int64_t transposed_stride(int64_t rows, int64_t columns) { return rounded(rows + columns + LANES, 16); }

Transposed transpose(const Part& p, int64_t h, int64_t i, int64_t rows, int64_t left, int64_t right, const Table& t,
                     Real* x, int64_t stride) {
    const Transposed found{x, stride, p.place(i + rows - 1, left, t), rows + right - left};
    for (int64_t n = 0; n < found.count; n++) {
        const Real* from = entry(t, h, found.first + n);
        for (int64_t d = 0; d < t.width; d++) x[d * stride + n] = from[d];
    }
    return found;
}

template <int R>
void meet_rows(int64_t rows, int64_t width, const Real* keys, const Real* vectors, int64_t stride, Real* s,
               int64_t ld) {
    if (rows == R) {
        Vec total[R];
#pragma GCC unroll 16
        for (int r = 0; r < R; r++) total[r] = load(s + r * ld);
        for (int64_t d = 0; d < width; d++) {
            const Vec k = load(keys + d * PANEL);
#pragma GCC unroll 16
            for (int r = 0; r < R; r++) total[r] += k * load(vectors + d * stride - r);
        }
#pragma GCC unroll 16
        for (int r = 0; r < R; r++) store(s + r * ld, total[r]);
        return;
    }
    if constexpr (R > 1) meet_rows<R - 1>(rows, width, keys, vectors, stride, s, ld);
}

// Adds the products of packed keys with the vectors to the scores of a strip.
inline void meet_keys(const Part& p, int64_t i, int64_t rows, int64_t left, int64_t right, const Table& t,
                      const Real* keys, const Transposed& vectors, Real* s, int64_t ld) {
    for (int64_t column = left; column < right; column += LANES)
        meet_rows<REGISTER_ROWS>(rows, t.width, keys + column / PANEL * PANEL * t.width + column % PANEL,
                         vectors.x + vectors.at(p, i, column, t), vectors.stride, s + column, ld);
}

// The backward pass of `meet_keys`, given the gradients of the scores of rows i .. i + rows, which are 0 outside the
// columns: adds those of the keys to d_keys, and writes those of the vectors to d_vectors, both transposed.
void meet_keys_backward(const Part& p, int64_t i, int64_t rows, int64_t left, int64_t right, const Table& t,
                        const Real* keys, int64_t keys_stride, const Transposed& vectors, const Real* d_s, int64_t ld,
                        Real* d_keys, Real* d_vectors) {
    for (int64_t d = 0; d < t.width; d += CHANNELS)
        for (int64_t column = left; column < right; column += LANES) {
            Vec total[CHANNELS]{};
            const Real* entries = vectors.x + d * vectors.stride + vectors.at(p, i, column, t);
            for (int64_t r = 0; r < rows; r++) {
                const Vec given = load(d_s + r * ld + column);
#pragma GCC unroll 8
                for (int c = 0; c < CHANNELS; c++) total[c] += given * load(entries + c * vectors.stride - r);
            }
            for (int c = 0; c < CHANNELS; c++) {
                Real* to = d_keys + (d + c) * keys_stride + column;
                store(to, load(to) + total[c]);
            }
        }
    if (!t.gradient) return;
    const int64_t shift = vectors.at(p, i, 0, t);  // entry n of query i + r is for the column n - shift + r
    for (int64_t d = 0; d < t.width; d += CHANNELS)
        for (int64_t n = 0; n < vectors.count; n += LANES) {
            Vec total[CHANNELS]{};
            const int64_t low = std::max<int64_t>(0, left - LANES + 1 - n + shift);
            const int64_t high = std::min(rows, right - n + shift);
            for (int64_t r = low; r < high; r++) {
                const int64_t column = n - shift + r;
                const Vec given = load(d_s + r * ld + column);
#pragma GCC unroll 8
                for (int c = 0; c < CHANNELS; c++) total[c] += given * load(keys + (d + c) * keys_stride + column);
            }
            for (int c = 0; c < CHANNELS; c++) store(d_vectors + (d + c) * vectors.stride + n, total[c]);
        }
}

}  // namespace
