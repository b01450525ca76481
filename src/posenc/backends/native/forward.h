// The forward pass of one task: some queries of the heads of one key head.

#pragma once

#include "bounds.h"

namespace {

constexpr int64_t FEW = 4;
constexpr int64_t KEYS = 512;  // keys of a block in the forward pass
static_assert(MARGIN >= STRIP + PANEL, "each row of a strip starts one column later, and whole panels are written");

// The number of queries of a task, per head of a group, in whole strips. Every task packs keys, whose relative cost is
// highest in half precision, so its tasks are larger if there are enough for all threads. The output does not depend on
// the size: strips start at multiples of STRIP, and blocks of keys at multiples of KEYS.
int64_t size_of_task(const Call& call) {
    int64_t size = 256;
    while (size < (IS_HALF ? 1024 : 512) && call.batch * call.heads * (call.queries / (2 * size)) >= 2 * call.threads)
        size *= 2;
    return rounded(std::max<int64_t>(1, size * call.kv_heads / call.heads), STRIP);
}

int64_t tasks_forward(const Call& call) {
    const int64_t size = size_of_task(call);
    return (call.queries + size - 1) / size * call.batch * call.kv_heads;
}

// The largest score of a row, ignoring NaN; columns are whole panels.
inline Real most_of(const Real* row, int64_t left, int64_t right) {
    Vec most = all(NONE), other = most;
    for (int64_t j = left; j < right; j += PANEL) {
        const Vec now = load(row + j), next = load(row + j + LANES);
        most = now > most ? now : most;
        other = next > other ? next : other;
    }
    most = other > most ? other : most;
    return joined<LANES>(reinterpret_cast<const Real*>(&most), [](auto a, auto b) { return a > b ? a : b; });
}

class Forward {
    const Call& call;
    const int64_t groups, size, D, E, V, columns;  // columns: V, padded
    int64_t b = 0, kv = 0, start = 0, stop = 0;
    // For each row: the queries, the accumulated output, the largest score, the sum of weights and those beyond each
    // end of the values' table, and a lower bound of the largest score.
    Real *q, *unshifted, *o, *m, *l, *l_low, *l_high, *floor;
    Real *vectors, *turned, *s, *room;
    Word *q_words, *keys, *values, *weights, *rows;
    static constexpr int64_t ld = KEYS + 2 * MARGIN, words_of_weights = KEYS / 2 + WORDS;

public:
    Forward(const Call& c, Room& r)
        : call(c),
          groups(c.heads / c.kv_heads),
          size(size_of_task(c)),
          D(c.width),
          E(c.vectors.width),
          V(c.value_width),
          columns(IS_HALF ? rounded(c.value_width, PANEL) : c.value_width) {
        const int64_t all_rows = groups * size + STRIP, words = Side::words_of_width(D);
        q = r.take(all_rows * D);
        unshifted = r.take(call.vectors.x && !call.meeting.x ? all_rows * D : 0);
        o = r.take(all_rows * columns);
        for (Real** each : {&m, &l, &l_low, &l_high, &floor}) *each = r.take(all_rows);
        keys = r.take<Word>(KEYS * words);
        vectors = r.take(window() * E);
        turned = r.take(turned_stride(size, KEYS) * call.key_vectors.width);
        s = r.take(STRIP * ld);
        s = s ? s + MARGIN : s;
        room = r.take(D);
        rows = r.take<Word>(PANEL * words);
        q_words = r.take<Word>(IS_HALF ? all_rows * words : 0);
        values = r.take<Word>(IS_HALF ? KEYS / 2 * columns : 0);
        weights = r.take<Word>(IS_HALF ? STRIP * words_of_weights : 0);
    }

    void run(int64_t task) {
        const int64_t chunks = (call.queries + size - 1) / size;
        const int64_t chunk = chunks - 1 - task / (call.batch * call.kv_heads);  // chunks with the most keys first
        b = task / call.kv_heads % call.batch, kv = task % call.kv_heads;
        start = chunk * size, stop = std::min(call.queries, start + size);
        begin();
        for (int64_t n = 0; n < call.count; n++) {
            const Tile& tile = call.tiles[n];
            Part p{&tile, std::max(start, tile.start), std::min(stop, tile.stop), 0, 0};
            if (b < tile.batch || b >= tile.batch_end || p.start >= p.stop) continue;
            const int64_t first = std::max(tile.first, p.start + tile.low);
            const int64_t last = std::min(tile.last, p.stop + tile.high);
            if (call.query_most) reach_nearest(p);
            if (first >= last) continue;
            for (int64_t block = (last - 1) / KEYS; block >= first / KEYS; block--) {  // the last block first
                p.first = std::max(tile.first, block * KEYS);
                p.last = std::min(tile.last, (block + 1) * KEYS);
                block_of_keys(p);
            }
        }
        end();
    }

private:
    // The number of table entries that a task uses in a block of keys, in whole panels.
    int64_t window() const { return rounded(KEYS + size, PANEL) + PANEL; }

