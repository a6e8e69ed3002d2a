// A trace in seamalloc's csv form (docs/trace-format.md), as the operations that a replay carries out.
//
// A free is made where the program asked for it (`r`); where the free completed (`f`) is not looked at: nothing runs on
// the streams, so that whoever waits for another stream does not wait long.

#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <vector>

// An allocation or a free. A free has the size and the stream of its block.
struct Op {
    uint64_t size;   // bytes
    uint32_t block;  // by number, in the order of allocation
    uint16_t stream; // an index into the trace's streams
    bool frees;
};

struct Trace {
    std::vector<Op> ops;
    std::vector<uint64_t> streams; // handles as recorded; 0 is the default stream
    std::vector<Op> left;          // frees of what is live at the end
    size_t blocks = 0;
    uint64_t peak_live = 0; // bytes
    size_t peak_op = 0;     // the allocation that reaches it first
};

inline uint16_t stream_index(Trace &trace, uint64_t handle) {
    for (size_t i = 0; i < trace.streams.size(); i++)
        if (trace.streams[i] == handle) return static_cast<uint16_t>(i);
    if (trace.streams.size() > UINT16_MAX) throw std::runtime_error("too many streams");
    trace.streams.push_back(handle);
    return static_cast<uint16_t>(trace.streams.size() - 1);
}

// What a program left live is freed between passes, as `seamalloc replay --passes` does it.
inline void measure(Trace &trace) {
    std::vector<const Op *> live(trace.blocks, nullptr);
    uint64_t bytes = 0;
    for (size_t i = 0; i < trace.ops.size(); i++) {
        const Op &op = trace.ops[i];
        live[op.block] = op.frees ? nullptr : &op;
        bytes = op.frees ? bytes - op.size : bytes + op.size;
        if (bytes > trace.peak_live) {
            trace.peak_live = bytes;
            trace.peak_op = i;
        }
    }
    for (const Op *op : live)
        if (op) trace.left.push_back({op->size, op->block, op->stream, true});
}

inline Trace read_trace(const char *path) {
    FILE *file = std::fopen(path, "r");
    if (!file) throw std::runtime_error(std::string("cannot open ") + path);
    Trace trace;
    std::unordered_map<uint64_t, Op> live;
    char line[4096];
    for (size_t number = 1; std::fgets(line, sizeof line, file); number++) {
        auto bad = [&](const char *what) {
            return std::runtime_error(std::string(path) + ", line " + std::to_string(number) + ": " + what);
        };
        if (line[0] == '#' || line[0] == '\n' || line[0] == 'f') continue;
        if ((line[0] != 'a' && line[0] != 'r') || line[1] != ',') throw bad("neither a, r nor f");
        char *rest = line + 2;
        uint64_t id = std::strtoull(rest, &rest, 10);
        if (line[0] == 'r') {
            auto found = live.find(id);
            if (found == live.end()) throw bad("the block is not live");
            Op op = found->second;
            op.frees = true;
            trace.ops.push_back(op);
            live.erase(found);
            continue;
        }
        if (*rest != ',') throw bad("no size");
        uint64_t size = std::strtoull(rest + 1, &rest, 10);
        if (*rest != ',' || size == 0) throw bad("no stream, or no size");
        uint16_t stream = stream_index(trace, std::strtoull(rest + 1, nullptr, 16));
        Op op = {size, static_cast<uint32_t>(trace.blocks++), stream, false};
        if (!live.emplace(id, op).second) throw bad("the block is live already");
        trace.ops.push_back(op);
    }
    std::fclose(file);
    if (trace.ops.empty()) throw std::runtime_error(std::string(path) + " has no operations");
    measure(trace);
    return trace;
}
