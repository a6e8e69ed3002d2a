// A gate of one kernel a stream: it writes a mark when everything before it in the stream is over, and then waits for a word.
// Prints one line of JSON for each case.
// nvcc -O2 -std=c++17 -arch=sm_90 kernel_gate.cu -o kernel_gate -lcuda -lpthread
// ./kernel_gate facts | locks | stress EXCHANGES PARTS THREADS STREAMS PAUSE_US
#include <cuda.h>
#include <cuda_runtime.h>
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>
using Clock = std::chrono::steady_clock;
static double ms(Clock::time_point a) { return std::chrono::duration<double, std::milli>(Clock::now() - a).count(); }
static void nap(double m) { std::this_thread::sleep_for(std::chrono::microseconds((long)(m * 1000))); }
#define C(x) do { CUresult r_ = (x); if (r_) { const char* s = "?"; cuGetErrorName(r_, &s); fprintf(stderr, "line %d: %s: %s\n", __LINE__, #x, s); } } while (0)
__global__ void fill(unsigned* p, size_t n, unsigned v) { for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x) p[i] = v; }
__global__ void add(unsigned* p, size_t n) { for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x) p[i] += 1; }
__global__ void check(const unsigned* p, size_t n, unsigned v, unsigned* bad) { for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x) if (p[i] != v) atomicAdd(bad, 1); }
__global__ void spin(long long cycles) { long long t = clock64(); while (clock64() - t < cycles) {} }
__global__ void mark(volatile unsigned* p, unsigned v) { *p = v; }
__global__ void other_kernel(unsigned* p) { *p = 5; }
static CUmemAllocationProp prop() { CUmemAllocationProp p = {}; p.type = CU_MEM_ALLOCATION_TYPE_PINNED; p.location.type = CU_MEM_LOCATION_TYPE_DEVICE; p.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR; return p; }
static CUmemAccessDesc access() { CUmemAccessDesc a = {}; a.location = prop().location; a.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE; return a; }

// The gate. Marks `*mark = epoch`, then waits until all of `count` words are at least `epoch`, or the word `open` is.
__global__ void hold(volatile unsigned* mark, unsigned epoch, volatile unsigned* words, int count, volatile unsigned* open) {
  *mark = epoch; __threadfence_system();
  for (int i = 0; i < count; i++) while ((int)(words[i] - epoch) < 0 && (int)(*open - epoch) < 0) __nanosleep(200);
  __threadfence_system();
}
__global__ void copy16(uint4* to, const uint4* from, size_t n) { for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x) to[i] = from[i]; }

struct Gate {
  CUcontext primary; cudaStream_t copies; volatile unsigned* words; unsigned* device; unsigned epoch = 0; std::vector<cudaStream_t> known;
  explicit Gate(bool) {
    C(cuCtxGetCurrent(&primary)); cudaStreamCreateWithPriority(&copies, cudaStreamNonBlocking, -5);
    void* p; cudaHostAlloc(&p, 16384, cudaHostAllocPortable | cudaHostAllocMapped); memset(p, 0, 16384); words = (volatile unsigned*)p; void* d; cudaHostGetDevicePointer(&d, p, 0); device = (unsigned*)d;
    epoch = 1; words[0] = 1; hold<<<1, 1, 0, copies>>>(device + 3, 1, device, 1, device); copy16<<<1, 1, 0, copies>>>(nullptr, nullptr, 0); cudaDeviceSynchronize(); words[3] = 0;
  }
  // Word 0: open. 1: copied. 2: not used. From 8: a mark for each stream.
  bool close(void* to = nullptr, const void* from = nullptr, size_t bytes = 0) {
    epoch++; int i = 8; for (auto s : known) { hold<<<1, 1, 0, s>>>(device + i, epoch, device, 1, device); i++; }
    hold<<<1, 1, 0, copies>>>(device + 3, epoch, device + 8, (int)known.size(), device);
    if (bytes) copy16<<<264, 512, 0, copies>>>((uint4*)to, (const uint4*)from, bytes / 16);
    hold<<<1, 1, 0, copies>>>(device + 1, epoch, device, 0, device); return cudaPeekAtLastError() == cudaSuccess;
  }
  bool is_drained(double bound) { auto t = Clock::now(); for (size_t i = 0; i < known.size(); i++) while (words[8 + i] != epoch) if (ms(t) > bound) return false; return true; }
  bool is_copied(double bound) { auto t = Clock::now(); while (words[1] != epoch) if (ms(t) > bound) return false; return true; }
  void open() { __sync_synchronize(); words[0] = epoch; }
};

