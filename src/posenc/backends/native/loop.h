// Tasks over threads, and the memory that each works in.

#pragma once

#include <atomic>
#include <thread>
#include <vector>

#include "halves.h"

namespace {

// Memory that is handed out piece by piece; without a beginning, pieces are only counted.
struct Room {
    Real* x;
    int64_t taken = 0;

    template <typename T = Real>
    T* take(int64_t count) {
        T* found = x ? reinterpret_cast<T*>(x + taken) : nullptr;
        taken += rounded((count * sizeof(T) + sizeof(Real) - 1) / sizeof(Real), 16);
        return found;
    }
};

// Runs all tasks, each thread the next one that nobody has: a thread that waits for a core holds nobody up. Each thread
// has `size` numbers of `work` for itself. They are the threads of `pool`, which PyTorch keeps: others would have to
// wait for them, since for a while they keep their cores awake. Without a pool they are new ones.
template <typename Task>
struct Loop {
    int64_t tasks, size;
    Real* work;
    Task task;
    std::atomic<int64_t> next{0}, threads{0};

    static void enter(void* x) {
        Loop& loop = *static_cast<Loop*>(x);
        Real* mine = loop.work + loop.threads++ * loop.size;
#if defined(__x86_64__) || defined(__i386__)
        const unsigned mode = _mm_getcsr();
        _mm_setcsr(mode | 0x8040);  // denormal numbers are taken for 0
#endif
        {
            [[maybe_unused]] const Tiles tiles;
            for (int64_t n; (n = loop.next++) < loop.tasks;) loop.task(n, mine);
        }
#if defined(__x86_64__) || defined(__i386__)
        _mm_setcsr(mode);
#endif
    }
};

template <typename Task>
void run(const Call& call, int64_t tasks, Task task) {
    Loop<Task> loop{tasks, call.work_size, call.work, task};
    if (call.pool) return call.pool(loop.enter, &loop, static_cast<unsigned>(call.threads), 0);
    std::vector<std::thread> others;
    try {
        for (int64_t n = 1; n < call.threads; n++) others.emplace_back(loop.enter, &loop);
    } catch (...) {  // the system gives no more threads: those that there are do the work
    }
    loop.enter(&loop);
    for (auto& other : others) other.join();
}

}  // namespace
