// What memory that can be exported costs, and whether another process can import it.
#include <cuda.h>
#include <errno.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>
#define CK(x)                                         \
  do {                                                \
    CUresult r_ = (x);                                \
    if (r_) {                                         \
      const char* s_ = "?";                           \
      cuGetErrorName(r_, &s_);                        \
      printf("%s -> %s line %d\n", #x, s_, __LINE__); \
      fflush(stdout);                                 \
      exit(1);                                        \
    }                                                 \
  } while (0)
static double us() {
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now().time_since_epoch()).count();
}
struct M {
  std::vector<double> v;
  void add(double x) { v.push_back(x); }
  void print(const char* n) {
    std::sort(v.begin(), v.end());
    if (v.empty()) return;
    double s = 0;
    for (double x : v) s += x;
    printf(" %s mean %.1f p50 %.1f p99 %.1f", n, s / v.size(), v[v.size() / 2], v[v.size() * 99 / 100]);
  }
};
static CUmemAllocationProp prop(bool fd) {
  CUmemAllocationProp p = {};
  p.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  p.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  p.location.id = 0;
  p.requestedHandleTypes = fd ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR : CU_MEM_HANDLE_TYPE_NONE;
  p.allocFlags.gpuDirectRDMACapable = 1;
  return p;
}
static void costs(bool fd, size_t mib, int n, bool do_export) {
  size_t size = mib << 20;
  CUmemAllocationProp p = prop(fd);
  CUmemAccessDesc a = {};
  a.location = p.location;
  a.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  CUdeviceptr va;
  CK(cuMemAddressReserve(&va, size * n, 0, 0, 0));
  M c, m, s, e, im, rel, un;
  std::vector<CUmemGenericAllocationHandle> h(n);
  std::vector<int> fds;
  for (int i = 0; i < n; i++) {
    double t = us();
    CK(cuMemCreate(&h[i], size, &p, 0));
    double t1 = us();
    CK(cuMemMap(va + i * size, size, 0, h[i], 0));
    double t2 = us();
    CK(cuMemSetAccess(va + i * size, size, &a, 1));
    double t3 = us();
    c.add(t1 - t);
    m.add(t2 - t1);
    s.add(t3 - t2);
  }
  if (do_export)
    for (int i = 0; i < n && i < 100; i++) {
      int f = -1;
      double t = us();
      CK(cuMemExportToShareableHandle(&f, h[i], CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
      e.add(us() - t);
      fds.push_back(f);
    }
  for (int f : fds) {
    CUmemGenericAllocationHandle g;
    double t = us();
    CK(cuMemImportFromShareableHandle(&g, (void*)(long)f, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    im.add(us() - t);
    CK(cuMemRelease(g));
    close(f);
  }
  for (int i = 0; i < n; i++) {
    double t = us();
    CK(cuMemUnmap(va + i * size, size));
    double t1 = us();
    CK(cuMemRelease(h[i]));
    un.add(t1 - t);
    rel.add(us() - t1);
  }
  CK(cuMemAddressFree(va, size * n));
  printf("fd=%d size=%zu MiB n=%d:", fd, mib, n);
  c.print("create");
  m.print("map");
  s.print("access");
  un.print("unmap");
  rel.print("release");
  e.print("export");
  im.print("import");
  printf("\n");
  fflush(stdout);
}
// The other process: forked before CUDA is initialised, and told the parent's process and descriptor.
static void child_main(int to_child, int to_parent) {
  int msg[3];
  if (read(to_child, msg, sizeof msg) != sizeof msg) _exit(1);
  CK(cuInit(0));
  CUdevice d;
  CK(cuDeviceGet(&d, 0));
  CUcontext x;
  CK(cuDevicePrimaryCtxRetain(&x, d));
  CK(cuCtxSetCurrent(x));
  int pidfd = syscall(SYS_pidfd_open, msg[0], 0);
  printf("child: pidfd_open %d errno %s\n", pidfd, pidfd < 0 ? strerror(errno) : "-");
  int f = syscall(SYS_pidfd_getfd, pidfd, msg[1], 0);
  printf("child: pidfd_getfd %d errno %s\n", f, f < 0 ? strerror(errno) : "-");
  fflush(stdout);
  if (f < 0) _exit(2);
  CUmemGenericAllocationHandle g;
  double t = us();
  CK(cuMemImportFromShareableHandle(&g, (void*)(long)f, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
  printf("child: import %.1f us\n", us() - t);
  CUmemGenericAllocationHandle g2;
  CUresult again = cuMemImportFromShareableHandle(&g2, (void*)(long)f, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  printf("child: importing the same fd again -> %d, same handle %d\n", again, g == g2);
  close(f);
  size_t size = 20 << 20;
  CUdeviceptr va;
  CK(cuMemAddressReserve(&va, 2 * size, 0, 0, 0));
  CK(cuMemMap(va, size, 0, g, 0));
  CUmemAccessDesc a = {};
  a.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  a.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  CK(cuMemSetAccess(va, size, &a, 1));
  unsigned w = 0;
  CK(cuMemcpyDtoH(&w, va + size - 4, 4));
  printf("child: read %x (parent wrote cafe)\n", w);
  w = 0xbeef;
  CK(cuMemcpyHtoD(va, &w, 4));
  CK(cuCtxSynchronize());
  if (write(to_parent, "x", 1) != 1) _exit(1);
  char b;
  if (read(to_child, &b, 1) != 1) _exit(1);
  w = 0;
  CK(cuMemcpyDtoH(&w, va + size - 4, 4));
  printf("child: after the parent released its own: %x\n", w);
  size_t fr, to;
  CK(cuMemGetInfo(&fr, &to));
  CK(cuMemUnmap(va, size));
  CK(cuMemRelease(g));
  size_t fr2;
  CK(cuMemGetInfo(&fr2, &to));
  printf("child: unmapping and releasing freed %zd MiB\n", (ssize_t)(fr2 - fr) >> 20);
  if (again == 0) {
    CUresult r = cuMemRelease(g2);
    CK(cuMemGetInfo(&fr2, &to));
    printf("child: releasing the second import -> %d, freed %zd MiB in all\n", r, (ssize_t)(fr2 - fr) >> 20);
  }
  fflush(stdout);
  _exit(0);
}
int main() {
  int to_child[2], to_parent[2];
  if (pipe(to_child) || pipe(to_parent)) return 1;
  pid_t child = fork();
  if (child == 0) child_main(to_child[0], to_parent[1]);
  prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);
  CK(cuInit(0));
  CUdevice d;
  CK(cuDeviceGet(&d, 0));
  CUcontext x;
  CK(cuDevicePrimaryCtxRetain(&x, d));
  CK(cuCtxSetCurrent(x));
  {
    size_t size = 20 << 20;
    CUmemAllocationProp p = prop(true);
    CUmemGenericAllocationHandle h;
    CK(cuMemCreate(&h, size, &p, 0));
    CUdeviceptr va;
    CK(cuMemAddressReserve(&va, size, 0, 0, 0));
    CK(cuMemMap(va, size, 0, h, 0));
    CUmemAccessDesc a = {};
    a.location = p.location;
    a.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    CK(cuMemSetAccess(va, size, &a, 1));
    unsigned w = 0xcafe;
    CK(cuMemcpyHtoD(va + size - 4, &w, 4));
    int f;
    CK(cuMemExportToShareableHandle(&f, h, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    int msg[3] = {getpid(), f, 0};
    fflush(stdout);
    if (write(to_child[1], msg, sizeof msg) < 0) return 1;
    char b;
    if (read(to_parent[0], &b, 1) == 1) {
      CK(cuMemcpyDtoH(&w, va, 4));
      printf("parent: child wrote %x\n", w);
      close(f);
      CK(cuMemUnmap(va, size));
      CK(cuMemRelease(h));
      fflush(stdout);
      if (write(to_child[1], "y", 1) != 1) return 1;
    }
    int st;
    waitpid(child, &st, 0);
    printf("child exit %d\n", st);
  }
  for (int round = 0; round < 2; round++)
    for (size_t mib : {2, 20, 64, 128})
      for (int fd = 0; fd < 2; fd++) costs(fd, mib, mib >= 64 ? 300 : 500, fd == 1 && round == 1);
}
