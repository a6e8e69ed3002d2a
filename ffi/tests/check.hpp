// What the C++ programs check with: a condition that does not hold ends them with a sentence.

#pragma once

#include <cstdio>
#include <cstdlib>
#include <string>

#define CHECK(condition)                                                                   \
    do {                                                                                   \
        if (!(condition)) {                                                                \
            std::fprintf(stderr, "%s:%d: %s does not hold\n", __FILE__, __LINE__, #condition); \
            std::exit(1);                                                                  \
        }                                                                                  \
    } while (0)

constexpr std::size_t MIB = std::size_t(1) << 20;
constexpr std::size_t GIB = std::size_t(1) << 30;

// A stream of a simulated device, where every value is one.
inline void *stream_of(std::size_t number) {
    return reinterpret_cast<void *>(number);
}

// What `call` throws, which must be an `Error`.
template <class Error, class Call>
Error thrown_by(Call call) {
    try {
        call();
    } catch (const Error &error) {
        return error;
    }
    std::fprintf(stderr, "nothing was thrown\n");
    std::exit(1);
}

inline bool contains(const char *text, const char *part) {
    return std::string(text).find(part) != std::string::npos;
}