static void facts(Gate& gate) {
  unsigned* probe; cudaMalloc(&probe, 256 << 20); unsigned *from, *to; void *h, *h2; cudaMalloc(&from, 64 << 20); cudaMalloc(&to, 64 << 20); cudaMallocHost(&h, 64 << 20); cudaMallocHost(&h2, 64 << 20);
  unsigned* m; cudaHostAlloc(&m, 4096, cudaHostAllocMapped); mark<<<1, 1>>>(m, 0); spin<<<1, 1>>>(1); fill<<<1, 32>>>(probe, 32, 1u); cudaDeviceSynchronize();
  for (int count : {1, 8, 32, 80, 200}) for (int pending : {0, 1}) for (int blocking : {0, 1}) for (int round = 0; round < 3; round++) {
    std::vector<cudaStream_t> s(count); for (int i = 0; i < count; i++) cudaStreamCreateWithPriority(&s[i], blocking && i % 2 ? cudaStreamDefault : cudaStreamNonBlocking, -(i % 4));
    // The legacy stream stands for all blocking streams.
    gate.known.clear(); for (int i = 0; i < count; i++) if (!(blocking && i % 2)) gate.known.push_back(s[i]); gate.known.push_back(cudaStreamLegacy);
    memset(m, 0, 4096); for (int i = 0; i < count; i++) { if (pending) spin<<<1, 1, 0, s[i]>>>(3000000 + 5000 * i); mark<<<1, 1, 0, s[i]>>>(m + i, 1); }
    auto t = Clock::now(); bool closed = gate.close(to, from, 64 << 20); double closing = ms(t); bool drained = gate.is_drained(300); double draining = ms(t) - closing;
    int finished = 0; for (int i = 0; i < count; i++) finished += ((volatile unsigned*)m)[i] == 1; bool copied = gate.is_copied(100); double copying = ms(t) - closing - draining;
    for (int i = 0; i < count; i++) mark<<<1, 1, 0, s[i]>>>(m + i, 2); mark<<<1, 1, 0, cudaStreamLegacy>>>(m + 401, 2); mark<<<1, 1, 0, cudaStreamPerThread>>>(m + 402, 2);
    for (int i = 0; i < std::min(count, 24); i++) { cudaMemcpyAsync(probe, from, 64 << 20, cudaMemcpyDeviceToDevice, s[i]); cudaMemcpyAsync(h2, probe, 64 << 20, cudaMemcpyDeviceToHost, s[i]); }
    nap(3); int passed = 0; for (int i = 0; i < count; i++) passed += ((volatile unsigned*)m)[i] == 2; for (int i = 401; i < 403; i++) passed += ((volatile unsigned*)m)[i] == 2;
    gate.open(); cudaDeviceSynchronize();
    int after = 0; for (int i = 0; i < count; i++) after += ((volatile unsigned*)m)[i] == 2; for (int i = 401; i < 403; i++) after += ((volatile unsigned*)m)[i] == 2;
    if (round == 2) printf("{\"case\":\"facts\",\"streams\":%d,\"work_pending\":%d,\"half_are_blocking\":%d,\"closed\":%d,\"closing_ms\":%.3f,\"drained\":%d,\"draining_ms\":%.3f,\"finished_when_drained\":%d,\"copied\":%d,\"copying_ms\":%.3f,\"passed_while_closed\":%d,\"passed_after\":%d,\"error\":\"%s\"}\n", count, pending, blocking, closed, closing, drained, draining, finished, copied, copying, passed, after, cudaGetErrorName(cudaGetLastError())); fflush(stdout);
    for (auto x : s) cudaStreamDestroy(x);
  }
}

