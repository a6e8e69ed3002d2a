// What a gate on streams blocks, and what blocks a gate. Prints one line of JSON for each case.
// nvcc -O2 -std=c++17 -arch=sm_90 gate.cu -o gate -lcuda -lpthread
// ./gate channels | locks | times [SECONDS of another process's load]
//
// The gate: every stream gets one batch of two stream memory operations, "write drained[i]" and "wait until word >= epoch".
// What is launched before the batch is over once drained[i] is written; what is launched later runs after the word.
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
__global__ void copy(uint4* to, const uint4* from, size_t n) { for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x) to[i] = from[i]; }
__global__ void spin(long long cycles) { long long t = clock64(); while (clock64() - t < cycles) {} }
__global__ void other_kernel(unsigned* p) { *p = 5; }

struct Gate {
  volatile unsigned* words; CUdeviceptr device; unsigned epoch = 0;
  Gate() { void* p; C(cuMemHostAlloc(&p, 1 << 16, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP)); memset(p, 0, 1 << 16); words = (volatile unsigned*)p; C(cuMemHostGetDevicePointer(&device, p, 0)); }
  void close(const std::vector<CUstream>& streams) {
    epoch++;
    for (size_t i = 0; i < streams.size(); i++) {
      CUstreamBatchMemOpParams op[2] = {};
      op[0].operation = CU_STREAM_MEM_OP_WRITE_VALUE_32; op[0].writeValue.address = device + 4 * (i + 1); op[0].writeValue.value = epoch;
      op[1].operation = CU_STREAM_MEM_OP_WAIT_VALUE_32; op[1].waitValue.address = device; op[1].waitValue.value = epoch; op[1].waitValue.flags = CU_STREAM_WAIT_VALUE_GEQ;
      C(cuStreamBatchMemOp(streams[i], 2, op, 0));
    }
  }
  bool drained(size_t n, double bound) { auto t = Clock::now(); for (size_t i = 0; i < n; i++) while (words[i + 1] != epoch) if (ms(t) > bound) return false; return true; }
  void open() { __sync_synchronize(); words[0] = epoch; }
};
static std::vector<CUstream> streams_of(int n, int priorities, int flags = CU_STREAM_NON_BLOCKING) { std::vector<CUstream> s(n); for (int i = 0; i < n; i++) C(cuStreamCreateWithPriority(&s[i], flags, -(i % priorities))); return s; }
static CUmemAllocationProp prop() { CUmemAllocationProp p = {}; p.type = CU_MEM_ALLOCATION_TYPE_PINNED; p.location.type = CU_MEM_LOCATION_TYPE_DEVICE; p.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR; return p; }
static CUmemAccessDesc access() { CUmemAccessDesc a = {}; a.location = prop().location; a.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE; return a; }
struct Mapped { CUdeviceptr at = 0; CUmemGenericAllocationHandle handle = 0; size_t bytes;
  explicit Mapped(size_t b) : bytes(b) { auto p = prop(); auto a = access(); C(cuMemAddressReserve(&at, b, 0, 0, 0)); C(cuMemCreate(&handle, b, &p, 0)); C(cuMemMap(at, b, 0, handle, 0)); C(cuMemSetAccess(at, b, &a, 1)); } };

