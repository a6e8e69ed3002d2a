// Threads launch kernels and graphs at random on streams that the allocator knows, while it splits chunks under the addresses of
// their blocks. Every word of every block is counted. A further stream does nothing but write the time, so its gaps are the times
// for which a stream that has no other work stands still or cannot be launched to. Prints lines of JSON.
// nvcc -O2 -std=c++17 -arch=sm_90 -I FOLDER_OF_seamalloc.h stress.cu -o stress -L FOLDER_OF_LIBRARY -lseamalloc -lcuda -lpthread
// ./stress SPLITS THREADS STREAMS PAUSE_US SECONDS [OPTIONS]; FULL=1 fills what the blocks leave with blocks of 2 MiB; SIZE is the blocks' size;
// LIMIT is the memory limit; left_rounds counts the requests after which parts of a split chunk lie in host memory
#include <cuda.h>
#include <cuda_runtime.h>
#include <seamalloc.h>
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>
using Clock = std::chrono::steady_clock;
static double ms(Clock::time_point a) { return std::chrono::duration<double, std::milli>(Clock::now() - a).count(); }
static bool ok(seam_status s, const char* what) { if (s != SEAM_STATUS_OK) fprintf(stderr, "%s: %s\n", what, seam_last_error_text()); return s == SEAM_STATUS_OK; }
__global__ void add(unsigned* p, size_t n, unsigned by) { for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x) p[i] += by; }
__global__ void check(const unsigned* p, size_t n, unsigned v, unsigned long long* bad) { for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x) if (p[i] != v) atomicAdd(bad, 1ull); }
__global__ void note_time(unsigned long long* at) { unsigned long long t; asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t)); *at = t; }
static double realtime_ms() { return std::chrono::duration<double, std::milli>(std::chrono::system_clock::now().time_since_epoch()).count(); }
struct Span { double from, to; };
// Gaps of at least 0.2 ms between the kernels of a stream that writes the time, in milliseconds of the host's clock.
struct Probe {
  static constexpr int N = 256; cudaStream_t stream; unsigned long long *host, *device; double offset = 0; std::atomic<bool> stop{false}; std::vector<Span> gaps; long kernels = 0; std::thread thread;
  Probe() { cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking); cudaHostAlloc(&host, N * 8, cudaHostAllocMapped); cudaHostGetDevicePointer(&device, host, 0); note(0); cudaStreamSynchronize(stream); double b = 1e9; for (int i = 0; i < 50; i++) { double t = realtime_ms(); note(0); cudaStreamSynchronize(stream); double u = realtime_ms(); if (u - t < b) b = u - t, offset = (t + u) / 2 - host[0] / 1e6; } }
  void note(int i) { note_time<<<1, 1, 0, stream>>>(device + i); }
  void run(CUcontext c) { thread = std::thread([this, c] { cuCtxSetCurrent(c); double last = 0; while (!stop) { for (int i = 0; i < N; i++) { auto u = Clock::now(); note(i); while (ms(u) < 0.02) {} } cudaStreamSynchronize(stream); kernels += N; for (int i = 0; i < N; i++) { double t = host[i] / 1e6 + offset; if (last && t - last >= 0.2) gaps.push_back({last, t}); last = t; } } }); }
};
struct Block { unsigned* at; size_t words; int stream; unsigned count; };
int main(int argc, char** argv) {
  if (argc < 6) { fprintf(stderr, "stress SPLITS THREADS STREAMS PAUSE_US SECONDS [OPTIONS]\n"); return 2; }
  const uint64_t goal = strtoull(argv[1], 0, 10); const int threads_n = atoi(argv[2]), streams_n = atoi(argv[3]), pause = atoi(argv[4]); const double seconds = atof(argv[5]);
  std::string options = std::string("memory_limit:") + (getenv("LIMIT") ? getenv("LIMIT") : "4GiB") + (argc > 6 && *argv[6] ? std::string(",") + argv[6] : "");
  const size_t limit = getenv("LIMIT") ? strtoull(getenv("LIMIT"), 0, 10) << 20 : 4ull << 30;
  cudaSetDevice(0); cudaFree(0); CUcontext context; cuCtxGetCurrent(&context);
  size_t before, after, total; cudaMemGetInfo(&before, &total); auto opening = Clock::now();
  seam_allocator a; if (!ok(seam_create("cuda:0", options.c_str(), &a), "create")) return 1;
  double opened = ms(opening); cudaMemGetInfo(&after, &total); printf("{\"case\":\"create\",\"ms\":%.1f,\"device_bytes\":%zd}\n", opened, (ssize_t)(before - after)); fflush(stdout);
  std::vector<cudaStream_t> s(streams_n); for (int i = 0; i < streams_n; i++) cudaStreamCreateWithFlags(&s[i], cudaStreamNonBlocking);
  Probe probe; ok(seam_announce_stream(a, probe.stream), "announce"); std::vector<Span> requests;
  unsigned long long* bad; cudaMalloc(&bad, 8); cudaMemset(bad, 0, 8); add<<<1, 1>>>((unsigned*)bad, 0, 0); check<<<1, 1>>>((unsigned*)bad, 0, 0, bad); cudaDeviceSynchronize(); probe.run(context);
  seam_stats stats; stats.size = sizeof stats; uint64_t refused = 0, served = 0, rounds = 0; std::atomic<long> launches{0}; double worst = 0; std::vector<double> took; auto begin = Clock::now(); uint64_t splits = 0, left_rounds = 0;
  unsigned dice = 9; auto roll = [&](unsigned n) { dice = dice * 1664525u + 1013904223u; return (dice >> 10) % n; };
  while (splits < goal && ms(begin) < seconds * 1000) {
    std::vector<Block> all; size_t size = getenv("SIZE") ? strtoull(getenv("SIZE"), 0, 10) : (5 + roll(33)) * 1000000ull; void* p;
    for (int i = 0; seam_malloc(a, size, s[i / 2 % streams_n], &p) == SEAM_STATUS_OK; i++) all.push_back({(unsigned*)p, size / 4, i / 2 % streams_n, 0});
    std::vector<void*> rest; if (getenv("FULL")) while (seam_malloc(a, 2 << 20, s[0], &p) == SEAM_STATUS_OK) rest.push_back(p);
    std::vector<Block> kept; for (size_t i = 0; i < all.size(); i++) if (i % 2) { ok(seam_free(a, all[i].at), "free"); } else kept.push_back(all[i]);
    for (auto& b : kept) cudaMemsetAsync(b.at, 0, b.words * 4, s[b.stream]); cudaDeviceSynchronize();
    // A graph that adds to the first block of each thread.
    cudaGraph_t g; cudaGraphExec_t graph; cudaStreamBeginCapture(s[0], cudaStreamCaptureModeThreadLocal); add<<<32, 256, 0, s[0]>>>(kept[0].at, kept[0].words, 1); cudaStreamEndCapture(s[0], &g); cudaGraphInstantiate(&graph, g, 0); int first = kept[0].stream;
    std::atomic<bool> stop{false}; std::vector<std::thread> threads;
    for (int k = 0; k < threads_n; k++) threads.emplace_back([&, k] { cuCtxSetCurrent(context); unsigned seed = 91 * k + rounds; std::vector<int> mine; for (size_t i = 0; i < kept.size(); i++) if (kept[i].stream % threads_n == k) mine.push_back(i);
      while (!stop) { seed = seed * 1664525u + 1013904223u; Block& b = kept[mine[(seed >> 8) % mine.size()]]; if (&b == &kept[0] && k == first % threads_n) cudaGraphLaunch(graph, s[b.stream]); else add<<<32, 256, 0, s[b.stream]>>>(b.at, b.words, 1); b.count++; launches++;
        if ((seed >> 16) % 128 == 0) cudaStreamSynchronize(s[b.stream]); if (pause) { auto u = Clock::now(); double d = pause * ((seed >> 16) % 200) / 100.0 / 1000; while (ms(u) < d) {} } } });
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    for (size_t quarter : {1, 2, 3, 4}) { size_t big = limit / 10 * quarter >> 20; if (!getenv("LIMIT")) big = quarter == 1 ? 400 : 400 + 500 * (quarter - 1) - 300 * (quarter == 4); auto t = Clock::now(); double from = realtime_ms(); bool is_served = seam_malloc(a, big << 20, s[0], &p) == SEAM_STATUS_OK; requests.push_back({from, realtime_ms()}); if (is_served) { double d = ms(t); took.push_back(d); worst = std::max(worst, d); served++; cudaMemsetAsync(p, 0xff, big << 20, s[0]); cudaStreamSynchronize(s[0]); ok(seam_free(a, p), "free"); } else refused++; ok(seam_get_stats(a, &stats), "stats"); left_rounds += stats.spilled_bytes.current > 0; }
    stop = true; for (auto& t : threads) t.join(); cudaDeviceSynchronize();
    for (auto& b : kept) check<<<64, 256>>>(b.at, b.words, b.count, bad); cudaDeviceSynchronize(); cudaGraphExecDestroy(graph); cudaGraphDestroy(g);
    for (auto& b : kept) ok(seam_free(a, b.at), "free"); for (void* r : rest) ok(seam_free(a, r), "free"); seam_empty_cache(a, nullptr); ok(seam_get_stats(a, &stats), "stats"); splits = stats.splits; rounds++;
    if (cudaPeekAtLastError() != cudaSuccess) break;
  }
  probe.stop = true; probe.thread.join(); std::vector<double> within, outside; for (auto& g : probe.gaps) { bool in = false; for (auto& r : requests) in |= g.to > r.from - 0.1 && g.from < r.to + 0.1; (in ? within : outside).push_back(g.to - g.from); }
  auto at = [](std::vector<double>& v, double q) { std::sort(v.begin(), v.end()); return v.empty() ? 0.0 : v[(size_t)(q * (v.size() - 1))]; }; auto sum = [](std::vector<double>& v) { double n = 0; for (double x : v) n += x; return n; };
  unsigned long long b = 0; cudaMemcpy(&b, bad, 8, cudaMemcpyDeviceToHost); std::sort(took.begin(), took.end()); auto error = cudaGetLastError();
  printf("{\"case\":\"stress\",\"options\":\"%s\",\"threads\":%d,\"streams\":%d,\"pause_us\":%d,\"rounds\":%llu,\"splits\":%llu,\"parts\":%llu,\"through_host_mib\":%llu,\"left_on_host\":%llu,\"left_rounds\":%llu,\"copied_gib\":%.1f,\"served\":%llu,\"refused\":%llu,\"launches\":%ld,\"request_ms\":{\"median\":%.1f,\"max\":%.1f},\"request_p90_ms\":%.1f,\"probe\":{\"kernels\":%ld,\"gaps_in_requests\":%zu,\"ms\":{\"sum\":%.0f,\"median\":%.2f,\"p90\":%.2f,\"p99\":%.2f,\"max\":%.1f},\"gaps_elsewhere\":%zu,\"elsewhere_ms\":{\"sum\":%.0f,\"p99\":%.2f,\"max\":%.1f}},\"seconds\":%.1f,\"wrong_words\":%llu,\"error\":\"%s\"}\n", options.c_str(), threads_n, streams_n, pause, (unsigned long long)rounds, (unsigned long long)splits, (unsigned long long)stats.split_parts, (unsigned long long)(stats.spilled_bytes.allocated >> 20), (unsigned long long)stats.spilled_bytes.current, (unsigned long long)left_rounds, stats.split_copied_bytes / 1073741824.0, (unsigned long long)served, (unsigned long long)refused, launches.load(), took.empty() ? 0 : took[took.size() / 2], worst, at(took, .9), probe.kernels, within.size(), sum(within), at(within, .5), at(within, .9), at(within, .99), at(within, 1), outside.size(), sum(outside), at(outside, .99), at(outside, 1), ms(begin) / 1000, b, cudaGetErrorName(error)); fflush(stdout);
  ok(seam_destroy(a), "destroy"); return b != 0 || error != cudaSuccess;
}
