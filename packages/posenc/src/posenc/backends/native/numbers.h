// SIMD vectors by compiler extensions: exponentials, sums, maxima, and bfloat16.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#if defined(__x86_64__) || defined(__i386__)
#include <immintrin.h>
#endif

#include "call.h"

namespace {

#if defined(__AVX512F__)
constexpr int BYTES = 64, REGISTER_ROWS = 8;
#elif defined(__AVX2__)
constexpr int BYTES = 32, REGISTER_ROWS = 6;
#else
constexpr int BYTES = 16, REGISTER_ROWS = 8;
#endif
constexpr int LANES = BYTES / sizeof(Real);
constexpr bool IS_HALF = !std::is_same_v<Stored, Real>;
constexpr Real NONE = -std::numeric_limits<Real>::infinity();
constexpr Real LOG2_E = Real(1.4426950408889634);

typedef std::conditional_t<sizeof(Real) == 4, uint32_t, uint64_t> Whole;
// The element of packed operands of products: a number or, in half precision, two that are consecutive in the sum.
typedef std::conditional_t<IS_HALF, Whole, Real> Word;
typedef Real Vec __attribute__((vector_size(BYTES), aligned(sizeof(Real)), may_alias));
typedef Whole Ints __attribute__((vector_size(BYTES), aligned(sizeof(Real)), may_alias));
typedef uint16_t Shorts __attribute__((vector_size(BYTES / 2), aligned(2), may_alias));

inline Vec load(const Real* x) { return *reinterpret_cast<const Vec*>(x); }
inline void store(Real* x, Vec v) { *reinterpret_cast<Vec*>(x) = v; }
inline Vec all(Real x) { return Vec{} + x; }
inline int64_t rounded(int64_t n, int64_t to) { return (n + to - 1) / to * to; }
inline Real wide(Real x) { return x; }

#if HALF
inline Ints words_of(const uint16_t* x) { return __builtin_convertvector(*reinterpret_cast<const Shorts*>(x), Ints); }
inline Vec load(const Stored* x) { return reinterpret_cast<Vec>(words_of(&x->bits) << 16); }

inline Real wide(Stored x) {
    const uint32_t bits = static_cast<uint32_t>(x.bits) << 16;
    Real found;
    std::memcpy(&found, &bits, sizeof found);
    return found;
}

// Rounds to bfloat16, to nearest even, in the lower half of each element.
inline Ints halves(Vec x) {
#if defined(__AVX512BF16__) && defined(__AVX512VL__)
    return reinterpret_cast<Ints>(
        _mm512_cvtepu16_epi32(reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(reinterpret_cast<__m512>(x)))));
#else
    const Ints bits = reinterpret_cast<Ints>(x), quiet = Ints{} + 0x7fc0;
    const Ints found = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    return x != x ? quiet : found;
#endif
}

inline void store(Stored* to, Vec x) {
    *reinterpret_cast<Shorts*>(to) = __builtin_convertvector(halves(x), Shorts);
}

// Words of two numbers each, a first.
inline Ints paired(Vec a, Vec b) { return halves(a) | halves(b) << 16; }
#endif

// 2^x for x up to about 0; 0 instead of denormals; propagates NaN.
inline Vec power_of_two(Vec x) {
    constexpr bool is_single = sizeof(Real) == 4;
#if defined(__AVX512F__)
    const Vec least = all(is_single ? -200 : -1200), t = least > x ? least : x;  // propagates NaN
    Vec n;
    if constexpr (is_single)
        n = reinterpret_cast<Vec>(_mm512_roundscale_ps(reinterpret_cast<__m512>(t), 8));
    else
        n = reinterpret_cast<Vec>(_mm512_roundscale_pd(reinterpret_cast<__m512d>(t), 8));
#else
    const Vec t = x;
    constexpr Real shift = is_single ? 12582912.0 : 6755399441055744.0;  // 1.5 * 2^bits: adding it rounds to integers
    const Vec with = t + shift, n = with - shift;
#endif
    const Vec f = t - n;  // within half of 0
    Vec p;
    if constexpr (is_single) {  // minimax polynomial, relative error 2e-8 with rounded coefficients
        constexpr Real c[] = {1, 0.6931471824645996, 0.24022646248340607, 0.05550328642129898, 0.009618489071726799,
                              0.0013399930903688073, 0.0001534581242594868};
        p = all(c[6]);
        for (int k = 5; k >= 0; k--) p = p * f + c[k];
    } else {  // the sum of (f ln 2)^k / k!
        constexpr int terms = 13;
        Real c[terms + 1] = {1};
        for (int k = 1; k <= terms; k++) c[k] = c[k - 1] * Real(0.69314718055994531) / k;
        p = all(c[terms]);
#pragma GCC unroll 16
        for (int k = terms - 1; k >= 0; k--) p = p * f + c[k];
    }
#if defined(__AVX512F__)
    if constexpr (is_single)
        return reinterpret_cast<Vec>(_mm512_scalef_ps(reinterpret_cast<__m512>(p), reinterpret_cast<__m512>(n)));
    else
        return reinterpret_cast<Vec>(_mm512_scalef_pd(reinterpret_cast<__m512d>(p), reinterpret_cast<__m512d>(n)));
#else
    constexpr int bits = is_single ? 23 : 52;
    const Vec found = reinterpret_cast<Vec>(reinterpret_cast<Ints>(p) + (reinterpret_cast<Ints>(with) << bits));
    return x < Real(is_single ? -126 : -1022) ? Vec{} : x == x ? found : x;
#endif
}