static const char* PTX = ".version 7.0\n.target sm_80\n.address_size 64\n.visible .entry k%d(){ret;}\n";
static void locks(Gate& gate) {
  unsigned* probe; cudaMalloc(&probe, 1 << 20); unsigned *from, *to; cudaMalloc(&from, 4 << 20); cudaMalloc(&to, 4 << 20); auto p = prop(); auto a = access(); std::vector<cudaStream_t> s(8); for (auto& x : s) cudaStreamCreateWithFlags(&x, cudaStreamNonBlocking);
  cudaGraph_t g; cudaGraphExec_t graph; cudaStreamBeginCapture(s[2], cudaStreamCaptureModeThreadLocal); fill<<<1, 32, 0, s[2]>>>(probe, 32, 7u); cudaLaunchHostFunc(s[2], [](void*) {}, nullptr); cudaStreamEndCapture(s[2], &g); cudaGraphInstantiate(&graph, g, 0);
  std::vector<void*> device, host; for (int i = 0; i < 40; i++) { void* q; cudaMalloc(&q, 8 << 20); device.push_back(q); cudaHostAlloc(&q, 1 << 20, 0); host.push_back(q); }
  std::vector<char> pages(1 << 20), more(1 << 22); int modules = 0;
  struct Other { const char* name; std::function<void()> call; };
  std::vector<Other> others = {
    {"nothing", [] {}}, {"cudaFree", [&] { cudaFree(device.back()); device.pop_back(); }}, {"cudaFreeHost", [&] { cudaFreeHost(host.back()); host.pop_back(); }}, {"cudaMalloc", [&] { void* q; cudaMalloc(&q, 8 << 20); }}, {"cudaHostAlloc", [&] { void* q; cudaHostAlloc(&q, 1 << 20, 0); }},
    {"cudaHostRegister and unregister", [&] { cudaHostRegister(pages.data(), pages.size(), 0); cudaHostUnregister(pages.data()); }}, {"cudaDeviceSynchronize", [] { cudaDeviceSynchronize(); }}, {"cudaMemcpy from pageable memory", [&] { cudaMemcpy(probe, more.data(), 1 << 20, cudaMemcpyHostToDevice); }},
    {"module load and unload", [&] { char b[256]; snprintf(b, sizeof b, PTX, modules++); CUmodule m; C(cuModuleLoadData(&m, b)); C(cuModuleUnload(m)); }}, {"graph launch with a host node", [&] { cudaGraphLaunch(graph, s[5]); }}, {"stream create and destroy", [&] { cudaStream_t x; cudaStreamCreateWithFlags(&x, cudaStreamNonBlocking); cudaStreamDestroy(x); }},
    {"cudaMallocAsync and cudaFreeAsync", [&] { void* q; cudaMallocAsync(&q, 1 << 20, s[6]); cudaFreeAsync(q, s[6]); }}, {"3,000 launches", [&] { for (int i = 0; i < 3000; i++) fill<<<1, 32, 0, s[i % 8]>>>(probe, 32, 1u); }},
  };
  // The other thread enters its call once the gate is closed, or while work of 20 ms runs before the gate is closed.
  for (auto& other : others) for (int early : {0, 1}) {
    CUdeviceptr side; C(cuMemAddressReserve(&side, 2 << 20, 0, 0, 0)); CUmemGenericAllocationHandle h, h2; C(cuMemCreate(&h, 2 << 20, &p, 0)); C(cuMemCreate(&h2, 2 << 20, &p, 0)); C(cuMemMap(side, 2 << 20, 0, h, 0)); C(cuMemSetAccess(side, 2 << 20, &a, 1)); cudaDeviceSynchronize();
    std::atomic<int> state{0}; std::thread thread; auto enter = [&] { thread = std::thread([&] { cuCtxSetCurrent(gate.primary); other.call(); state = 1; }); nap(5); };
    if (early) { spin<<<1, 1, 0, s[7]>>>(40000000); enter(); }
    std::atomic<int> opened{0}; std::thread dog([&] { for (int i = 0; i < 150 && !opened; i++) nap(2); int none = 0; if (opened.compare_exchange_strong(none, 2)) gate.open(); });
    gate.known = s; gate.known.push_back(cudaStreamLegacy);
    auto t = Clock::now(); gate.close(to, from, 4 << 20); double closing = ms(t); bool drained = gate.is_drained(100); double draining = ms(t) - closing;
    if (!early) enter(); int before = state; t = Clock::now();
    bool copied = gate.is_copied(100); double c = ms(t); C(cuMemUnmap(side, 2 << 20)); double u = ms(t); C(cuMemMap(side, 2 << 20, 0, h2, 0)); double mp = ms(t); C(cuMemSetAccess(side, 2 << 20, &a, 1)); double sa = ms(t); CUmemGenericAllocationHandle h3; C(cuMemCreate(&h3, 2 << 20, &p, 0)); double cr = ms(t); C(cuMemRelease(h3)); double re = ms(t);
    int none = 0; bool ours = opened.compare_exchange_strong(none, 1); gate.open(); dog.join(); thread.join(); cudaDeviceSynchronize();
    printf("{\"case\":\"locks\",\"other\":\"%s\",\"other_enters\":\"%s\",\"other_returned\":%d,\"closing_ms\":%.3f,\"drained\":%d,\"draining_ms\":%.3f,\"copied\":%d,\"copy_ms\":%.3f,\"unmap_ms\":%.3f,\"map_ms\":%.3f,\"set_access_ms\":%.3f,\"create_ms\":%.3f,\"release_ms\":%.3f,\"opened_by\":\"%s\",\"error\":\"%s\"}\n", other.name, early ? "before the gate closes" : "after it closed", before, closing, drained, draining, copied, c, u - c, mp - u, sa - mp, cr - sa, re - cr, ours ? "us" : "watchdog", cudaGetErrorName(cudaGetLastError())); fflush(stdout);
    C(cuMemUnmap(side, 2 << 20)); C(cuMemAddressFree(side, 2 << 20)); C(cuMemRelease(h)); C(cuMemRelease(h2));
  }
}

