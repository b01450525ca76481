// Loads a library of the kernel and calls its functions for `emulated_kernel.py`, on another system or processor: requests come
// by stdin and answers go to stdout, whole numbers of 64 bits and bytes.

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>
#if defined(_WIN32)
#include <fcntl.h>
#include <io.h>
#include <windows.h>
#else
#include <dlfcn.h>
#endif

namespace {

struct Field {
    const char* name;
    int64_t offset, size;
};

void* library;

template <typename F>
F* found(const char* name) {
#if defined(_WIN32)
    return reinterpret_cast<F*>(reinterpret_cast<void*>(GetProcAddress(static_cast<HMODULE>(library), name)));
#else
    return reinterpret_cast<F*>(dlsym(library, name));
#endif
}

void take(void* to, size_t size) {
    if (size && std::fread(to, size, 1, stdin) != 1) std::exit(0);  // no more requests
}

int64_t number() {
    int64_t x;
    take(&x, sizeof x);
    return x;
}

void give(const void* from, size_t size) {
    if (size) std::fwrite(from, size, 1, stdout);
}

void give(int64_t x) { give(&x, sizeof x); }

void give_fields() {
    const Field* fields;
    const int64_t count = found<int64_t(const Field**)>("posenc_fields")(&fields);
    give(count);
    for (int64_t n = 0; n < count; n++) {
        const int64_t length = std::strlen(fields[n].name);
        give(fields[n].offset), give(fields[n].size), give(length);
        give(fields[n].name, length);
    }
}

// The memory of a call is sent with it, and sent back.
void run(const std::string& name) {
    std::vector<char> call(number());
    take(call.data(), call.size());
    const int64_t is_backward = number();
    std::vector<std::vector<char>> memory(number());
    std::vector<char*> starts;
    for (auto& part : memory) {
        const int64_t size = number();
        part.resize(size + 64);
        starts.push_back(reinterpret_cast<char*>((reinterpret_cast<uintptr_t>(part.data()) + 63) & ~uintptr_t(63)));
        take(starts.back(), size);
        part.resize(size + 64);
    }
    for (int64_t left = number(); left > 0; left--) {
        const int64_t field = number(), part = number(), offset = number();
        const char* address = starts[part] + offset;
        std::memcpy(call.data() + field, &address, sizeof address);
    }
    int64_t answer = 0;
    if (name == "posenc_work")
        answer = found<int64_t(void*, int64_t)>(name.c_str())(call.data(), is_backward);
    else
        found<void(void*)>(name.c_str())(call.data());
    give(answer);
    give(call.data(), call.size());
    for (size_t n = 0; n < memory.size(); n++) give(starts[n], memory[n].size() - 64);
}

}  // namespace

int main(int, char** given) {
#if defined(_WIN32)
    _setmode(_fileno(stdin), _O_BINARY), _setmode(_fileno(stdout), _O_BINARY);
    library = LoadLibraryA(given[1]);
#else
    library = dlopen(given[1], RTLD_NOW);
#endif
    if (!library) return 1;
    for (;;) {
        std::string name(number(), ' ');
        take(name.data(), name.size());
        if (name == "posenc_fields")
            give_fields();
        else if (name == "posenc_work" || name == "posenc_forward" || name == "posenc_backward")
            run(name);
        else
            give(found<int64_t()>(name.c_str())());
        std::fflush(stdout);
    }
}
