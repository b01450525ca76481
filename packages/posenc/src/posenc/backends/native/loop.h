// A parallel loop over tasks, and the work memory of each thread.

#pragma once

#include <atomic>
#include <thread>
#include <vector>

#include "halves.h"

namespace {

// An arena allocator; with null memory it only counts.
struct Workspace {
    Real* x;
    int64_t taken = 0;

    template <typename T = Real>
    T* allocate(int64_t count) {
        T* found = x ? reinterpret_cast<T*>(x + taken) : nullptr;
        taken += rounded((count * sizeof(T) + sizeof(Real) - 1) / sizeof(Real), 16);
        return found;
    }

    // The same, with `margin` of them before what is returned.
    Real* allocate_inside(int64_t count, int64_t margin) {
        Real* found = allocate(count);
        return found ? found + margin : nullptr;
    }
};

// Runs all tasks with dynamic scheduling, so that a thread waiting for a core does not delay the others. Each thread
// has `size` elements of `work`. Uses PyTorch's threads through `pool`, since these spin for a while after their last
// work and would compete with others. Without a pool, starts new threads.
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
        _mm_setcsr(mode | 0x8040);  // flush denormals to zero
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
    } catch (...) {  // the system allows no more threads: use those that were started
    }
    loop.enter(&loop);
    for (auto& other : others) other.join();
}

}  // namespace
