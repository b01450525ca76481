// Attention with positions on the CPU, forward and backward: one parallel loop over tasks that share nothing.
//
// A task holds some queries of the heads of one key head, or some of its keys, and walks over blocks of the others.
// Rows are queries and columns are keys, or distances: what queries q_i give by vectors of the distance, M[i][r] = q_i
// . a(r), belongs to the pair (i, j = i + r), so that the matrix M *is* the matrix of scores with rows that begin one
// place further each. It is written to, and read from, a block of scores with the row stride ld + 1, and nothing is
// gathered or copied.

#include "backward.h"
#include "fields.h"
#include "forward.h"

// For Python: whether this processor and system let it run, whether its instructions multiply numbers of half the width,
// whether both sides say the same of a call, and the numbers
// that each thread needs to work in, of no more threads than there are tasks.
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
    Room room{nullptr};
    if (is_backward)
        Backward(*call, room);
    else
        Forward(*call, room);
    return room.taken;
}

extern "C" void posenc_forward(const Call* call) {
    run(*call, tasks_forward(*call), [call](int64_t task, Real* work) {
        Room room{work};
        Forward(*call, room).run(task);
    });
}

extern "C" void posenc_backward(const Call* call) {
    run(*call, call->batch * call->heads,
        [call](int64_t task, Real*) { give_output(*call, task / call->heads, task % call->heads); });
    run(*call, call->slots * call->kv_heads, [call](int64_t task, Real* work) {
        Room room{work};
        Backward(*call, room).run(task);
    });
}
