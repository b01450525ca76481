// Matrix products with strided rows, and packing of their operands.

#pragma once

#include "numbers.h"

namespace {

constexpr int PANEL = 2 * LANES;     // columns of a packed panel, of which REGISTER_ROWS rows fit into registers
constexpr int64_t PRODUCTS = 64;     // products per partial sum

// b may be stored in half precision.
template <typename B>
inline Real dot(const Real* a, const B* b, int64_t n) {
    Vec s{};
    for (int64_t d = 0; d < n; d += LANES) s += load(a + d) * load(b + d);
    return sum(s);
}

// c[row][column] += a[row] . b[column], for a few rows, for which packing b does not pay off.
template <typename B>
inline void dots(int64_t rows, int64_t columns, int64_t k, const Real* a, int64_t a_row, const B* b, int64_t b_row,
                 Real* c, int64_t c_row) {
    for (int64_t column = 0; column < columns; column++)
        for (int64_t row = 0; row < rows; row++)
            c[row * c_row + column] += dot(a + row * a_row, b + column * b_row, k);
}

// c[row][column] = or += the sum over k of a[row][k] b[k][column], for R rows and C vectors of columns.
template <int R, int C, typename B>
inline void block(const Real* a, int64_t a_row, int64_t a_k, const B* b, int64_t b_k, Real* c, int64_t c_row, int64_t k,
                  bool adds) {
    Vec total[R][C];
#pragma GCC unroll 16
    for (int r = 0; r < R; r++)
#pragma GCC unroll 4
        for (int v = 0; v < C; v++) total[r][v] = Vec{};
    for (int64_t n = 0; n < k; n++) {
        Vec right[C];
#pragma GCC unroll 4
        for (int v = 0; v < C; v++) right[v] = load(b + n * b_k + v * LANES);
#pragma GCC unroll 16
        for (int r = 0; r < R; r++) {
            const Real left = a[r * a_row + n * a_k];
#pragma GCC unroll 4
            for (int v = 0; v < C; v++) total[r][v] += left * right[v];
        }
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; r++)
#pragma GCC unroll 4
        for (int v = 0; v < C; v++) {
            Real* to = c + r * c_row + v * LANES;
            store(to, adds ? load(to) + total[r][v] : total[r][v]);
        }
}

template <int R, int C>
void some_rows(int64_t rows, const Real* a, int64_t a_row, int64_t a_k, const Real* b, int64_t b_k, Real* c,
               int64_t c_row, int64_t k, bool adds) {
    if (rows == R) {
        // Partial sums, for smaller rounding errors.
        for (int64_t n = 0; n < k; n += PRODUCTS)
            block<R, C>(a + n * a_k, a_row, a_k, b + n * b_k, b_k, c, c_row, std::min(PRODUCTS, k - n), adds || n);
        return;
    }
    if constexpr (R > 1) some_rows<R - 1, C>(rows, a, a_row, a_k, b, b_k, c, c_row, k, adds);
}

// The same for any number of rows, and a multiple of LANES columns. Panel p of b starts at b + p * b_panel.
void multiply(int64_t rows, int64_t columns, int64_t k, const Real* a, int64_t a_row, int64_t a_k, const Real* b,
              int64_t b_k, int64_t b_panel, Real* c, int64_t c_row, bool adds = true) {
    for (int64_t column = 0; column < columns; column += PANEL, b += b_panel)
        for (int64_t row = 0; row < rows; row += REGISTER_ROWS) {
            const Real* left = a + row * a_row;
            Real* to = c + row * c_row + column;
            const int64_t count = std::min<int64_t>(REGISTER_ROWS, rows - row);
            if (columns - column >= PANEL)
                some_rows<REGISTER_ROWS, 2>(count, left, a_row, a_k, b, b_k, to, c_row, k, adds);
            else
                some_rows<REGISTER_ROWS, 1>(count, left, a_row, a_k, b, b_k, to, c_row, k, adds);
        }
}

// c += a b for a few rows, which reads b only once, row by row.
template <typename B>
inline void weigh(int64_t rows, int64_t columns, int64_t k, const Real* a, int64_t a_row, const B* b, int64_t b_k,
                  Real* c, int64_t c_row) {
    for (int64_t n = 0; n < k; n += PRODUCTS)
        for (int64_t row = 0; row < rows; row++) {
            const Real* left = a + row * a_row + n;
            const B* right = b + n * b_k;
            Real* to = c + row * c_row;
            const int64_t count = std::min(PRODUCTS, k - n);
            int64_t column = 0;
            for (; column + 4 * LANES <= columns; column += 4 * LANES)
                block<1, 4>(left, 0, 1, right + column, b_k, to + column, 0, count, true);
            for (; column < columns; column += LANES)
                block<1, 1>(left, 0, 1, right + column, b_k, to + column, 0, count, true);
        }
}

#if defined(__AVX512F__)
// Transposes 16 rows of 16 words in place: swaps blocks of STEP words between rows that are STEP apart, then repeats
// with half the STEP.
template <int STEP = 8>
inline void transpose(__m512i (&x)[16]) {
    alignas(64) uint32_t low[16], high[16];
    for (uint32_t n = 0; n < 16; n++) {
        low[n] = n & STEP ? n - STEP + 16 : n;
        high[n] = n & STEP ? n + 16 : n + STEP;
    }
    const __m512i from_low = _mm512_load_si512(low), from_high = _mm512_load_si512(high);
#pragma GCC unroll 16
    for (int n = 0; n < 16; n++) {
        if (n & STEP) continue;
        const __m512i a = x[n], b = x[n + STEP];
        x[n] = _mm512_permutex2var_epi32(a, from_low, b);
        x[n + STEP] = _mm512_permutex2var_epi32(a, from_high, b);
    }
    if constexpr (STEP > 1) transpose<STEP / 2>(x);
}
#endif

// Packs `count` rows of `width` elements, given by their addresses, as the columns of a panel (width, PANEL); missing
// columns are zeros.
template <typename T>
void pack_panel(const T* const* rows, int64_t count, int64_t width, T* to) {
    if (count < PANEL) std::fill(to, to + width * PANEL, T(0));
    int64_t packed = 0;
#if defined(__AVX512F__)
    if constexpr (sizeof(T) == 4)
        for (; packed + 16 <= count; packed += 16)
            for (int64_t d = 0; d < width; d += 16) {
                __m512i x[16];
#pragma GCC unroll 16
                for (int r = 0; r < 16; r++) x[r] = _mm512_loadu_si512(rows[packed + r] + d);
                transpose(x);
#pragma GCC unroll 16
                for (int r = 0; r < 16; r++) _mm512_storeu_si512(to + (d + r) * PANEL + packed, x[r]);
            }
#endif
    for (int64_t n = packed; n < count; n++)
        for (int64_t d = 0; d < width; d++) std::memcpy(to + d * PANEL + n, rows[n] + d, sizeof(T));
}

// Packs rows first .. last as contiguous panels (panel, width, PANEL) from `to` on: row(n) is the address of row n,
// which must stay valid until all rows of its panel were requested.
template <typename T, typename F>
void pack(int64_t first, int64_t last, int64_t width, T* to, F row) {
    for (int64_t n = first; n < last; n += PANEL, to += width * PANEL) {
        const T* rows[PANEL];
        const int64_t count = std::min<int64_t>(PANEL, last - n);
        for (int64_t r = 0; r < count; r++) rows[r] = row(n + r);
        pack_panel(rows, count, width, to);
    }
}

}  // namespace
