// The forward pass of one task: some queries of the heads of one key head.

#pragma once

#include "bounds.h"

namespace {

constexpr int64_t FEW = 4;  // queries in decoding
static_assert(MARGIN >= STRIP + PANEL, "each row of a strip starts one column later, and whole panels are written");

// The number of queries of a task, per head of a group, in whole strips. Every task packs keys, whose relative cost is
// highest in half precision, so its tasks are larger if there are enough for all threads. The output does not depend on
// the size: strips start at multiples of STRIP, and blocks of keys at multiples of BLOCK_N.
int64_t block_m(const Call& call) {
    int64_t size = 256;
    while (size < (IS_HALF ? 1024 : 512) && call.batch * call.heads * (call.queries / (2 * size)) >= 2 * call.threads)
        size *= 2;
    return rounded(std::max<int64_t>(1, size * call.kv_heads / call.heads), STRIP);
}

int64_t blocks_m(const Call& call) { return (call.queries + block_m(call) - 1) / block_m(call); }

int64_t tasks_forward(const Call& call) {
    return blocks_m(call) * call.batch * call.kv_heads;
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
    static constexpr int64_t BLOCK_N = 512, ld = BLOCK_N + 2 * MARGIN;  // keys of a block, and columns of its scores
    static constexpr int64_t words_of_weights = BLOCK_N / 2 + WORDS;

    const Call& call;
    Workspace& workspace;
    const int64_t groups = call.heads / call.kv_heads, BLOCK_M = block_m(call);
    const int64_t D = call.width, E = call.vectors.width, V = call.value_width;
    const int64_t words = Side::words_of_width(D), columns = IS_HALF ? rounded(V, PANEL) : V;
    const int64_t rows = groups * BLOCK_M + STRIP;
    // Entries of a table that a task uses in a block of keys, in whole panels.
    const int64_t window = rounded(BLOCK_N + BLOCK_M, PANEL) + PANEL;
    // Whether packing keys and vectors costs more than it saves, as in decoding.
    const bool is_few = call.queries * groups <= FEW;

    // For each row: the query, also without the shift, the accumulated output, the largest score, the sums of weights,
    // of all and of those beyond each end of the values' table, and a lower bound of the largest score.
    Real* const q = workspace.allocate(rows * D);
    Real* const unshifted = workspace.allocate(call.vectors.x && !call.meeting.x ? rows * D : 0);
    Real* const o = workspace.allocate(rows * columns);
    Real* const m_i = workspace.allocate(rows);
    Real* const l_i = workspace.allocate(rows);
    Real* const l_low = workspace.allocate(rows);
    Real* const l_high = workspace.allocate(rows);
    Real* const floor = workspace.allocate(rows);
    // Of a block of keys: panels of keys and of vectors by distance, vectors for keys, the scores of a strip, one key.
    Word* const k = workspace.allocate<Word>(BLOCK_N * words);
    Real* const vectors = workspace.allocate(window * E);
    Real* const transposed = workspace.allocate(transposed_stride(BLOCK_M, BLOCK_N) * call.key_vectors.width);
    Real* const s = workspace.allocate_inside(STRIP * ld, MARGIN);
    Real* const one_key = workspace.allocate(D);
    Word* const rows_of_panel = workspace.allocate<Word>(PANEL * words);
    // In half precision: queries, values and the weights of a strip.
    Word* const q_words = workspace.allocate<Word>(IS_HALF ? rows * words : 0);
    Word* const v = workspace.allocate<Word>(IS_HALF ? BLOCK_N / 2 * columns : 0);
    Word* const weights = workspace.allocate<Word>(IS_HALF ? STRIP * words_of_weights : 0);

    int64_t b = 0, kv = 0, start = 0, stop = 0;  // row of the batch, key head, queries

public:
    Forward(const Call& c, Workspace& w) : call(c), workspace(w) {}

    void run(int64_t task) {
        const int64_t m_block = blocks_m(call) - 1 - task / (call.batch * call.kv_heads);  // those of most keys first
        b = task / call.kv_heads % call.batch, kv = task % call.kv_heads;
        start = m_block * BLOCK_M, stop = std::min(call.queries, start + BLOCK_M);
        begin();
        for (int64_t n = 0; n < call.count; n++) {
            const Tile& tile = call.tiles[n];
            Part p{&tile, std::max(start, tile.start), std::min(stop, tile.stop), 0, 0};
            if (b < tile.batch || b >= tile.batch_end || p.start >= p.stop) continue;
            const int64_t first = std::max(tile.first, p.start + tile.low);
            const int64_t last = std::min(tile.last, p.stop + tile.high);
            if (call.query_most) raise_floors(p);
            if (first >= last) continue;
            for (int64_t n_block = (last - 1) / BLOCK_N; n_block >= first / BLOCK_N; n_block--) {  // the last first
                p.first = std::max(tile.first, n_block * BLOCK_N);
                p.last = std::min(tile.last, (n_block + 1) * BLOCK_N);
                block_of_keys(p);
            }
        }
        end();
    }

private:
    int64_t row_at(int64_t h, int64_t i) const { return (h - kv * groups) * BLOCK_M + i - start; }

    void begin() {
        for (int64_t h = kv * groups; h < (kv + 1) * groups; h++) {
            const int64_t at = row_at(h, start);
            const Side queries = Side::of_queries(call, b, h);
            copy_rows(queries, start, stop - start, call.shift ? call.shift + h * D : nullptr, before(call), q + at * D,
                      q_words + at * words);
            if (call.vectors.x && !call.meeting.x) copy_scaled(call, b, h, start, stop - start, unshifted + at * D);
        }
        std::fill(o, o + groups * BLOCK_M * columns, Real(0));
        for (Real* each : {m_i, floor}) std::fill(each, each + groups * BLOCK_M, NONE);
        for (Real* each : {l_i, l_low, l_high}) std::fill(each, each + groups * BLOCK_M, Real(0));
    }

    // No row's largest score is below that with its nearest key.
    void raise_floors(const Part& p) {
        for (int64_t h = kv * groups; h < (kv + 1) * groups; h++)
            for (int64_t i = p.start; i < p.stop; i++) {
                const int64_t at = row_at(h, i);
                floor[at] = std::max(floor[at], nearest(call, p, b, h, i, q + at * D, one_key));
            }
    }

    void block_of_keys(const Part& p) {
        Packed packed{};
        for (int64_t h = kv * groups; h < (kv + 1) * groups; h++) {
            Block block = Block::seen_by(p, b, h, p.start, p.stop - p.start);
            narrow(call, block, floor + row_at(h, p.start));
            if (block.empty()) continue;
            if (!is_few) pack_block(block, packed);
            for (int64_t i = p.start, count; i < p.stop; i += count) {
                count = std::min<int64_t>(STRIP - i % STRIP, p.stop - i);
                strip(block.of_rows(i, count), row_at(h, i), packed.operands);
            }
        }
    }

    // What is packed of a block of keys: some columns of keys and values, and vectors, which may be those of a head.
    struct Packed {
        Operands operands;
        int64_t left, right;
    };

    // Packs what the heads before this one have not.
    void pack_block(const Block& block, Packed& packed) {
        const Part& p = block.p;
        if (!packed.operands.keys || block.left < packed.left || block.right > packed.right) {
            packed.left = packed.operands.keys ? std::min(packed.left, block.left) : block.left;
            packed.right = std::max(packed.right, block.right);
            packed.operands.keys = k;
            pack_keys(p, packed.left, std::min(packed.right, p.last - p.first));
        }
        if (call.vectors.x && (!packed.operands.vectors || call.vectors.head)) {
            const Reach r = reach(p, p.start, p.stop - p.start, 0, p.last - p.first, call.vectors);
            packed.operands.vectors = vectors;
            packed.operands.vectors_from = pack_vectors(r, call.vectors, block.h, vectors);
        }
        if (call.key_vectors.x)
            packed.operands.transposed = transpose(p, block.h, block.i, block.rows, block.left, block.right,
                                                   call.key_vectors, transposed,
                                                   transposed_stride(BLOCK_M, BLOCK_N));
    }

    void pack_keys(const Part& p, int64_t left, int64_t right) {
        const Side side = Side::of_keys(call, b, kv);
        side.pack_rows(p.first + left, p.first + right, k + left * words, rows_of_panel, one_key);
#if HALF
        pack_down(right - left, V, rounded(right - left, PANEL) / 2, BLOCK_N / 2 * PANEL, v + left / 2 * PANEL,
                  [&](int64_t n) { return row_of(call.v, b, kv, p.first + left + n); });
#endif
    }

    // Attention of some rows, of which query i is row `at` of the task, to some keys.
    void strip(Block block, int64_t at, const Operands& given) {
        narrow(call, block, floor + at);
        if (block.empty()) return;
        const bool meets = call.meeting.x;
        const Queries queries{q + at * D, q_words + at * words,
                              meets ? row_of(call.meeting, b, block.h, block.i) : unshifted + at * D,
                              meets ? call.meeting.row : D};
        scores(call, block, queries, given, s, ld, nullptr, one_key);
        Real tops[STRIP];
        if (!counts(block, at, tops)) return;
        for (int64_t r = 0; r < block.rows; r++)
            softmax_row(block, block.i + r, at + r, tops[r], s + r * ld, weights + r * words_of_weights);
        multiply_values(block, !given.keys, o + at * columns);
    }

    // Whether some score of a strip is not negligible; `tops` are the largest of each row.
    bool counts(const Block& block, int64_t at, Real* tops) const {
        const auto& [p, b, h, i, rows, left, right] = block;
        bool counts = false;
        for (int64_t r = 0; r < rows; r++) {
            tops[r] = most_of(s + r * ld, left, right);
            counts |= !(tops[r] < floor[at + r] + call.skip_threshold);
        }
        // most_of ignores NaN, so a negligible strip is searched for it.
        for (int64_t r = 0; r < rows && !counts; r++) counts = std::isnan(greatest(s + r * ld + left, right - left));
        return counts;
    }

    // o += weights v, for the rows of a block.
    void multiply_values(const Block& block, bool unpacked, Real* o) {
        const auto& [p, b, h, i, rows, left, right] = block;
        const int64_t seen = block.end();
        const Stored* values = row_of(call.v, b, kv, p.first + left);
        if (unpacked) {
            weigh(rows, V, seen - left, s + left, ld, values, call.v.row, o, columns);
        } else {
#if HALF
            multiply_halves(rows, columns, rounded(right - left, PANEL) / 2, weights, words_of_weights,
                            v + left / 2 * PANEL, BLOCK_N / 2 * PANEL, o, columns, true);
#else
            multiply(rows, V, seen - left, s + left, ld, 1, values, call.v.row, PANEL, o, columns);
#endif
        }
        if (!call.values.x) return;
        const Reach near = reach(p, i, rows, left, seen, call.values);
        if (near.from < near.to)
            multiply(rows, V, near.to - near.from, s + p.column(i, near.from, call.values), ld + 1, 1,
                     entry(call.values, h, near.from), V, PANEL, o, columns);
    }

    // Replaces the scores of query i by weights, also as words, and rescales earlier sums to the new largest score.
    void softmax_row(const Block& block, int64_t i, int64_t at, Real top, Real* row, Word* words) {
        const int64_t left = block.left, right = block.right;
        const Real highest = std::max(m_i[at], top), offset = highest == NONE ? Real(0) : highest;
        const Real alpha = m_i[at] == offset ? Real(1) : std::exp(m_i[at] - offset);
        const bool keeps = !IS_HALF || call.values.x || is_few;
        m_i[at] = highest;
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
        l_i[at] = l_i[at] * alpha + sum(total);
        if (alpha != Real(1))
            for (int64_t d = 0; d < columns; d++) o[at * columns + d] *= alpha;
        if (!call.values.x) return;
        Real low, high;
        ends(block.p, i, left, block.end(), call.values, row, low, high);
        l_low[at] = l_low[at] * alpha + low;
        l_high[at] = l_high[at] * alpha + high;
        std::fill(row + left - MARGIN / 2, row + left, Real(0));
        std::fill(row + right, row + right + MARGIN / 2, Real(0));
    }

    // Divides by the sums of weights, and writes output and log-sum-exp.
    void end() {
        for (int64_t h = kv * groups; h < (kv + 1) * groups; h++)
            for (int64_t i = start; i < stop; i++) {
                const int64_t at = row_at(h, i);
                const Real l = l_i[at], inverse = l > 0 ? 1 / l : l == 0 ? Real(0) : l;
                Real* row = o + at * columns;
                for (int64_t d = 0; d < V; d++) row[d] *= inverse;
                if (call.values.x) {
                    const Real low = l_low[at] * inverse, high = l_high[at] * inverse;
                    const Real *first = entry(call.values, h, 0),
                               *last = entry(call.values, h, call.values.entries - 1);
                    for (int64_t d = 0; d < V; d++) row[d] += low * first[d] + high * last[d];
                }
                Stored* to = row_of(call.o, b, h, i);
                for (int64_t d = 0; d < V; d += LANES) store(to + d, load(row + d));
                *row_of(call.lse, b, h, i) = l == 0 ? NONE : (m_i[at] == NONE ? Real(0) : m_i[at]) + std::log(l);
            }
    }
};

}  // namespace
