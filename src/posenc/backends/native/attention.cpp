// Attention with positions on the CPU, forward and backward: one parallel loop over tasks that share nothing.
//
// A task holds some queries of one head and walks over blocks of keys. Rows are queries and columns are keys, or
// distances: what queries q_i give by vectors of the distance, M[i][r] = q_i . a(r), belongs to the pair (i, j = i + r),
// so that the matrix M *is* the matrix of scores with rows that begin one place further each. It is written to, and
// read from, a block of scores with the row stride ld + 1, and nothing is gathered or copied.

#include "backward.h"
#include "forward.h"

extern "C" int64_t posenc_size() { return sizeof(Call); }

extern "C" void posenc_forward(const Call* call) {
    const int64_t groups = call->heads / call->kv_heads, size = std::max<int64_t>(STRIP, QUERIES / groups);
    const int64_t chunks = (call->queries + size - 1) / size;
    run(chunks * call->batch * call->kv_heads, call->threads,
        [call](int64_t task, Memory& memory) { forward(*call, task, memory); });
}

extern "C" void posenc_backward(const Call* call) {
    run(call->slots * call->kv_heads, call->threads,
        [call](int64_t task, Memory& memory) { Backward(*call, task, memory).run(task % call->kv_heads); });
}