    // Whether packing keys and vectors costs more than it saves, as in decoding.
    bool is_few() const { return call.queries * groups <= FEW; }

    int64_t row_at(int64_t g, int64_t i) const { return g * size + i - start; }

    void begin() {
        for (int64_t g = 0; g < groups; g++) {
            const int64_t h = kv * groups + g, at = g * size;
            const Side queries = Side::of_queries(call, b, h);
            copy_rows(queries, start, stop - start, call.shift ? call.shift + h * D : nullptr, before(call), q + at * D,
                      q_words + at * queries.words());
            if (call.vectors.x && !call.meeting.x)
                for (int64_t i = start; i < stop; i++)
                    for (int64_t d = 0; d < D; d++)
                        unshifted[row_at(g, i) * D + d] = wide(row_of(call.q, b, h, i)[d]) * Real(call.scale);
        }
        std::fill(o, o + groups * size * columns, Real(0));
        std::fill(m, m + groups * size, NONE);
        std::fill(floor, floor + groups * size, NONE);
        for (Real* each : {l, l_low, l_high}) std::fill(each, each + groups * size, Real(0));
    }

    void reach_nearest(const Part& p) {
        for (int64_t g = 0; g < groups; g++)
            for (int64_t i = p.start; i < p.stop; i++) {
                const int64_t at = row_at(g, i);
                floor[at] = std::max(floor[at], nearest(call, p, b, kv * groups + g, i, q + at * D, room));
            }
    }

    void block_of_keys(const Part& p) {
        const bool few = is_few();
        const Side side = Side::of_keys(call, b, kv);
        const int64_t words = side.words();
        int64_t packed_head = -1, packed_low = 0, packed_high = 0;
        Operands given{few ? nullptr : keys, few ? nullptr : vectors, 0, {}};
        for (int64_t g = 0; g < groups; g++) {
            const int64_t h = kv * groups + g;
            int64_t least = p.low(p.start) / PANEL * PANEL, most = rounded(p.high(p.stop - 1), PANEL);
            if (call.query_most)
                Bound(call, p, b, h, p.start, p.stop - p.start, floor + row_at(g, p.start)).narrow(least, most);
            if (least >= most) continue;
            if (!few && (least < packed_low || most > packed_high)) {
                packed_low = packed_high > packed_low ? std::min(packed_low, least) : least;
                packed_high = std::max(packed_high, most);
                const int64_t high = std::min(packed_high, p.last - p.first);
                side.pack_rows(p.first + packed_low, p.first + high, keys + packed_low * words, rows, room);
#if HALF
                pack_down(high - packed_low, V, rounded(high - packed_low, PANEL) / 2, KEYS / 2 * PANEL,
                          values + packed_low / 2 * PANEL,
                          [&](int64_t n) { return row_of(call.v, b, kv, p.first + packed_low + n); });
#endif
            }
            if (call.vectors.x && !few && (packed_head < 0 || call.vectors.head)) {
                const Reach r = reach(p, p.start, p.stop - p.start, 0, p.last - p.first, call.vectors);
                pack(r.from, r.to, E, vectors, [&](int64_t n) { return entry(call.vectors, h, n); });
                given.vectors_from = r.from;
                packed_head = h;
            }
            if (call.key_vectors.x && !few)
                given.turned = turn(p, h, p.start, p.stop - p.start, least, most, call.key_vectors, turned,
                                    turned_stride(size, KEYS));
            for (int64_t i = p.start, count; i < p.stop; i += count) {
                count = std::min<int64_t>(STRIP - i % STRIP, p.stop - i);
                int64_t left = std::max(p.low(i) / PANEL * PANEL, least);
                int64_t right = std::min(rounded(p.high(i + count - 1), PANEL), most);
                if (call.query_most) Bound(call, p, b, h, i, count, floor + row_at(g, i)).narrow(left, right);
                if (left < right) strip(p, h, i, count, row_at(g, i), left, right, given);
            }
        }
    }

