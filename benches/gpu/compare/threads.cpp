// Threads with a stream each at one allocator: operations a second of all of them together, as JSON.
//
//     threads CANDIDATE [--ms N] [--repeats N] [--blocks small|large] [THREADS]...
//
// Each thread has 48 live blocks of many sizes and replaces one after another, as `cargo bench --bench latency -- threads`
// does, for as long as all others do: on a shared machine some cores are half as fast as others, and a fixed number of blocks
// would take as long as the slowest. Each has a core of its own, as long as the process may use so many. Nothing runs on the GPU.

#include "candidates.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <sched.h>
#include <thread>

static constexpr size_t LIVE = 48;

// In milliseconds, after a tenth as long before anything is counted. The median of so many repeats is printed, with the least
// and the most.
struct Length {
    size_t ms = 250, repeats = 5;
};

struct Mix {
    const char *option, *name;
    size_t least, most;
};
static constexpr Mix MIXES[] = {{"small", "512 B to 64 KiB", 512, 64 << 10}, {"large", "1 to 64 MiB", 1 << 20, 64 << 20}};

using Clock = std::chrono::steady_clock;

// What a thread has done, on cache lines of its own: no thread pays for what another one notes.
struct alignas(128) Done {
    size_t rounds = 0;
    bool failed = false;
};

// What all threads do at present.
enum Phase { WARM, COUNTED, OVER };

// Puts this thread on the core with this number among those that the process may use.
static void pin(size_t number, const cpu_set_t &allowed) {
    size_t left = number % static_cast<size_t>(std::max(1, CPU_COUNT(&allowed)));
    for (int core = 0; core < CPU_SETSIZE; core++) {
        if (!CPU_ISSET(core, &allowed) || left-- > 0) continue;
        cpu_set_t own;
        CPU_ZERO(&own);
        CPU_SET(core, &own);
        sched_setaffinity(0, sizeof own, &own);
        return;
    }
}

static void work(Candidate &candidate, const Mix &mix, size_t number, Stream stream, std::atomic<size_t> &ready,
                 const std::atomic<Phase> &phase, Done &done) {
#ifndef NO_CUDA
    check(cudaSetDevice(0), "cudaSetDevice");
#endif
    void *live[LIVE] = {};
    size_t sizes[LIVE] = {};
    uint64_t random = number + 1;
    bool failed = false;
    auto replace = [&](size_t slot) {
        random = random * 0x5851F42D4C957F2D + 0x14057B7EF767814F;
        if (live[slot]) candidate.free(live[slot], sizes[slot], stream);
        sizes[slot] = mix.least + (random >> 33) % (mix.most - mix.least);
        live[slot] = candidate.allocate(sizes[slot], stream);
        failed |= live[slot] == nullptr;
    };
    ready.fetch_add(1);
    size_t counted = 0;
    for (Phase now; (now = phase.load(std::memory_order_relaxed)) != OVER;) {
        for (size_t slot = 0; slot < LIVE; slot++) replace(slot);
        if (now == COUNTED) counted += LIVE;
    }
    done.rounds = counted;
    done.failed = failed;
    for (size_t slot = 0; slot < LIVE; slot++)
        if (live[slot]) candidate.free(live[slot], sizes[slot], stream);
}

static double measure(Candidate &candidate, const Mix &mix, size_t ms, const std::vector<Stream> &streams) {
    std::atomic<size_t> ready{0};
    std::atomic<Phase> phase{WARM};
    std::vector<Done> done(streams.size());
    std::vector<std::thread> threads;
    cpu_set_t allowed;
    CPU_ZERO(&allowed);
    sched_getaffinity(0, sizeof allowed, &allowed);
    for (size_t i = 0; i < streams.size(); i++)
        threads.emplace_back([&, i] {
            pin(i, allowed);
            work(candidate, mix, i, streams[i], ready, phase, done[i]);
        });
    while (ready.load() < streams.size()) std::this_thread::yield();
    std::this_thread::sleep_for(std::chrono::milliseconds(ms / 10));
    auto begin = Clock::now();
    phase.store(COUNTED);
    std::this_thread::sleep_for(std::chrono::milliseconds(ms));
    phase.store(OVER);
    double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    for (auto &thread : threads) thread.join();
    size_t rounds = 0;
    for (const Done &one : done) {
        if (one.failed) throw std::runtime_error("a request was refused");
        rounds += one.rounds;
    }
    return 2.0 * static_cast<double>(rounds) / seconds;
}

static void run(int count, char **arguments) {
    if (count < 2) throw std::runtime_error("usage: threads CANDIDATE [--ms N] [--repeats N] [--blocks small|large] [THREADS]...");
    std::vector<size_t> numbers;
    Length length;
    std::string blocks;
    for (int i = 2; i < count; i++) {
        std::string argument = arguments[i];
        const char *value = i + 1 < count ? arguments[i + 1] : "";
        if (argument == "--ms") length.ms = std::stoul(value), i++;
        else if (argument == "--blocks") blocks = value, i++;
        else if (argument == "--repeats") length.repeats = std::stoul(value), i++;
        else numbers.push_back(std::stoul(argument));
    }
    if (numbers.empty()) numbers = {1, 2, 4, 8, 16};
    size_t most = *std::max_element(numbers.begin(), numbers.end());
    std::vector<Stream> streams(most);
#ifndef NO_CUDA
    check(cudaSetDevice(0), "cudaSetDevice");
    check(cudaFree(nullptr), "cudaFree");
    for (Stream &stream : streams) check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
#else
    // Small handles are those of the default streams.
    for (size_t i = 0; i < most; i++) streams[i] = reinterpret_cast<Stream>((i + 1) << 8);
#endif
    auto candidate = open_candidate(arguments[1]);
    for (const Mix &mix : MIXES) {
        if (!blocks.empty() && blocks != mix.option) continue;
        for (size_t number : numbers) {
            std::vector<Stream> own(streams.begin(), streams.begin() + static_cast<long>(number));
            std::vector<double> rates;
            for (size_t i = 0; i < length.repeats; i++)
                rates.push_back(measure(*candidate, mix, length.ms, own));
            std::sort(rates.begin(), rates.end());
            std::printf("{\"candidate\":\"%s\",\"blocks\":\"%s\",\"threads\":%zu,\"ops_per_s\":%.0f,\"least\":%.0f,"
                        "\"most\":%.0f,\"figures\":%s}\n",
                        arguments[1], mix.name, number, rates[rates.size() / 2], rates.front(), rates.back(),
                        candidate->figures().c_str());
            std::fflush(stdout);
        }
    }
}

int main(int count, char **arguments) {
    try {
        run(count, arguments);
        return 0;
    } catch (const std::exception &error) {
        std::fprintf(stderr, "threads: %s\n", error.what());
        return 1;
    }
}
