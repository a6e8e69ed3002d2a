// Threads with a stream each at one allocator: operations a second of all of them together, as JSON.
//
//     threads CANDIDATE [--rounds N] [--repeats N] [--blocks small|large] [THREADS]...
//
// Each thread has 48 live blocks of many sizes and replaces one after another, as `cargo bench --bench latency -- threads`
// does. The time is from the first thread's begin to the last one's end. Nothing runs on the GPU.

#include "candidates.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <thread>

static constexpr size_t LIVE = 48;

// How many blocks each thread replaces, after a tenth as many before the clock is read. The median of so many repeats is
// printed, with the least and the most.
struct Length {
    size_t rounds = 500000, repeats = 5;
};

struct Mix {
    const char *option, *name;
    size_t least, most;
};
static constexpr Mix MIXES[] = {{"small", "512 B to 64 KiB", 512, 64 << 10}, {"large", "1 to 64 MiB", 1 << 20, 64 << 20}};

using Clock = std::chrono::steady_clock;

// Threads wait here for each other.
class Barrier {
    std::atomic<size_t> arrived{0};
    const size_t all;

  public:
    explicit Barrier(size_t all) : all(all) {}
    void wait(size_t times) {
        arrived.fetch_add(1);
        while (arrived.load() < all * times) std::this_thread::yield();
    }
};

// Each on cache lines of its own: no thread pays for what another one notes.
struct alignas(128) Times {
    Clock::time_point begin, end;
    bool failed = false;
};

static void work(Candidate &candidate, const Mix &mix, size_t rounds, size_t number, Stream stream, Barrier &barrier, Times &times) {
#ifndef NO_CUDA
    check(cudaSetDevice(0), "cudaSetDevice");
#endif
    void *live[LIVE] = {};
    size_t sizes[LIVE] = {};
    uint64_t random = number + 1;
    auto replace = [&](size_t round) {
        random = random * 0x5851F42D4C957F2D + 0x14057B7EF767814F;
        size_t slot = round % LIVE;
        if (live[slot]) candidate.free(live[slot], sizes[slot], stream);
        sizes[slot] = mix.least + (random >> 33) % (mix.most - mix.least);
        live[slot] = candidate.allocate(sizes[slot], stream);
        times.failed |= live[slot] == nullptr;
    };
    for (size_t round = 0; round < rounds / 10; round++) replace(round);
    barrier.wait(1);
    times.begin = Clock::now();
    for (size_t round = 0; round < rounds; round++) replace(round);
    times.end = Clock::now();
    // No thread stops before all have ended: none is measured while others rest.
    barrier.wait(2);
    for (size_t slot = 0; slot < LIVE; slot++)
        if (live[slot]) candidate.free(live[slot], sizes[slot], stream);
}

static double measure(Candidate &candidate, const Mix &mix, size_t rounds, const std::vector<Stream> &streams) {
    Barrier barrier(streams.size());
    std::vector<Times> times(streams.size());
    std::vector<std::thread> threads;
    for (size_t i = 0; i < streams.size(); i++)
        threads.emplace_back([&, i] { work(candidate, mix, rounds, i, streams[i], barrier, times[i]); });
    for (auto &thread : threads) thread.join();
    auto begin = times[0].begin, end = times[0].end;
    for (const Times &one : times) {
        if (one.failed) throw std::runtime_error("a request was refused");
        begin = std::min(begin, one.begin);
        end = std::max(end, one.end);
    }
    double seconds = std::chrono::duration<double>(end - begin).count();
    return 2.0 * static_cast<double>(rounds) * static_cast<double>(streams.size()) / seconds;
}

static void run(int count, char **arguments) {
    if (count < 2) throw std::runtime_error("usage: threads CANDIDATE [--rounds N] [--repeats N] [--blocks small|large] [THREADS]...");
    std::vector<size_t> numbers;
    Length length;
    std::string blocks;
    for (int i = 2; i < count; i++) {
        std::string argument = arguments[i];
        const char *value = i + 1 < count ? arguments[i + 1] : "";
        if (argument == "--rounds") length.rounds = std::stoul(value), i++;
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
                rates.push_back(measure(*candidate, mix, length.rounds, own));
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
