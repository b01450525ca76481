// The indices of pairs: columns of a block, entries of tables, and planes of two coordinates.

#pragma once

#include "loop.h"

namespace {

const Real* entry(const Table& t, int64_t head, int64_t n) {
    return t.x + head * t.head + std::clamp<int64_t>(n, 0, t.entries - 1) * t.width;
}

template <typename T>
T* row_of(const Rows<T>& t, int64_t b, int64_t h, int64_t i) {
    return t.x + b * t.batch + h * t.head + i * t.row;
}

// The intersection of a tile with some queries and keys, relative to a block of scores.
struct Part {
    const Tile* tile;
    int64_t start, stop, first, last;  // queries and keys

    // The first visible column of query i, and the one after its last.
    int64_t low(int64_t i) const { return std::clamp(std::max(first, i + tile->low), first, last) - first; }
    int64_t high(int64_t i) const { return std::clamp(std::min(last, i + tile->high + 1), first, last) - first; }
    // The column of entry n of a table for query i.
    int64_t column(int64_t i, int64_t n, const Table& t) const { return n + t.low - tile->distance + i - first; }
    // The entry of a table for query i and a column.
    int64_t place(int64_t i, int64_t column, const Table& t) const {
        return first + column - i + tile->distance - t.low;
    }
};

// Calls f(left, right, row, column) for runs of columns of query i whose keys have equal first coordinates and second
// coordinates that increase by one: `row` is the entry of the first, `column` that of the second at `left`. Missing
// entries, which only masked pairs have, are clamped.
template <typename F>
void over_places(const Call& call, const Part& p, int64_t b, int64_t i, int64_t left, int64_t right, F f) {
    const Places& t = call.places;
    const int64_t* own = t.query_place + (b * t.query_batch + i) * 2;
    for (int64_t j = left, stop = std::min(right, p.last - p.first); j < stop;) {
        const int64_t key = b * t.key_batch + p.first + j;
        int64_t end = std::min(stop, t.run_end[key] - p.first);
        const int64_t row = std::clamp<int64_t>(t.key_place[2 * key] - own[0] - t.low, 0, t.entries - 1);
        int64_t column = t.key_place[2 * key + 1] - own[1] - t.low;
        if (column < 0 || column >= t.entries) {
            column = std::clamp<int64_t>(column, 0, t.entries - 1);
            end = j + 1;
        }
        end = std::min(end, j + t.entries - column);
        f(j, end, row, column);
        j = end;
    }
}

// Adds the terms by two coordinates to the scores of query i.
void add_places(const Call& call, const Part& p, int64_t b, int64_t h, int64_t i, int64_t left, int64_t right,
                Real* s) {
    const Places& t = call.places;
    const int64_t own = ((b * call.heads + h) * call.queries + i) * t.entries;
    const auto add = [s](const Real* line, Real number, int64_t from, int64_t to) {
        int64_t j = from;
        for (; j + LANES <= to; j += LANES) store(s + j, load(s + j) + (load(line + j - from) + number));
        for (; j < to; j++) s[j] += line[j - from] + number;
    };
    over_places(call, p, b, i, left, right, [&](int64_t from, int64_t to, int64_t row, int64_t column) {
        const Real number = t.by_row ? t.by_row[own + row] : Real(0);
        if (t.by_column) add(t.by_column + own + column, number, from, to);
        if (t.plane)
            add(t.plane + (h * t.entries + row) * t.entries + column, t.by_column ? Real(0) : number, from, to);
        if (t.by_row && !t.by_column && !t.plane)
            for (int64_t j = from; j < to; j++) s[j] += number;
    });
}

// The backward pass of `add_places`, given the gradients of the scores of query i.
void give_places(const Call& call, const Part& p, int64_t part, int64_t slot, int64_t b, int64_t h, int64_t i,
                 int64_t left, int64_t right, const Real* d_s) {
    const Places& t = call.places;
    const int64_t own = (((part * call.batch + b) * call.heads + h) * call.queries + i) * t.entries;
    over_places(call, p, b, i, left, right, [&](int64_t from, int64_t to, int64_t row, int64_t column) {
        const auto give = [=](Real* line) {
            for (int64_t j = from; j < to; j++) line[j - from] += d_s[j];
        };
        if (t.d_by_row) t.d_by_row[own + row] += sum_of(d_s, from, to);
        if (t.d_by_column) give(t.d_by_column + own + column);
        if (t.d_plane) give(t.d_plane + ((slot * call.heads + h) * t.entries + row) * t.entries + column);
    });
}

}  // namespace