    // Some rows from query i on, which is row `at` of the task, in the columns left .. right.
    void strip(const Part& p, int64_t h, int64_t i, int64_t count, int64_t at, int64_t left, int64_t right,
               const Operands& given) {
        const bool meets = call.meeting.x;
        const Queries queries{q + at * D, q_words + at * Side::words_of_width(D),
                              meets ? row_of(call.meeting, b, h, i) : unshifted + at * D, meets ? call.meeting.row : D};
        scores(call, p, b, h, i, count, left, right, queries, given, s, ld, nullptr, room);
        const int64_t seen = std::min(right, p.last - p.first);
        Real tops[STRIP];
        bool counts = false;
        for (int64_t r = 0; r < count; r++) {
            tops[r] = most_of(s + r * ld, left, right);
            counts |= !(tops[r] < floor[at + r] + call.skip_threshold);
        }
        // most_of ignores NaN, so a negligible strip is searched for it.
        for (int64_t r = 0; r < count && !counts; r++) counts = std::isnan(greatest(s + r * ld + left, right - left));
        if (!counts) return;
        for (int64_t r = 0; r < count; r++)
            weigh_row(p, i + r, at + r, left, right, seen, tops[r], s + r * ld, weights + r * words_of_weights);
        const Stored* seen_values = row_of(call.v, b, kv, p.first + left);
        if (!given.keys) {
            weigh(count, V, seen - left, s + left, ld, seen_values, call.v.row, o + at * columns, columns);
        } else {
#if HALF
            multiply_halves(count, columns, rounded(right - left, PANEL) / 2, weights, words_of_weights,
                            values + left / 2 * PANEL, KEYS / 2 * PANEL, o + at * columns, columns, true);
#else
            multiply(count, V, seen - left, s + left, ld, 1, seen_values, call.v.row, PANEL, o + at * columns, columns);
#endif
        }
        if (!call.values.x) return;
        const Reach near = reach(p, i, count, left, seen, call.values);
        if (near.from < near.to)
            multiply(count, V, near.to - near.from, s + p.column(i, near.from, call.values), ld + 1, 1,
                     entry(call.values, h, near.from), V, PANEL, o + at * columns, columns);
    }

    // Replaces the scores of query i by weights, also as words, and rescales earlier sums to the new largest score.
    void weigh_row(const Part& p, int64_t i, int64_t at, int64_t left, int64_t right, int64_t seen, Real top, Real* row,
                   Word* words) {
        const Real highest = std::max(m[at], top), offset = highest == NONE ? Real(0) : highest;
        const Real fade = m[at] == offset ? Real(1) : std::exp(m[at] - offset);
        const bool keeps = !IS_HALF || call.values.x || is_few();
        m[at] = highest;
        floor[at] = std::max(floor[at], highest);
        Vec total{};
        for (int64_t j = left; j < right; j += LANES) {
            const Vec weight = power_of_two((load(row + j) - offset) * LOG2_E);
            total += weight;
            if (keeps) store(row + j, weight);
#if HALF
            store(reinterpret_cast<Stored*>(words) + j - left, weight);
#else
            (void)words;
#endif
        }
        l[at] = l[at] * fade + sum(total);
        if (fade != Real(1))
            for (int64_t d = 0; d < columns; d++) o[at * columns + d] *= fade;
        if (!call.values.x) return;
        Real low, high;
        ends(p, i, left, seen, call.values, row, low, high);
        l_low[at] = l_low[at] * fade + low;
        l_high[at] = l_high[at] * fade + high;
        std::fill(row + left - MARGIN / 2, row + left, Real(0));
        std::fill(row + right, row + right + MARGIN / 2, Real(0));
    }

    void end() {
        for (int64_t g = 0; g < groups; g++)
            for (int64_t i = start; i < stop; i++) {
                const int64_t h = kv * groups + g, at = row_at(g, i);
                Stored* to = row_of(call.out, b, h, i);
                const Real share = l[at] > 0 ? 1 / l[at] : l[at] == 0 ? Real(0) : l[at];
                Real* found = o + at * columns;
                for (int64_t d = 0; d < V; d++) found[d] *= share;
                if (call.values.x) {
                    const Real low = l_low[at] * share, high = l_high[at] * share;
                    const Real *first = entry(call.values, h, 0),
                               *last = entry(call.values, h, call.values.entries - 1);
                    for (int64_t d = 0; d < V; d++) found[d] += low * first[d] + high * last[d];
                }
                for (int64_t d = 0; d < V; d += LANES) store(to + d, load(found + d));
                *row_of(call.lse, b, h, i) = l[at] == 0 ? NONE : (m[at] == NONE ? Real(0) : m[at]) + std::log(l[at]);
            }
    }
};

}  // namespace
