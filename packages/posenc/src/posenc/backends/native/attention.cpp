// Attention with positions on the CPU, forward and backward: a parallel loop over independent tasks.
//
// A task has some queries of the heads of one key head, or some of its keys, and iterates over blocks of the others.
// Rows are queries and columns are keys, or distances: the products of queries q_i with vectors by distance, M[i][r] =
// q_i . a(r), belong to the pairs (i, j = i + r), so M *is* the matrix of scores with each row shifted by one more
// column. It is written to, and read from, a block of scores with the row stride ld + 1; nothing is gathered or copied.

#include "backward.h"
#include "fields.h"
#include "forward.h"

// For Python: whether the processor and system can run it, whether it multiplies in bfloat16, the fields of structures
// to compare, and the size of each thread's work memory, which also limits threads to the number of tasks.
extern "C" int64_t posenc_usable() { return is_usable(); }
extern "C" int64_t posenc_multiplies_halves() { return MULTIPLIES_HALVES; }
extern "C" int64_t posenc_span() { return SPAN; }
extern "C" int64_t posenc_fields(const Field** found) {
    *found = FIELDS;
    return sizeof FIELDS / sizeof *FIELDS;
}

extern "C" int64_t posenc_work(Call* call, int64_t is_backward) {
    const int64_t tasks = is_backward ? call->slots * call->kv_heads : tasks_forward(*call);
    call->threads = std::max<int64_t>(1, std::min(call->threads, tasks));
    Workspace workspace{nullptr};
    if (is_backward)
        Backward(*call, workspace);
    else
        Forward(*call, workspace);
    return workspace.taken;
}

extern "C" void posenc_forward(const Call* call) {
    run(*call, tasks_forward(*call), [call](int64_t task, Real* work) {
        Workspace workspace{work};
        Forward(*call, workspace).run(task);
    });
}

extern "C" void posenc_backward(const Call* call) {
    run(*call, call->batch * call->heads,
        [call](int64_t task, Real*) { give_output(*call, task / call->heads, task % call->heads); });
    run(*call, call->slots * call->kv_heads, [call](int64_t task, Real* work) {
        Workspace workspace{work};
        Backward(*call, workspace).run(task);
    });
}
