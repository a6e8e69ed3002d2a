// What VMM calls cost when memory is created again after a release, while kernels run and launch, and while another process calls.
#include <cuda.h>
#include <cuda_runtime.h>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>
#define OK(x) do { CUresult r_ = (CUresult)(x); if (r_) { fprintf(stderr, "%s: %d\n", #x, (int)r_); exit(1);} } while (0)
using clk = std::chrono::steady_clock;
static double us(clk::time_point a, clk::time_point b) { return std::chrono::duration<double, std::micro>(b - a).count(); }
__global__ void work(float *p, int n) { for (int k = 0; k < n; ++k) p[threadIdx.x + blockIdx.x * blockDim.x] += 1.f; }
int main(int argc, char **argv) {
  int dev = atoi(argv[1]); const char *mode = argv[2]; const char *label = argv[3]; int rounds = atoi(argv[4]);
  OK(cudaSetDevice(dev)); OK(cudaFree(0));
  bool launch = strstr(mode, "launch"), longk = strstr(mode, "long"), touch = strstr(mode, "touch");
  std::atomic<bool> stop{false}; float *buf; OK(cudaMalloc(&buf, 256 << 20));
  std::thread t;
  if (launch || longk) t = std::thread([&] { cudaSetDevice(dev); cudaStream_t s; cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking); int i = 0;
    while (!stop) { work<<<longk ? 528 : 132, 256, 0, s>>>(buf, longk ? 20000 : 50); if (++i % (longk ? 4 : 256) == 0) cudaStreamSynchronize(s); } cudaStreamSynchronize(s); });
  CUmemAllocationProp p = {}; p.type = CU_MEM_ALLOCATION_TYPE_PINNED; p.location.type = CU_MEM_LOCATION_TYPE_DEVICE; p.location.id = dev;
  CUmemAccessDesc a = {}; a.location = p.location; a.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  size_t M = 1 << 20;
  for (size_t chunk : {2 * M, 20 * M, 64 * M, 1024 * M}) {
    size_t total = chunk == 2 * M ? 512 * M : 4096 * M; size_t n = total / chunk;
    CUdeviceptr va; OK(cuMemAddressReserve(&va, total, 0, 0, 0));
    for (int round = 0; round < rounds; ++round) {
      std::vector<CUmemGenericAllocationHandle> h(n); double c = 0, m = 0, s = 0, u = 0, r = 0, k = 0, cw = 0, sw = 0;
      for (size_t i = 0; i < n; ++i) { auto t0 = clk::now(); OK(cuMemCreate(&h[i], chunk, &p, 0)); double d = us(t0, clk::now()); c += d; if (d > cw) cw = d; }
      for (size_t i = 0; i < n; ++i) { auto t0 = clk::now(); OK(cuMemMap(va + i * chunk, chunk, 0, h[i], 0)); m += us(t0, clk::now()); }
      for (size_t i = 0; i < n; ++i) { auto t0 = clk::now(); OK(cuMemSetAccess(va + i * chunk, chunk, &a, 1)); double d = us(t0, clk::now()); s += d; if (d > sw) sw = d; }
      if (touch) { auto t0 = clk::now(); OK(cudaMemsetAsync((void *)va, 1, n * chunk, 0)); OK(cudaStreamSynchronize(0)); k = us(t0, clk::now()); }
      { auto t0 = clk::now(); for (size_t i = 0; i < n; ++i) OK(cuMemUnmap(va + i * chunk, chunk)); u = us(t0, clk::now()); }
      { auto t0 = clk::now(); for (size_t i = 0; i < n; ++i) OK(cuMemRelease(h[i])); r = us(t0, clk::now()); }
      printf("{\"label\":\"%s\",\"mode\":\"%s\",\"device\":%d,\"chunk_mib\":%zu,\"round\":%d,\"handles\":%zu,\"create_us\":%.2f,\"map_us\":%.2f,\"access_us\":%.2f,\"unmap_us\":%.2f,\"release_us\":%.2f,\"fill_us\":%.1f,\"create_worst_us\":%.1f,\"access_worst_us\":%.1f}\n",
             label, mode, dev, chunk / M, round, n, c / n, m / n, s / n, u / n, r / n, k, cw, sw); fflush(stdout);
    }
    OK(cuMemAddressFree(va, total));
  }
  { // cudaMalloc and cudaFree of 64 MiB
    double x = 0, y = 0; for (int i = 0; i < 20; ++i) { void *q; auto t0 = clk::now(); OK(cudaMalloc(&q, 64 * M)); x += us(t0, clk::now()); t0 = clk::now(); OK(cudaFree(q)); y += us(t0, clk::now()); }
    printf("{\"label\":\"%s\",\"mode\":\"%s\",\"device\":%d,\"malloc_us\":%.1f,\"free_us\":%.1f}\n", label, mode, dev, x / 20, y / 20);
  }
  stop = true; if (t.joinable()) t.join();
}