// Threads add to words of a chunk on streams at random, while the chunk's memory is exchanged. Every word is checked.
static void stress(Gate& gate, int rounds, int parts, int threads_n, int streams_n, int pause) {
  const size_t bytes = 64 << 20, part = bytes / parts, slice = 64 << 10, slices = bytes / slice; auto p = prop(); auto a = access(); CUdeviceptr va, side; C(cuMemAddressReserve(&va, bytes, 0, 0, 0)); C(cuMemAddressReserve(&side, bytes, 0, 0, 0));
  std::vector<CUmemGenericAllocationHandle> old(parts), fresh(parts); for (int i = 0; i < parts; i++) { C(cuMemCreate(&old[i], part, &p, 0)); C(cuMemMap(va + i * part, part, 0, old[i], 0)); } C(cuMemSetAccess(va, bytes, &a, 1)); C(cuMemsetD32(va, 0, bytes / 4));
  std::vector<cudaStream_t> s(streams_n); for (int i = 0; i < streams_n; i++) cudaStreamCreateWithPriority(&s[i], cudaStreamNonBlocking, -(i % 4)); add<<<1, 1>>>((unsigned*)va, 0); cudaDeviceSynchronize();
  std::vector<unsigned> counts(slices, 0); std::atomic<bool> stop{false}; std::atomic<long> launches{0}; std::vector<std::thread> threads;
  // A graph that adds to the first slice of the last stream's share.
  cudaGraph_t g; cudaGraphExec_t graph; size_t own = slices / streams_n; cudaStreamBeginCapture(s[0], cudaStreamCaptureModeThreadLocal); add<<<8, 256, 0, s[0]>>>((unsigned*)(va), slice / 4); cudaStreamEndCapture(s[0], &g); cudaGraphInstantiate(&graph, g, 0);
  for (int k = 0; k < threads_n; k++) threads.emplace_back([&, k] { cuCtxSetCurrent(gate.primary); unsigned seed = 77 * k + 5; for (long n = 0; !stop; n++) { seed = seed * 1664525u + 1013904223u; int i = k + threads_n * ((seed >> 20) % (streams_n / threads_n)); size_t at = i * own + (seed >> 8) % own; if (i == 0 && (seed >> 28) == 0) { cudaGraphLaunch(graph, s[0]); counts[0]++; } else { add<<<8, 256, 0, s[i]>>>((unsigned*)(va + at * slice), slice / 4); counts[at]++; } launches++; if ((seed >> 12) % 256 == 0) cudaStreamSynchronize(s[i]); if (pause) { auto u = Clock::now(); double d = pause * ((seed >> 16) % 200) / 100.0 / 1000; while (ms(u) < d) {} } } });
  gate.known = s; gate.known.push_back(cudaStreamLegacy); std::vector<double> still, total; int undrained = 0, uncopied = 0, never = 0; auto begin = Clock::now(); int done = 0;
  while (done < rounds && ms(begin) < 12000) {
    auto start = Clock::now(); for (int i = 0; i < parts; i++) { C(cuMemCreate(&fresh[i], part, &p, 0)); C(cuMemMap(side + i * part, part, 0, fresh[i], 0)); } C(cuMemSetAccess(side, bytes, &a, 1));
    bool ok = false; for (int attempt = 0; attempt < 20 && !ok; attempt++) { auto t = Clock::now(); gate.close((void*)side, (void*)va, bytes); double t0 = ms(t); if (!gate.is_drained(3)) { undrained++; gate.open(); cudaStreamSynchronize(gate.copies); continue; }
      if (!gate.is_copied(10)) { uncopied++; gate.open(); cudaStreamSynchronize(gate.copies); continue; }
      C(cuMemUnmap(va, bytes)); for (int i = 0; i < parts; i++) C(cuMemMap(va + i * part, part, 0, fresh[i], 0)); C(cuMemSetAccess(va, bytes, &a, 1)); still.push_back(ms(t) - t0); gate.open(); ok = true; } if (!ok) never++;
    C(cuMemUnmap(side, bytes)); if (ok) { std::swap(old, fresh); done++; total.push_back(ms(start)); } for (auto h : fresh) C(cuMemRelease(h));
  }
  stop = true; for (auto& t : threads) t.join(); cudaDeviceSynchronize(); unsigned* bad; cudaMalloc(&bad, 4); cudaMemset(bad, 0, 4); for (size_t i = 0; i < slices; i++) check<<<8, 256>>>((unsigned*)(va + i * slice), slice / 4, counts[i], bad); unsigned b = 1; cudaMemcpy(&b, bad, 4, cudaMemcpyDeviceToHost);
  auto q = [](std::vector<double> v, double f) { if (v.empty()) return -1.0; std::sort(v.begin(), v.end()); return v[std::min(v.size() - 1, (size_t)(f * v.size()))]; };
  printf("{\"case\":\"stress\",\"pause_us\":%d,\"never_in_20_tries\":%d,\"parts\":%d,\"threads\":%d,\"streams\":%d,\"exchanges\":%d,\"seconds\":%.1f,\"not_drained\":%d,\"not_copied\":%d,\"launches\":%ld,\"wrong_words\":%u,\"still_ms\":{\"median\":%.3f,\"p99\":%.3f,\"max\":%.3f},\"total_ms_median\":%.3f,\"error\":\"%s\"}\n", pause, never, parts, threads_n, streams_n, done, ms(begin) / 1000, undrained, uncopied, launches.load(), b, q(still, .5), q(still, .99), q(still, 1), q(total, .5), cudaGetErrorName(cudaGetLastError())); fflush(stdout);
}
int main(int argc, char** argv) {
  std::string mode = argc > 1 ? argv[1] : ""; cudaSetDevice(0); cudaFree(0); spin<<<1, 1>>>(1); cudaDeviceSynchronize(); Gate gate(true);
  if (mode == "facts") facts(gate); else if (mode == "locks") locks(gate); else if (mode == "stress") stress(gate, atoi(argv[2]), atoi(argv[3]), atoi(argv[4]), atoi(argv[5]), atoi(argv[6]));
  else { fprintf(stderr, "kernel_gate facts | locks | stress EXCHANGES PARTS THREADS STREAMS PAUSE_US\n"); return 2; }
}
