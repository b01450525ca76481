// Rotates, rounds and packs rows of queries, keys and values for products.

#pragma once

#include "places.h"

namespace {

// Rotates a row, or inverts the rotation (sign -1).
inline void rotate_row(const Rotation& t, const Real* cos, const Real* sin, Real sign, Real* x) {
    Real *a = x + t.first, *b = a + t.pairs;
    int64_t k = 0;
    if (t.interleaved) {
        for (; k < t.pairs; k++) {
            const Real left = a[2 * k], right = a[2 * k + 1], s = sign * sin[k];
            a[2 * k] = left * cos[k] - right * s;
            a[2 * k + 1] = left * s + right * cos[k];
        }
        return;
    }
    for (; k + LANES <= t.pairs; k += LANES) {
        const Vec left = load(a + k), right = load(b + k), c = load(cos + k), s = sign * load(sin + k);
        store(a + k, left * c - right * s);
        store(b + k, left * s + right * c);
    }
    for (; k < t.pairs; k++) {
        const Real left = a[k], right = b[k], s = sign * sin[k];
        a[k] = left * cos[k] - right * s;
        b[k] = left * s + right * cos[k];
    }
}

// The rows of a head, with their rotation, if any.
struct Side {
    const Call& call;
    const Stored* x;
    int64_t row, width;
    const Real *cos = nullptr, *sin = nullptr;

    static Side of_queries(const Call& c, int64_t b, int64_t h) {
        Side found{c, row_of(c.q, b, h, 0), c.q.row, c.width};
        const Rotation& t = c.rotation;
        if (t.query_cos) found.rotated_by(t.query_cos, t.query_sin, b * t.query_batch + h * t.query_head);
        return found;
    }
    static Side of_keys(const Call& c, int64_t b, int64_t kv) {
        Side found{c, row_of(c.k, b, kv, 0), c.k.row, c.width};
        const Rotation& t = c.rotation;
        if (t.query_cos) found.rotated_by(t.key_cos, t.key_sin, b * t.key_batch + kv * t.key_head);
        return found;
    }

    void rotated_by(const Real* c, const Real* s, int64_t from) { cos = c + from, sin = s + from; }

    void rotate(int64_t n, Real sign, Real* to) const {
        if (cos) rotate_row(call.rotation, cos + n * call.rotation.pairs, sin + n * call.rotation.pairs, sign, to);
    }

    // Copies row n to `to`, rotated, plus a vector, times a power of two, with the precision of Stored.
    void copy(int64_t n, const Real* plus, Real scale, Real* to) const {
        const Stored* from = x + n * row;
        for (int64_t d = 0; d < width; d += LANES) store(to + d, load(from + d));
        rotate(n, 1, to);
        if (!plus && scale == 1 && (!IS_HALF || !cos)) return;
        for (int64_t d = 0; d < width; d += LANES) {
            Vec now = load(to + d);
            if (plus) now += load(plus + d);
#if HALF
            now = reinterpret_cast<Vec>(halves(now) << 16);
#endif
            store(to + d, now * scale);
        }
    }

    // Row n: its address if it needs no conversion, otherwise a copy in `buffer`.
    const Real* numbers(int64_t n, Real* buffer) const {
#if !HALF
        if (!cos) return x + n * row;
#endif
        copy(n, nullptr, 1, buffer);
        return buffer;
    }

    int64_t words() const { return words_of_width(width); }
    static int64_t words_of_width(int64_t width) { return IS_HALF ? rounded(width, 2 * WORDS) / 2 : width; }

    // Row n as words, in `buffer` if it needs a conversion; `whole` is a buffer for one row.
    const Word* packed(int64_t n, Word* buffer, [[maybe_unused]] Real* whole) const {
#if HALF
        if (!cos && width % (2 * WORDS) == 0) return reinterpret_cast<const Word*>(x + n * row);
        if (cos) {
            copy(n, nullptr, 1, whole);
            round_row(whole, width, words(), buffer);
        } else {
            std::memcpy(buffer, x + n * row, width * sizeof(Stored));
            std::memset(reinterpret_cast<Stored*>(buffer) + width, 0, words() * sizeof(Word) - width * sizeof(Stored));
        }
        return buffer;
#else
        return numbers(n, buffer);
#endif
    }

    // Packs rows first .. last into panels.
    void pack_rows(int64_t first, int64_t last, Word* to, Word* buffer, Real* whole) const {
        pack(first, last, words(), to, [&](int64_t n) { return packed(n, buffer + n % PANEL * words(), whole); });
    }
};

}  // namespace
