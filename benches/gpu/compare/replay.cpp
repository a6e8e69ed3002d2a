// Replays a trace through one allocator and prints a JSON object for each pass.
//
//     replay CANDIDATE TRACE.csv [--timed N] [--plain N] [--limit SECONDS]
//
// Timed passes (4) read the clock before and after each operation; plain passes (3) at their beginning and end only.
// A timed pass that takes longer than the limit (5 s) is stopped there, and is the last.

#include "candidates.h"
#include "trace.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <ctime>

// An operation this slow has called the driver, or was interrupted, in ns.
static constexpr uint64_t SLOW_NS = 10000;

static uint64_t now_ns() {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return static_cast<uint64_t>(now.tv_sec) * 1000000000 + static_cast<uint64_t>(now.tv_nsec);
}

// What reading the clock twice in a row takes: nothing is taken off for it.
static uint64_t clock_ns() {
    std::vector<uint64_t> taken(100001);
    for (uint64_t &one : taken) {
        uint64_t start = now_ns();
        one = now_ns() - start;
    }
    std::nth_element(taken.begin(), taken.begin() + 50000, taken.end());
    return taken[50000];
}

struct Options {
    const char *candidate = nullptr;
    const char *trace = nullptr;
    int timed = 4;
    int plain = 3;
    double limit_s = 5;
};

// What the device has free, in bytes; 0 where there is no device.
static size_t device_free() {
#ifdef NO_CUDA
    return 0;
#else
    size_t free = 0, total = 0;
    check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
    return free;
#endif
}

static std::string device_name() {
#ifdef NO_CUDA
    return "none";
#else
    cudaDeviceProp properties;
    check(cudaGetDeviceProperties(&properties, 0), "cudaGetDeviceProperties");
    return properties.name;
#endif
}

static std::vector<Stream> open_streams(const Trace &trace) {
    std::vector<Stream> streams;
    for (uint64_t handle : trace.streams) {
#ifdef NO_CUDA
        streams.push_back(reinterpret_cast<Stream>(handle));
#else
        Stream stream = nullptr;
        if (handle != 0) check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
        streams.push_back(stream);
#endif
    }
    return streams;
}

// One pass: what was done, and how long it took.
struct Pass {
    size_t done = 0;
    uint64_t wall_ns = 0;
    uint64_t failed = 0;
    std::vector<uint64_t> allocations, frees; // ns of each, where they are timed
    size_t free_at_peak = 0, free_at_end = 0; // of the device
};

class Replay {
    const Trace &trace;
    Candidate &candidate;
    std::vector<Stream> streams;
    std::vector<void *> addresses;

    bool carry_out(const Op &op) {
        void *&address = addresses[op.block];
        if (!op.frees) {
            address = candidate.allocate(op.size, streams[op.stream]);
            return address != nullptr;
        }
        if (address) candidate.free(address, op.size, streams[op.stream]);
        address = nullptr;
        return true;
    }

  public:
    Replay(const Trace &trace, Candidate &candidate, std::vector<Stream> streams)
        : trace(trace), candidate(candidate), streams(std::move(streams)), addresses(trace.blocks, nullptr) {}

    Pass timed(double limit_s) {
        Pass pass;
        pass.allocations.reserve(trace.ops.size());
        pass.frees.reserve(trace.ops.size());
        uint64_t begin = now_ns(), aside = 0, end = begin;
        for (size_t i = 0; i < trace.ops.size(); i++) {
            const Op &op = trace.ops[i];
            uint64_t start = now_ns();
            pass.failed += !carry_out(op);
            end = now_ns();
            (op.frees ? pass.frees : pass.allocations).push_back(end - start);
            if (i == trace.peak_op) {
                pass.free_at_peak = device_free();
                aside = now_ns() - end;
            }
            pass.done = i + 1;
            if (static_cast<double>(end - begin) > limit_s * 1e9) break;
        }
        pass.wall_ns = end - begin - (pass.done > trace.peak_op + 1 ? aside : 0);
        finish(pass);
        return pass;
    }

    Pass plain() {
        Pass pass;
        uint64_t begin = now_ns();
        for (const Op &op : trace.ops) pass.failed += !carry_out(op);
        pass.wall_ns = now_ns() - begin;
        pass.done = trace.ops.size();
        finish(pass);
        return pass;
    }

    // What is left live is freed outside of all measurement.
    void finish(Pass &pass) {
        pass.free_at_end = device_free();
        if (pass.done == trace.ops.size()) {
            for (const Op &op : trace.left) carry_out(op);
            return;
        }
        for (size_t i = 0; i < pass.done; i++) {
            Op op = trace.ops[i];
            op.frees = true;
            carry_out(op);
        }
    }
};