// Which work of a further stream starts while so many streams are closed?
static void channels(Gate& gate) {
  int least, greatest; C(cuCtxGetStreamPriorityRange(&least, &greatest));
  const char* connections = getenv("CUDA_DEVICE_MAX_CONNECTIONS");
  unsigned *from, *to, *probe; void *h, *h2; const size_t bytes = 64 << 20; cudaMalloc(&from, bytes); cudaMalloc(&to, bytes); cudaMalloc(&probe, bytes); cudaMallocHost(&h, bytes); cudaMallocHost(&h2, bytes);
  copy<<<256, 256>>>((uint4*)to, (uint4*)from, bytes / 16); fill<<<1, 1>>>(probe, 1, 1u); cudaDeviceSynchronize();
  for (int count : {1, 8, 80, 200}) for (int priorities : {1, 4}) for (int own : {0, -1, -4, greatest}) for (int queued : {0, 1}) {
    auto streams = streams_of(count, priorities);
    CUstream l; C(cuStreamCreateWithPriority(&l, CU_STREAM_NON_BLOCKING, own));
    for (auto s : streams) fill<<<1, 32, 0, s>>>(probe, 32, 1u);
    auto t = Clock::now(); gate.close(streams); double closing = ms(t); bool drained = gate.drained(streams.size(), 500); double draining = ms(t) - closing;
    // Copies of other threads that wait behind the gate may hold the copy engines.
    if (queued) for (int i = 0; i < std::min(count, 24); i++) { CUstream s = streams[i]; cudaMemcpyAsync(probe, from, bytes, cudaMemcpyDeviceToDevice, s); cudaMemcpyAsync(probe, h, bytes, cudaMemcpyHostToDevice, s); cudaMemcpyAsync(h2, probe, bytes, cudaMemcpyDeviceToHost, s); fill<<<64, 256, 0, s>>>(probe, 4096, 2u); }
    const char* what[] = {"kernel", "copy on device", "copy to host", "copy from host"}; std::string result;
    for (int k = 0; k < 4; k++) {
      CUevent e; C(cuEventCreate(&e, CU_EVENT_DISABLE_TIMING)); auto u = Clock::now();
      switch (k) { case 0: copy<<<256, 256, 0, l>>>((uint4*)to, (uint4*)from, bytes / 16); break; case 1: C(cuMemcpyDtoDAsync((CUdeviceptr)to, (CUdeviceptr)from, bytes, l)); break; case 2: C(cuMemcpyDtoHAsync(h, (CUdeviceptr)from, 1 << 20, l)); break; case 3: C(cuMemcpyHtoDAsync((CUdeviceptr)to, h, 1 << 20, l)); break; }
      C(cuEventRecord(e, l)); bool done; while (!(done = cuEventQuery(e) == CUDA_SUCCESS) && ms(u) < 40) {}
      char b[96]; snprintf(b, sizeof b, "%s\"%s\":%s%.2f%s", k ? "," : "", what[k], done ? "" : "\"not in ", ms(u), done ? "" : " ms\""); result += b;
      if (!done) { gate.open(); C(cuStreamSynchronize(l)); cudaDeviceSynchronize(); gate.close(streams); gate.drained(streams.size(), 500); if (queued) for (int i = 0; i < std::min(count, 24); i++) { CUstream s = streams[i]; cudaMemcpyAsync(probe, from, bytes, cudaMemcpyDeviceToDevice, s); cudaMemcpyAsync(probe, h, bytes, cudaMemcpyHostToDevice, s); cudaMemcpyAsync(h2, probe, bytes, cudaMemcpyDeviceToHost, s); } }
    }
    gate.open(); cudaDeviceSynchronize();
    printf("{\"case\":\"channels\",\"connections\":\"%s\",\"closed_streams\":%d,\"their_priorities\":%d,\"own_priority\":%d,\"copies_behind_the_gate\":%d,\"closing_ms\":%.3f,\"drained\":%d,\"draining_ms\":%.3f,%s}\n", connections ? connections : "default", count, priorities, own, queued, closing, drained, draining, result.c_str()); fflush(stdout);
    C(cuStreamDestroy(l)); for (auto s : streams) C(cuStreamDestroy(s));
  }
}