// e^x where it does not overflow; 0 instead of denormals; propagates NaN. With n = round(x / ln 2), 2^n times the sum
// of r^k / k! for r = x - n ln 2, which is at most 0.35.
inline Vec exponential(Vec x) {
    constexpr bool is_single = sizeof(Real) == 4;
    constexpr int bits = is_single ? 23 : 52, terms = is_single ? 7 : 13;
    constexpr Real shift = is_single ? 12582912.0 : 6755399441055744.0;
    Vec n = x * LOG2_E + shift;
    const Ints power = reinterpret_cast<Ints>(n) << bits;
    n = n - shift;
    // ln 2 in two parts; the first has so few digits that n times it is exact.
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
    return x < Real(is_single ? -87.3 : -708.0) ? Vec{} : x == x ? found : x;
}

// tanh x = -m / (2 + m) for x >= 0, with m = e^-2x - 1; for small x, m is a series, to avoid cancellation.
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

// Reduces an array of W numbers by halves: f takes two vectors.
template <int W, typename F>
inline Real joined(const Real* x, F f) {
    if constexpr (W == 1) {
        return *x;
    } else {
        typedef Real Half __attribute__((vector_size(W / 2 * sizeof(Real)), aligned(sizeof(Real)), may_alias));
        const Half s = f(*reinterpret_cast<const Half*>(x), *reinterpret_cast<const Half*>(x + W / 2));
        return joined<W / 2>(reinterpret_cast<const Real*>(&s), f);
    }
}

inline Real sum(Vec x) {
    return joined<LANES>(reinterpret_cast<const Real*>(&x), [](auto a, auto b) { return a + b; });
}

// The sum of x[j] over from .. to, with several independent partial sums.
inline Real sum_of(const Real* x, int64_t from, int64_t to) {
    Vec total{};
    int64_t j = from;
    for (; j + LANES <= to; j += LANES) total += load(x + j);
    Real s = sum(total);
    for (; j < to; j++) s += x[j];
    return s;
}

inline Real sum_of_products(const Real* x, const Real* y, int64_t from, int64_t to) {
    Vec total{};
    int64_t j = from;
    for (; j + LANES <= to; j += LANES) total += load(x + j) * load(y + j);
    Real s = sum(total);
    for (; j < to; j++) s += x[j] * y[j];
    return s;
}

// Reduces n numbers by f, vector by vector; `none` is the identity.
template <typename F>
inline Real of_all(const Real* x, int64_t n, Real none, F f) {
    Vec found = all(none);
    int64_t j = 0;
    for (; j + LANES <= n; j += LANES) found = f(load(x + j), found);
    Real rest[LANES];
    std::fill(rest, rest + LANES, none);
    std::copy(x + j, x + n, rest);
    found = f(load(rest), found);
    return joined<LANES>(reinterpret_cast<const Real*>(&found), f);
}

// The maximum, and the minimum, of n numbers; NaN if there is one.
inline Real greatest(const Real* x, int64_t n) {
    return of_all(x, n, NONE, [](auto a, auto b) { return ((a > b) | (a != a)) ? a : b; });
}
inline Real least(const Real* x, int64_t n) {
    return of_all(x, n, -NONE, [](auto a, auto b) { return ((a < b) | (a != a)) ? a : b; });
}

}  // namespace
