// Which calls of stream-ordered memory invalidate a capture of another stream, by the mode of the capture and of the calling thread.
#include <cuda.h>
#include <cstdio>
#include <cstring>
#include <functional>
#include <vector>
static CUcontext ctx;
int main() {
  cuInit(0); CUdevice d; cuDeviceGet(&d, 0); cuDevicePrimaryCtxRetain(&ctx, d); cuCtxSetCurrent(ctx);
  CUmemPoolProps props; memset(&props, 0, sizeof props); props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED; props.location.type = CU_MEM_LOCATION_TYPE_DEVICE; props.location.id = 0;
  CUmemoryPool pool; cuMemPoolCreate(&pool, &props);
  unsigned long long keep = ~0ull; cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keep);
  CUstream s, o; cuStreamCreate(&s, CU_STREAM_NON_BLOCKING); cuStreamCreate(&o, CU_STREAM_NON_BLOCKING);
  CUdeviceptr a; cuMemAllocFromPoolAsync(&a, 1 << 20, pool, o); cuStreamSynchronize(o);
  CUdeviceptr spare[64]; for (auto &p : spare) cuMemAllocFromPoolAsync(&p, 1 << 20, pool, o); cuStreamSynchronize(o);
  CUevent ev; cuEventCreate(&ev, CU_EVENT_DISABLE_TIMING); cuEventRecord(ev, o);
  int next = 0;
  struct C { const char *name; std::function<CUresult()> f; };
  CUdeviceptr got = 0; CUstream made; CUmemoryPool other;
  std::vector<C> calls = {
    {"cuMemAllocFromPoolAsync, hit", [&] { return cuMemAllocFromPoolAsync(&got, 1 << 20, pool, o); }},
    {"cuMemAllocFromPoolAsync, growth", [&] { return cuMemAllocFromPoolAsync(&got, 256 << 20, pool, o); }},
    {"cuMemAllocFromPoolAsync, legacy default stream", [&] { return cuMemAllocFromPoolAsync(&got, 1 << 20, pool, 0); }},
    {"cuMemFreeAsync", [&] { return cuMemFreeAsync(spare[next++], o); }},
    {"cuMemFreeAsync, legacy default stream", [&] { return cuMemFreeAsync(spare[next++], 0); }},
    {"cuMemPoolGetAttribute", [&] { unsigned long long v; return cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &v); }},
    {"cuMemPoolTrimTo", [&] { return cuMemPoolTrimTo(pool, 64 << 20); }},
    {"cuMemPoolCreate", [&] { return cuMemPoolCreate(&other, &props); }},
    {"cuStreamCreate", [&] { return cuStreamCreate(&made, CU_STREAM_NON_BLOCKING); }},
    {"cuStreamSynchronize, other stream", [&] { return cuStreamSynchronize(o); }},
    {"cuEventRecord, other stream", [&] { return cuEventRecord(ev, o); }},
    {"cuStreamWaitEvent, other streams", [&] { return cuStreamWaitEvent(o, ev, 0); }},
    {"cuEventQuery", [&] { return cuEventQuery(ev); }},
    {"cuMemGetInfo", [&] { size_t x, y; return cuMemGetInfo(&x, &y); }},
    {"cuStreamIsCapturing, legacy default stream", [&] { CUstreamCaptureStatus t; return cuStreamIsCapturing(0, &t); }},
    {"cuStreamIsCapturing, other stream", [&] { CUstreamCaptureStatus t; return cuStreamIsCapturing(o, &t); }},
    {"cuStreamGetId, other stream", [&] { unsigned long long t; return cuStreamGetId(o, &t); }},
  };
  const char *names[] = {"global", "thread_local", "relaxed"};
  for (int mode = 0; mode < 3; ++mode) for (int thread = 0; thread < 2; ++thread) for (auto &c : calls) {
    cuStreamBeginCapture(s, (CUstreamCaptureMode)mode);
    CUstreamCaptureMode m = CU_STREAM_CAPTURE_MODE_RELAXED; if (thread) cuThreadExchangeStreamCaptureMode(&m);
    CUresult r = c.f();
    if (thread) cuThreadExchangeStreamCaptureMode(&m);
    CUgraph g = 0; CUresult e = cuStreamEndCapture(s, &g); if (g) cuGraphDestroy(g);
    printf("{\"capture\":\"%s\",\"thread\":\"%s\",\"call\":\"%s\",\"answer\":%d,\"end_capture\":%d}\n", names[mode], thread ? "relaxed" : "as it is", c.name, r, e);
    cuCtxSynchronize();
  }
}
