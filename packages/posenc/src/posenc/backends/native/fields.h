// Every field of the structures that Python fills in, which `operator.py` compares with its own.

#pragma once

#include "call.h"

struct Field {
    const char* name;  // structure.field
    int64_t offset, size;
};

#define OF(structure, field) {#structure "." #field, offsetof(structure, field), sizeof(structure::field)}

static const Field FIELDS[] = {
    OF(Rows<Real>, x), OF(Rows<Real>, batch), OF(Rows<Real>, head), OF(Rows<Real>, row), OF(Table, x),
    OF(Table, gradient), OF(Table, head), OF(Table, low), OF(Table, entries), OF(Table, width), OF(Table, slot),
    OF(Table, share), OF(Rotation, query_cos), OF(Rotation, query_sin), OF(Rotation, key_cos), OF(Rotation, key_sin),
    OF(Rotation, query_batch), OF(Rotation, query_head), OF(Rotation, key_batch), OF(Rotation, key_head),
    OF(Rotation, pairs), OF(Rotation, first), OF(Rotation, interleaved), OF(Places, query_place),
    OF(Places, key_place), OF(Places, run_end),
    OF(Places, query_batch), OF(Places, key_batch), OF(Places, low), OF(Places, entries), OF(Places, plane),
    OF(Places, d_plane), OF(Places, by_row), OF(Places, by_column), OF(Places, d_by_row), OF(Places, d_by_column),
    OF(Broken, lines), OF(Broken, share), OF(Broken, ends), OF(Broken, d_lines), OF(Broken, d_share),
    OF(Broken, segments), OF(Broken, batch), OF(Tile, batch), OF(Tile, batch_end), OF(Tile, start), OF(Tile, stop),
    OF(Tile, first), OF(Tile, last), OF(Tile, low), OF(Tile, high), OF(Tile, distance), OF(Call, q), OF(Call, k),
    OF(Call, v), OF(Call, o), OF(Call, dout), OF(Call, lse), OF(Call, meeting), OF(Call, delta), OF(Call, dq),
    OF(Call, dk), OF(Call, dv), OF(Call, dq_sums), OF(Call, d_meeting), OF(Call, bias), OF(Call, vectors),
    OF(Call, values), OF(Call, factor), OF(Call, key_vectors), OF(Call, away), OF(Call, rotation), OF(Call, places),
    OF(Call, broken), OF(Call, shift), OF(Call, d_shift), OF(Call, query_clock), OF(Call, key_clock),
    OF(Call, d_query_clock), OF(Call, d_key_clock), OF(Call, query_most), OF(Call, key_most), OF(Call, bias_most),
    OF(Call, meeting_most), OF(Call, clock_least), OF(Call, tiles), OF(Call, count), OF(Call, batch), OF(Call, heads),
    OF(Call, kv_heads), OF(Call, queries), OF(Call, keys), OF(Call, width), OF(Call, value_width), OF(Call, function),
    OF(Call, is_last), OF(Call, threads), OF(Call, slots), OF(Call, parts), OF(Call, softmax_scale),
    OF(Call, skip_threshold), OF(Call, work), OF(Call, work_size), OF(Call, pool),
};

#undef OF