static const char* PTX = ".version 7.0\n.target sm_80\n.address_size 64\n.visible .entry k%d(){ret;}\n";
// Which calls return while another thread sits in a call and the gate is closed?
static void locks(Gate& gate) {
  auto streams = streams_of(16, 1); CUcontext context; C(cuCtxGetCurrent(&context));
  unsigned* probe; cudaMalloc(&probe, 1 << 20); Mapped target(64 << 20), spare(64 << 20); auto p = prop(); auto a = access();
  cudaGraph_t g; cudaGraphExec_t graph; cudaStreamBeginCapture(streams[2], cudaStreamCaptureModeThreadLocal); fill<<<1, 32, 0, streams[2]>>>(probe, 32, 7u); cudaLaunchHostFunc(streams[2], [](void*) {}, nullptr); fill<<<1, 32, 0, streams[2]>>>(probe, 32, 8u); cudaStreamEndCapture(streams[2], &g); cudaGraphInstantiate(&graph, g, 0);
  const char* calls[] = {"unmap", "map", "set access", "unmap, map, set access", "create", "release", "reserve and free addresses", "event query", "launch on a closed stream", "stream memory operation", "copy on a stream of our own"};
  int modules = 0;
  struct Other { const char* name; std::function<void()> call; };
  std::vector<void*> device, host; for (int i = 0; i < 16; i++) { void* q; cudaMalloc(&q, 8 << 20); device.push_back(q); cudaHostAlloc(&q, 1 << 20, 0); host.push_back(q); }
  std::vector<char> pages(1 << 20), more(1 << 22);
  cudaMemPool_t pool; cudaDeviceGetDefaultMemPool(&pool, 0);
  std::vector<Other> others = {
    {"nothing", [] {}},
    {"cudaFree", [&] { cudaFree(device.back()); device.pop_back(); }},
    {"cudaFreeHost", [&] { cudaFreeHost(host.back()); host.pop_back(); }},
    {"cudaMalloc", [&] { void* q; cudaMalloc(&q, 8 << 20); }},
    {"cudaHostAlloc", [&] { void* q; cudaHostAlloc(&q, 1 << 20, 0); }},
    {"cudaHostRegister and unregister", [&] { cudaHostRegister(pages.data(), pages.size(), 0); cudaHostUnregister(pages.data()); }},
    {"cudaDeviceSynchronize", [] { cudaDeviceSynchronize(); }},
    {"cudaStreamSynchronize", [&] { cudaStreamSynchronize(streams[3]); }},
    {"cudaMemcpy from pageable memory", [&] { cudaMemcpy(probe, more.data(), 1 << 20, cudaMemcpyHostToDevice); }},
    {"module load", [&] { char b[256]; snprintf(b, sizeof b, PTX, modules++); CUmodule m; C(cuModuleLoadData(&m, b)); }},
    {"module load and unload", [&] { char b[256]; snprintf(b, sizeof b, PTX, modules++); CUmodule m; C(cuModuleLoadData(&m, b)); C(cuModuleUnload(m)); }},
    {"first launch of a kernel", [&] { other_kernel<<<1, 1, 0, streams[4]>>>(probe); }},
    {"graph launch with a host node", [&] { cudaGraphLaunch(graph, streams[5]); }},
    {"graph instantiate", [&] { cudaGraphExec_t e; cudaGraphInstantiate(&e, g, 0); }},
    {"stream create and destroy", [&] { cudaStream_t s; cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking); cudaStreamDestroy(s); }},
    {"cudaMallocAsync and cudaFreeAsync", [&] { void* q; cudaMallocAsync(&q, 1 << 20, streams[6]); cudaFreeAsync(q, streams[6]); }},
    {"cudaMemPoolTrimTo", [&] { cudaMemPoolTrimTo(pool, 0); }},
    {"1,500 launches", [&] { for (int i = 0; i < 1500; i++) fill<<<1, 32, 0, streams[i % 16]>>>(probe, 32, 1u); }},
  };
  for (auto& other : others) for (int k = 0; k < 11; k++) {
    CUdeviceptr side; C(cuMemAddressReserve(&side, 2 << 20, 0, 0, 0)); CUmemGenericAllocationHandle h, h2; C(cuMemCreate(&h, 2 << 20, &p, 0)); C(cuMemCreate(&h2, 2 << 20, &p, 0));
    if (k == 0 || k == 3) { C(cuMemMap(side, 2 << 20, 0, h, 0)); C(cuMemSetAccess(side, 2 << 20, &a, 1)); } if (k == 2) C(cuMemMap(side, 2 << 20, 0, h, 0));
    CUevent e; C(cuEventCreate(&e, CU_EVENT_DISABLE_TIMING)); CUstream l; C(cuStreamCreateWithPriority(&l, CU_STREAM_NON_BLOCKING, -5));
    fill<<<1, 32, 0, streams[3]>>>(probe, 32, 3u); cudaDeviceSynchronize();
    gate.close(streams); gate.drained(16, 500);
    std::atomic<int> state{0}; std::thread thread([&] { cuCtxSetCurrent(context); other.call(); state = 1; });
    nap(8); int before = state; std::atomic<int> opened{0};
    std::thread dog([&] { for (int i = 0; i < 60 && !opened; i++) nap(2); int none = 0; if (opened.compare_exchange_strong(none, 2)) gate.open(); });
    CUmemGenericAllocationHandle fresh = 0; CUdeviceptr extra = 0; auto t = Clock::now();
    switch (k) {
      case 0: C(cuMemUnmap(side, 2 << 20)); break;
      case 1: C(cuMemMap(side, 2 << 20, 0, h, 0)); break;
      case 2: C(cuMemSetAccess(side, 2 << 20, &a, 1)); break;
      case 3: C(cuMemUnmap(side, 2 << 20)); C(cuMemMap(side, 2 << 20, 0, h2, 0)); C(cuMemSetAccess(side, 2 << 20, &a, 1)); break;
      case 4: C(cuMemCreate(&fresh, 2 << 20, &p, 0)); break;
      case 5: C(cuMemRelease(h2)); break;
      case 6: C(cuMemAddressReserve(&extra, 2 << 20, 0, 0, 0)); C(cuMemAddressFree(extra, 2 << 20)); break;
      case 7: C(cuEventRecord(e, l)); while (cuEventQuery(e) == CUDA_ERROR_NOT_READY) {} break;
      case 8: fill<<<1, 32, 0, streams[9]>>>(probe, 32, 3u); break;
      case 9: C(cuStreamWriteValue32(l, gate.device + 4000, 1, 0)); break;
      case 10: C(cuMemcpyDtoDAsync(spare.at, target.at, 1 << 20, l)); C(cuStreamSynchronize(l)); break;
    }
    double took = ms(t); int none = 0; bool ours = opened.compare_exchange_strong(none, 1); gate.open(); dog.join(); thread.join(); cudaDeviceSynchronize();
    printf("{\"case\":\"locks\",\"other\":\"%s\",\"other_returned\":%d,\"call\":\"%s\",\"ms\":%.3f,\"blocked\":%d}\n", other.name, before, calls[k], took, !ours); fflush(stdout);
    if (k <= 3 ) C(cuMemUnmap(side, 2 << 20) == CUDA_SUCCESS || k == 0 ? CUDA_SUCCESS : CUDA_ERROR_UNKNOWN);
    C(cuMemRelease(h)); if (k != 5) C(cuMemRelease(h2)); if (fresh) C(cuMemRelease(fresh)); C(cuMemAddressFree(side, 2 << 20)); C(cuEventDestroy(e)); C(cuStreamDestroy(l));
  }
}

