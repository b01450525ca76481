// Products of bfloat16 matrices, accumulated in float32, by the processor's matrix or vector instructions for bfloat16
// or, without these, converted to float32.
//
// A word is two numbers that are consecutive in the sum. a is (rows, words); b is packed in panels (words, PANEL).
// Words are a multiple of 16, and columns of PANEL.

#pragma once

#include "products.h"
#if defined(__AMX_BF16__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace {

#if HALF && (defined(__AMX_BF16__) || defined(__AVX512BF16__))
constexpr bool MULTIPLIES_HALVES = true;
#else
constexpr bool MULTIPLIES_HALVES = false;
#endif
constexpr int64_t WORDS = 16;  // words of a row per instruction of the matrix unit

#if HALF

#if defined(__AMX_BF16__)
static_assert(PANEL == 32, "a panel is two tiles wide");

// A block of c with 16 or 32 rows and a panel of columns.
template <bool IS_TALL>
inline void block_of_tiles(int64_t words, const Word* a, int64_t a_row, const Word* b, Real* c, int64_t c_row,
                           bool adds) {
    asm volatile("" ::: "memory");  // compilers do not know that tile instructions access memory
    if (adds) {
        _tile_loadd(0, c, c_row * 4);
        _tile_loadd(1, c + 16, c_row * 4);
        if constexpr (IS_TALL) _tile_loadd(2, c + 16 * c_row, c_row * 4);
        if constexpr (IS_TALL) _tile_loadd(3, c + 16 * c_row + 16, c_row * 4);
    } else {
        _tile_zero(0);
        _tile_zero(1);
        if constexpr (IS_TALL) _tile_zero(2);
        if constexpr (IS_TALL) _tile_zero(3);
    }
    for (int64_t n = 0; n < words; n += WORDS) {
        _tile_loadd(4, a + n, a_row * 4);
        _tile_loadd(6, b + n * PANEL, PANEL * 4);
        _tile_loadd(7, b + n * PANEL + 16, PANEL * 4);
        if constexpr (IS_TALL) _tile_loadd(5, a + 16 * a_row + n, a_row * 4);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        if constexpr (IS_TALL) _tile_dpbf16ps(2, 5, 6);
        if constexpr (IS_TALL) _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, c, c_row * 4);
    _tile_stored(1, c + 16, c_row * 4);
    if constexpr (IS_TALL) _tile_stored(2, c + 16 * c_row, c_row * 4);
    if constexpr (IS_TALL) _tile_stored(3, c + 16 * c_row + 16, c_row * 4);
}

// Up to 32 rows. Missing rows of a are read, so they must be readable; those of c are not written.
void some_halves(int64_t rows, int64_t words, const Word* a, int64_t a_row, const Word* b, Real* c, int64_t c_row,
                 bool adds) {
    if (rows == 32) return block_of_tiles<true>(words, a, a_row, b, c, c_row, adds);
    if (rows >= 16) {
        block_of_tiles<false>(words, a, a_row, b, c, c_row, adds);
        if (rows == 16) return;
        rows -= 16, a += 16 * a_row, c += 16 * c_row;
    }
    alignas(64) Real whole[16 * PANEL];
    for (int64_t r = 0; r < rows && adds; r++) std::copy(c + r * c_row, c + r * c_row + PANEL, whole + r * PANEL);
    block_of_tiles<false>(words, a, a_row, b, whole, PANEL, adds);
    for (int64_t r = 0; r < rows; r++) std::copy(whole + r * PANEL, whole + r * PANEL + PANEL, c + r * c_row);
}
constexpr int64_t ROWS_OF_HALVES = 32;
#else
inline Vec add_products(Vec total, Ints a, Ints b) {
#if defined(__AVX512BF16__)
    return reinterpret_cast<Vec>(_mm512_dpbf16_ps(reinterpret_cast<__m512>(total), reinterpret_cast<__m512bh>(a),
                                                  reinterpret_cast<__m512bh>(b)));
#else
    const Ints high = Ints{} + 0xffff0000u;
    total += reinterpret_cast<Vec>(a & high) * reinterpret_cast<Vec>(b & high);
    return total + reinterpret_cast<Vec>(a << 16) * reinterpret_cast<Vec>(b << 16);
#endif
}

template <int R>
void some_halves(int64_t rows, int64_t words, const Word* a, int64_t a_row, const Word* b, Real* c, int64_t c_row,
                 bool adds) {
    if constexpr (R > 1)
        if (rows < R) return some_halves<R - 1>(rows, words, a, a_row, b, c, c_row, adds);
    Vec total[R][2];
#pragma GCC unroll 16
    for (int r = 0; r < R; r++)
        for (int v = 0; v < 2; v++) total[r][v] = adds ? load(c + r * c_row + v * LANES) : Vec{};
    for (int64_t n = 0; n < words; n++) {
        Ints right[2];
        std::memcpy(right, b + n * PANEL, sizeof right);
#pragma GCC unroll 16
        for (int r = 0; r < R; r++) {
            const Ints left = Ints{} + a[r * a_row + n];
            total[r][0] = add_products(total[r][0], left, right[0]);
            total[r][1] = add_products(total[r][1], left, right[1]);
        }
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; r++)
        for (int v = 0; v < 2; v++) store(c + r * c_row + v * LANES, total[r][v]);
}
constexpr int64_t ROWS_OF_HALVES = REGISTER_ROWS;
inline void some_halves(int64_t rows, int64_t words, const Word* a, int64_t a_row, const Word* b, Real* c,
                        int64_t c_row, bool adds) {
    some_halves<ROWS_OF_HALVES>(rows, words, a, a_row, b, c, c_row, adds);
}
#endif