// Sorts its argument.
static std::string distribution(std::vector<uint64_t> &ns) {
    std::sort(ns.begin(), ns.end());
    uint64_t sum = 0, slow = 0, slow_sum = 0;
    for (uint64_t one : ns) {
        sum += one;
        slow += one >= SLOW_NS;
        slow_sum += one >= SLOW_NS ? one : 0;
    }
    auto at = [&](double part) -> unsigned long long {
        return ns.empty() ? 0 : ns[static_cast<size_t>(part * static_cast<double>(ns.size() - 1))];
    };
    double mean = ns.empty() ? 0 : static_cast<double>(sum) / static_cast<double>(ns.size());
    char text[512];
    std::snprintf(text, sizeof text,
                  "{\"count\":%zu,\"mean\":%.1f,\"p50\":%llu,\"p99\":%llu,\"p99.9\":%llu,\"max\":%llu,"
                  "\"slow\":%llu,\"slow_ns\":%llu}",
                  ns.size(), mean, at(0.5), at(0.99), at(0.999), at(1.0), static_cast<unsigned long long>(slow),
                  static_cast<unsigned long long>(slow_sum));
    return text;
}

#ifdef NO_CUDA
static std::string held(bool, size_t, const Pass &) { return "null"; }
#else
// Bytes of the device that are gone since the beginning, at the peak or at the end, whichever is more.
static std::string held(bool at_peak, size_t before, const Pass &pass) {
    size_t least = at_peak ? std::min(pass.free_at_peak, pass.free_at_end) : pass.free_at_end;
    return std::to_string(before > least ? before - least : 0);
}
#endif

static void print(const Trace &trace, int number, Pass &pass, size_t before, Candidate &candidate) {
    bool timed = !pass.allocations.empty() || !pass.frees.empty();
    std::printf("{\"pass\":%d,\"timed\":%s,\"ops\":%zu,\"of_ops\":%zu,\"failed\":%llu,\"ns_per_op\":%.1f,"
                "\"peak_live\":%llu",
                number, timed ? "true" : "false", pass.done, trace.ops.size(),
                static_cast<unsigned long long>(pass.failed),
                static_cast<double>(pass.wall_ns) / static_cast<double>(pass.done),
                static_cast<unsigned long long>(trace.peak_live));
    std::printf(",\"held\":%s", held(timed && pass.done > trace.peak_op, before, pass).c_str());
    if (timed) {
        std::vector<uint64_t> all = pass.allocations;
        all.insert(all.end(), pass.frees.begin(), pass.frees.end());
        std::printf(",\"allocations\":%s", distribution(pass.allocations).c_str());
        std::printf(",\"frees\":%s,\"all\":%s", distribution(pass.frees).c_str(), distribution(all).c_str());
    }
    std::printf(",\"figures\":%s}\n", candidate.figures().c_str());
    std::fflush(stdout);
}

static Options parse(int count, char **arguments) {
    Options options;
    for (int i = 1; i < count; i++) {
        const char *argument = arguments[i];
        const char *value = i + 1 < count ? arguments[i + 1] : "";
        if (!std::strcmp(argument, "--timed")) options.timed = std::atoi(value), i++;
        else if (!std::strcmp(argument, "--plain")) options.plain = std::atoi(value), i++;
        else if (!std::strcmp(argument, "--limit")) options.limit_s = std::atof(value), i++;
        else if (!options.candidate) options.candidate = argument;
        else options.trace = argument;
    }
    if (!options.trace || options.timed < 1 || options.limit_s <= 0)
        throw std::runtime_error("usage: replay CANDIDATE TRACE.csv [--timed N] [--plain N] [--limit SECONDS]");
    return options;
}

static void run(const Options &options) {
    Trace trace = read_trace(options.trace);
#ifndef NO_CUDA
    check(cudaSetDevice(0), "cudaSetDevice");
    // The context is made before anything is measured.
    check(cudaFree(nullptr), "cudaFree");
#endif
    std::vector<Stream> streams = open_streams(trace);
    std::unique_ptr<Candidate> candidate = open_candidate(options.candidate);
    std::printf("{\"device\":\"%s\",\"clock_ns\":%llu}\n", device_name().c_str(),
                static_cast<unsigned long long>(clock_ns()));
    size_t before = device_free();
    Replay replay(trace, *candidate, streams);
    for (int number = 1; number <= options.timed + options.plain; number++) {
        Pass pass = number <= options.timed ? replay.timed(options.limit_s) : replay.plain();
        bool whole = pass.done == trace.ops.size();
        print(trace, number, pass, before, *candidate);
        if (!whole || pass.failed) break;
    }
}

int main(int count, char **arguments) {
    try {
        run(parse(count, arguments));
        return 0;
    } catch (const std::exception &error) {
        std::fprintf(stderr, "replay: %s\n", error.what());
        return 1;
    }
}