// How long do streams stand still for an exchange of 64 MiB into 32 parts? With threads that launch at random, contents checked.
static void times(Gate& gate, int count, int parts, int rounds, bool busy) {
  auto streams = streams_of(count, 4); streams[0] = nullptr; CUcontext context; C(cuCtxGetCurrent(&context)); CUstream l; C(cuStreamCreateWithPriority(&l, CU_STREAM_NON_BLOCKING, -5));
  const size_t bytes = 64 << 20, part = bytes / parts; auto p = prop(); auto a = access(); CUdeviceptr va, side; C(cuMemAddressReserve(&va, bytes, 0, 0, 0)); C(cuMemAddressReserve(&side, bytes, 0, 0, 0));
  std::vector<CUmemGenericAllocationHandle> old(parts), fresh(parts); for (int i = 0; i < parts; i++) { C(cuMemCreate(&old[i], part, &p, 0)); C(cuMemMap(va + i * part, part, 0, old[i], 0)); } C(cuMemSetAccess(va, bytes, &a, 1));
  std::atomic<bool> stop{false}; std::atomic<long> launches{0}; std::vector<std::thread> threads;
  if (busy) for (int k = 0; k < 4; k++) threads.emplace_back([&, k] { cuCtxSetCurrent(context); unsigned seed = k + 1; for (long n = 0; !stop; n++) { seed = seed * 1664525u + 1013904223u; CUstream s = streams[1 + k * 2 + (seed >> 16) % 2]; spin<<<1, 1, 0, s>>>(20000); launches++; if (n % 64 == 63) cudaStreamSynchronize(s); } });
  std::vector<double> still, total, closing, draining, copying, unmap, map, set; int given_up = 0;
  for (int r = 0; r < rounds; r++) {
    auto start = Clock::now(); for (int i = 0; i < parts; i++) { C(cuMemCreate(&fresh[i], part, &p, 0)); C(cuMemMap(side + i * part, part, 0, fresh[i], 0)); } C(cuMemSetAccess(side, bytes, &a, 1));
    auto t = Clock::now(); gate.close(streams); double t1 = ms(t); if (!gate.drained(count, 100)) { gate.open(); given_up++; C(cuMemUnmap(side, bytes)); for (auto h : fresh) C(cuMemRelease(h)); continue; } double t2 = ms(t);
    C(cuMemcpyDtoDAsync(side, va, bytes, l)); C(cuStreamSynchronize(l)); double t3 = ms(t); C(cuMemUnmap(va, bytes)); double t4 = ms(t); for (int i = 0; i < parts; i++) C(cuMemMap(va + i * part, part, 0, fresh[i], 0)); double t5 = ms(t); C(cuMemSetAccess(va, bytes, &a, 1)); double t6 = ms(t); gate.open();
    C(cuMemUnmap(side, bytes)); for (auto h : old) C(cuMemRelease(h)); std::swap(old, fresh); total.push_back(ms(start)); still.push_back(t6 - t1 ); closing.push_back(t1); draining.push_back(t2 - t1); copying.push_back(t3 - t2); unmap.push_back(t4 - t3); map.push_back(t5 - t4); set.push_back(t6 - t5);
  }
  stop = true; for (auto& t : threads) t.join(); cudaDeviceSynchronize();
  auto q = [](std::vector<double> v, double f) { if (v.empty()) return -1.0; std::sort(v.begin(), v.end()); return v[std::min(v.size() - 1, (size_t)(f * v.size()))]; };
  printf("{\"case\":\"times\",\"streams\":%d,\"parts\":%d,\"busy\":%d,\"exchanges\":%zu,\"given_up\":%d,\"launches\":%ld,\"ms\":{\"still_median\":%.3f,\"still_p99\":%.3f,\"total_median\":%.3f,\"closing\":%.3f,\"draining\":%.3f,\"copying\":%.3f,\"unmap\":%.3f,\"map\":%.3f,\"set_access\":%.3f},\"error\":\"%s\"}\n", count, parts, busy, still.size(), given_up, launches.load(), q(still, .5), q(still, .99), q(total, .5), q(closing, .5), q(draining, .5), q(copying, .5), q(unmap, .5), q(map, .5), q(set, .5), cudaGetErrorName(cudaGetLastError())); fflush(stdout);
  C(cuStreamDestroy(l)); for (size_t i = 1; i < streams.size(); i++) C(cuStreamDestroy(streams[i]));
}
static void load(double seconds) { auto t = Clock::now(); while (ms(t) < seconds * 1000) { for (int i = 0; i < 50; i++) spin<<<264, 256>>>(200000); cudaDeviceSynchronize(); } }
int main(int argc, char** argv) {
  std::string mode = argc > 1 ? argv[1] : ""; cudaSetDevice(0); cudaFree(0); Gate gate;
  if (mode == "channels") channels(gate); else if (mode == "locks") locks(gate); else if (mode == "load") load(atof(argv[2]));
  else if (mode == "times") for (int n : {8, 80, 200}) for (int parts : {2, 8, 32}) for (bool busy : {false, true}) times(gate, n, parts, 60, busy);
  else { fprintf(stderr, "gate channels | locks | times | load SECONDS\n"); return 2; }
}
