// Products of matrices whose rows may be shifted, exponentials, and threads. Plain C++ with vectors of the compiler's.

#pragma once

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <limits>
#include <thread>
#include <type_traits>
#include <vector>
#if defined(__x86_64__) || defined(__i386__)
#include <immintrin.h>
#endif

#include "call.h"

namespace {

#if defined(__AVX512F__)
constexpr int BYTES = 64, STRIP = 8;
#elif defined(__AVX2__)
constexpr int BYTES = 32, STRIP = 4;
#else
constexpr int BYTES = 16, STRIP = 8;
#endif
constexpr int LANES = BYTES / sizeof(Real);
constexpr int PANEL = 2 * LANES;     // columns of a packed panel, of which the registers hold STRIP rows
constexpr int64_t PRODUCTS = 64;     // that are summed before they are added to the rest
constexpr int64_t QUERIES = 256;     // of a task, forward
constexpr int64_t KEYS = 512;        // of a block, forward
constexpr int64_t ROWS = 64;         // queries of a block, backward
constexpr int64_t COLUMNS = 256;     // keys of a block, backward
constexpr int64_t MARGIN = 64;       // columns beside a block, which its shifted rows reach over
constexpr int64_t CAP = 2;              // of the functions of a score, c tanh(s / c)
constexpr Real NONE = -std::numeric_limits<Real>::infinity();

typedef std::conditional_t<sizeof(Real) == 4, uint32_t, uint64_t> Whole;
typedef Real Vec __attribute__((vector_size(BYTES), aligned(sizeof(Real)), may_alias));
typedef Whole Ints __attribute__((vector_size(BYTES), aligned(sizeof(Real)), may_alias));

inline Vec load(const Real* x) { return *reinterpret_cast<const Vec*>(x); }
inline void store(Real* x, Vec v) { *reinterpret_cast<Vec*>(x) = v; }
inline Vec all(Real x) { return Vec{} + x; }
inline int64_t rounded(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

// e^x for any x that e^x can be told of; 0 where it would be a denormal number. With n = round(x / ln 2), the sum of
// r^k / k! for r = x - n ln 2, which is at most 0.35, times 2^n.
inline Vec exponential(Vec x) {
    constexpr bool is_single = sizeof(Real) == 4;
    constexpr int bits = is_single ? 23 : 52, terms = is_single ? 7 : 13;
    constexpr Real shift = is_single ? 12582912.0 : 6755399441055744.0;  // 1.5 * 2^bits: adding it rounds to integers
    Vec n = x * Real(1.4426950408889634) + shift;
    const Ints power = reinterpret_cast<Ints>(n) << bits;
    n = n - shift;
    // ln 2 in two parts, of which the first has so few digits that n times it is exact.
    const Vec r = is_single ? x - n * Real(0.693359375) + n * Real(2.12194440e-4)
                            : x - n * Real(6.93145751953125e-1) - n * Real(1.42860682030941723212e-6);
    Vec p = all(0);
    Real factorial = 1;
    Real inverse[terms + 1];
    for (int k = 0; k <= terms; k++) {
        inverse[k] = 1 / factorial;
        factorial *= k + 1;
    }
#pragma GCC unroll 16
    for (int k = terms; k >= 0; k--) p = p * r + inverse[k];
    const Vec found = reinterpret_cast<Vec>(reinterpret_cast<Ints>(p) + power);
    return x < Real(is_single ? -87.3 : -708.0) ? Vec{} : found;
}

// tanh x = -m / (2 + m) for x from 0 on, with m = e^-2x - 1: by its own sum where x is small, or its digits would be lost.
inline Vec tangent(Vec x) {
    constexpr int terms = sizeof(Real) == 4 ? 7 : 13;
    const Vec y = x < all(0) ? x * Real(2) : x * Real(-2);
    Vec near = all(1);
#pragma GCC unroll 16
    for (int k = terms; k > 1; k--) near = near * y * (Real(1) / k) + Real(1);
    const Vec m = y > all(Real(-0.35)) ? near * y : exponential(y) - Real(1);
    const Vec found = -m / (m + Real(2));
    return x < all(0) ? -found : found;
}

// The sum of an array of W numbers, halves by halves.
template <int W>
inline Real sum_of(const Real* x) {
    if constexpr (W == 1) {
        return *x;
    } else {
        typedef Real Half __attribute__((vector_size(W / 2 * sizeof(Real)), aligned(sizeof(Real)), may_alias));
        Half s = *reinterpret_cast<const Half*>(x) + *reinterpret_cast<const Half*>(x + W / 2);
        return sum_of<W / 2>(reinterpret_cast<const Real*>(&s));
    }
}
inline Real sum(Vec x) { return sum_of<LANES>(reinterpret_cast<const Real*>(&x)); }

// The sum of f(j) over from .. to, in several sums at a time, which a sum one by one would wait for.
template <typename F>
inline Real sum_over(int64_t from, int64_t to, F f) {
    Real parts[LANES]{};
    int64_t j = from;
    for (; j + LANES <= to; j += LANES)
        for (int l = 0; l < LANES; l++) parts[l] += f(j + l);
    Real s = sum_of<LANES>(parts);
    for (; j < to; j++) s += f(j);
    return s;
}

inline Real dot(const Real* a, const Real* b, int64_t n) {
    Vec s{};
    for (int64_t d = 0; d < n; d += LANES) s += load(a + d) * load(b + d);
    return sum(s);
}

// c[row][column] += a[row] . b[column]: for a few rows, which are not worth packing b.
inline void dots(int64_t rows, int64_t columns, int64_t k, const Real* a, int64_t a_row, const Real* b, int64_t b_row,
                 Real* c, int64_t c_row) {
    for (int64_t column = 0; column < columns; column++)
        for (int64_t row = 0; row < rows; row++)
            c[row * c_row + column] += dot(a + row * a_row, b + column * b_row, k);
}

// c[row][column] += sum over k of a[row][k] b[k][column], for R rows and C vectors of columns.
template <int R, int C>
void block(const Real* a, int64_t a_row, int64_t a_k, const Real* b, int64_t b_k, Real* c, int64_t c_row, int64_t k) {
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
            store(to, load(to) + total[r][v]);
        }
}

template <int R, int C>
void some_rows(int64_t rows, const Real* a, int64_t a_row, int64_t a_k, const Real* b, int64_t b_k, Real* c,
               int64_t c_row, int64_t k) {
    if (rows == R) {
        // Of so many products at a time, since the digits of a sum are lost to those of the one before.
        for (int64_t n = 0; n < k; n += PRODUCTS)
            block<R, C>(a + n * a_k, a_row, a_k, b + n * b_k, b_k, c, c_row, std::min(PRODUCTS, k - n));
        return;
    }
    if constexpr (R > 1) some_rows<R - 1, C>(rows, a, a_row, a_k, b, b_k, c, c_row, k);
}

// The same for any number of rows, and columns by LANES. Panel p of b begins at b + p * b_panel.
void multiply(int64_t rows, int64_t columns, int64_t k, const Real* a, int64_t a_row, int64_t a_k, const Real* b,
              int64_t b_k, int64_t b_panel, Real* c, int64_t c_row) {
    for (int64_t column = 0; column < columns; column += PANEL, b += b_panel)
        for (int64_t row = 0; row < rows; row += STRIP) {
            const Real* left = a + row * a_row;
            Real* to = c + row * c_row + column;
            const int64_t count = std::min<int64_t>(STRIP, rows - row);
            if (columns - column >= PANEL)
                some_rows<STRIP, 2>(count, left, a_row, a_k, b, b_k, to, c_row, k);
            else
                some_rows<STRIP, 1>(count, left, a_row, a_k, b, b_k, to, c_row, k);
        }
}

// The same for a few rows, which would read b once for each panel: it is read row by row, once.
inline void weigh(int64_t rows, int64_t columns, int64_t k, const Real* a, int64_t a_row, const Real* b, int64_t b_k,
                  Real* c, int64_t c_row) {
    for (int64_t n = 0; n < k; n += PRODUCTS)
        for (int64_t row = 0; row < rows; row++) {
            const Real *left = a + row * a_row + n, *right = b + n * b_k;
            Real* to = c + row * c_row;
            const int64_t count = std::min(PRODUCTS, k - n);
            int64_t column = 0;
            for (; column + 4 * LANES <= columns; column += 4 * LANES)
                block<1, 4>(left, 0, 1, right + column, b_k, to + column, 0, count);
            for (; column < columns; column += LANES)
                block<1, 1>(left, 0, 1, right + column, b_k, to + column, 0, count);
        }
}

// Rows first .. last of x, transposed into panels: (panel, width, PANEL), with zeros past the last.
void pack(const Real* x, int64_t x_row, int64_t first, int64_t last, int64_t width, Real* to) {
    for (int64_t row = first; row < last; row += PANEL, to += width * PANEL) {
        const int64_t count = std::min<int64_t>(PANEL, last - row);
        if (count < PANEL) std::fill(to, to + width * PANEL, 0.0);
        for (int64_t n = 0; n < count; n++) {
            const Real* from = x + (row + n) * x_row;
            for (int64_t d = 0; d < width; d++) to[d * PANEL + n] = from[d];
        }
    }
}

// Runs all tasks, each thread the next one that nobody has: a thread that waits for a core holds nobody up. Each thread
// has `size` numbers of `work` for itself. They are the threads of `pool`, which PyTorch keeps: others would have to wait
// for them, since for a while they keep their cores awake. Without a pool they are new ones.
template <typename Task>
struct Loop {
    int64_t tasks, size;
    Real* work;
    Task task;
    std::atomic<int64_t> next{0}, threads{0};

    static void enter(void* x) {
        Loop& loop = *static_cast<Loop*>(x);
        Real* mine = loop.work + loop.threads++ * loop.size;
#if defined(__x86_64__) || defined(__i386__)
        const unsigned mode = _mm_getcsr();
        _mm_setcsr(mode | 0x8040);  // denormal numbers are taken for 0
#endif
        for (int64_t n; (n = loop.next++) < loop.tasks;) loop.task(n, mine);
#if defined(__x86_64__) || defined(__i386__)
        _mm_setcsr(mode);
#endif
    }
};

template <typename Task>
void run(const Call& call, int64_t tasks, Task task) {
    Loop<Task> loop{tasks, call.work_size, call.work, task};
    if (call.pool) return call.pool(loop.enter, &loop, static_cast<unsigned>(call.threads), 0);
    std::vector<std::thread> others;
    try {
        for (int64_t n = 1; n < call.threads; n++) others.emplace_back(loop.enter, &loop);
    } catch (...) {  // the system gives no more threads: those that there are do the work
    }
    loop.enter(&loop);
    for (auto& other : others) other.join();
}

}  // namespace