// c = a b, or c += a b. Panel p of b starts at b + p * b_panel.
void multiply_halves(int64_t rows, int64_t columns, int64_t words, const Word* a, int64_t a_row, const Word* b,
                     int64_t b_panel, Real* c, int64_t c_row, bool adds) {
    for (int64_t row = 0; row < rows; row += ROWS_OF_HALVES)
        for (int64_t column = 0; column < columns; column += PANEL)
            some_halves(std::min(ROWS_OF_HALVES, rows - row), words, a + row * a_row, a_row,
                        b + column / PANEL * b_panel, c + row * c_row + column, c_row, adds);
}

// Converts a row to words, which are 0 from `width` on.
inline void round_row(const Real* x, int64_t width, int64_t words, Word* to) {
    Stored* found = reinterpret_cast<Stored*>(to);
    for (int64_t d = 0; d < width; d += LANES) store(found + d, load(x + d));
    std::memset(found + width, 0, (2 * words - width) * sizeof(Stored));
}

inline void store_words(Word* to, Ints words) { std::memcpy(to, &words, sizeof words); }

// Converts two rows to one row of words.
inline void pair_rows(const Real* x, const Real* y, int64_t width, Word* to) {
    for (int64_t d = 0; d < width; d += LANES) store_words(to + d, paired(load(x + d), load(y + d)));
}

// Packs `count` stored rows (count, width), which are summed over, as an operand b: panels (panel, words, PANEL), each
// starting `panel` words after the previous one; missing rows, up to 2 * words, are 0. row(n) is the address of row n.
template <typename F>
void pack_down(int64_t count, int64_t width, int64_t words, int64_t panel, Word* to, F row) {
    const Stored zeros[LANES]{};
    for (int64_t n = 0; n < words; n++) {
        const Stored* first = 2 * n < count ? row(2 * n) : nullptr;
        const Stored* second = 2 * n + 1 < count ? row(2 * n + 1) : nullptr;
        for (int64_t d = 0; d < rounded(width, PANEL); d += LANES) {
            const Stored* a = first && d < width ? first + d : zeros;
            const Stored* b = second && d < width ? second + d : zeros;
            const Ints found = words_of(&a->bits) | words_of(&b->bits) << 16;
            store_words(to + d / PANEL * panel + n * PANEL + d % PANEL, found);
        }
    }
}

// Packs rows with stride `ld` in the columns left .. right, which are summed over, as an operand b: panels of `words`
// words each, where missing rows are 0.
inline void round_down(const Real* x, int64_t ld, int64_t count, int64_t left, int64_t right, int64_t words, Word* to) {
    for (int64_t j = left; j < right; j += PANEL)
        for (int64_t r = 0; r < rounded(count, 2 * WORDS); r += 2) {
            Word* here = to + j * words + r / 2 * PANEL;
            if (r + 1 < count) {
                pair_rows(x + r * ld + j, x + (r + 1) * ld + j, PANEL, here);
            } else if (r < count) {
                for (int64_t d = 0; d < PANEL; d += LANES) store_words(here + d, halves(load(x + r * ld + j + d)));
            } else {
                std::fill(here, here + PANEL, Word(0));
            }
        }
}

// Packs contiguous rows, which are summed over, as an operand a: a row of `words` words for each channel.
inline void transpose_down(const Real* x, int64_t count, int64_t width, int64_t words, Word* to) {
    for (int64_t d = 0; d < width; d += LANES)
        for (int64_t r = 0; r < rounded(count, 2 * WORDS); r += 2) {
            const Vec one = r < count ? load(x + r * width + d) : Vec{};
            const Vec other = r + 1 < count ? load(x + (r + 1) * width + d) : Vec{};
            const Ints found = paired(one, other);
            for (int l = 0; l < LANES; l++) to[(d + l) * words + r / 2] = found[l];
        }
}

// Configures the tiles of the matrix unit, all with 16 rows of 64 bytes. Does nothing without a matrix unit.
struct Tiles {
#if defined(__AMX_BF16__)
    struct alignas(64) Shape {
        uint8_t palette, start, reserved[14];
        uint16_t bytes[16];
        uint8_t rows[16];
    } before;

    Tiles() {
        _tile_storeconfig(&before);
        Shape wanted{};
        wanted.palette = 1;
        for (int n = 0; n < 8; n++) wanted.bytes[n] = 64, wanted.rows[n] = 16;
        asm volatile("" ::: "memory");
        _tile_loadconfig(&wanted);
    }
    ~Tiles() { before.palette ? _tile_loadconfig(&before) : _tile_release(); }  // restores the caller's configuration
#endif
};

// Whether the system lets this process use the matrix unit, if it is built for it.
inline bool is_usable() {
#if defined(__AMX_BF16__) && defined(__linux__)
    return syscall(SYS_arch_prctl, 0x1023, 18) == 0;  // ARCH_REQ_XCOMP_PERM of the tiles' data
#else
    return true;
#endif
}

#else
struct Tiles {};
inline bool is_usable() { return true; }
#endif

}  // namespace
