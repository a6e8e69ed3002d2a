// May host memory be stitched, and used as pinned memory?
#include <cuda.h>
#include <cuda_runtime.h>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <vector>
typedef unsigned long long u64;
static const char* nm(CUresult r){ const char*s="?"; cuGetErrorName(r,&s); return s; }
static double now(){ return std::chrono::duration<double,std::micro>(std::chrono::steady_clock::now().time_since_epoch()).count(); }
static long avail(){ FILE*f=fopen("/proc/meminfo","r"); char l[200]; long v=0; while(fgets(l,200,f)) if(sscanf(l,"MemAvailable: %ld",&v)==1) break; fclose(f); return v/1024; }
__global__ void sum(const u64*p,size_t n,u64*out){ u64 s=0; for(size_t i=blockIdx.x*(size_t)blockDim.x+threadIdx.x;i<n;i+=(size_t)gridDim.x*blockDim.x) s+=p[i]; atomicAdd(out,s); }
int main(){
  cuInit(0); cudaSetDevice(0); cudaFree(0); const size_t M=1<<20; cudaStream_t st; cudaStreamCreateWithFlags(&st,cudaStreamNonBlocking);
  int a; for(int k: {(int)CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID,(int)CU_DEVICE_ATTRIBUTE_NUMA_CONFIG,(int)CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,(int)CU_DEVICE_ATTRIBUTE_HOST_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED}){ CUresult r=cuDeviceGetAttribute(&a,(CUdevice_attribute)k,0); printf("attribute %d: %s %d\n",k,nm(r),a);}  
  struct L{const char*n; CUmemLocation l;}; L locs[]={{"HOST_NUMA 0",{CU_MEM_LOCATION_TYPE_HOST_NUMA,0}},{"HOST",{CU_MEM_LOCATION_TYPE_HOST,0}},{"HOST_NUMA_CURRENT",{CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT,0}}};
  CUmemAccessDesc dev={{CU_MEM_LOCATION_TYPE_DEVICE,0},CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  for(auto&c:locs){ CUmemAllocationProp p={}; p.type=CU_MEM_ALLOCATION_TYPE_PINNED; p.location=c.l; size_t g=0; CUresult rg=cuMemGetAllocationGranularity(&g,&p,CU_MEM_ALLOC_GRANULARITY_MINIMUM);
    CUmemGenericAllocationHandle h; CUresult r=cuMemCreate(&h,2*M,&p,0); printf("create in %s: %s, granularity %zu (%s)\n",c.n,nm(r),g,nm(rg)); if(r) continue; CUdeviceptr va; cuMemAddressReserve(&va,2*M,0,0,0); printf("  map %s\n",nm(cuMemMap(va,2*M,0,h,0)));
    for(auto&x:locs){ CUmemAccessDesc d[2]={dev,{x.l,CU_MEM_ACCESS_FLAGS_PROT_READWRITE}}; printf("  access for device and %s: %s\n",x.n,nm(cuMemSetAccess(va,2*M,d,2))); printf("  access for %s alone: %s\n",x.n,nm(cuMemSetAccess(va,2*M,d+1,1))); }
    cuMemUnmap(va,2*M); cuMemRelease(h); cuMemAddressFree(va,2*M); fflush(stdout); }
  // stitched, 256 MiB of chunks
  for(size_t chunk: {2*M,20*M,64*M}) { size_t n=256*M/chunk+1, total=n*chunk; CUmemAllocationProp p={}; p.type=CU_MEM_ALLOCATION_TYPE_PINNED; p.location={CU_MEM_LOCATION_TYPE_HOST_NUMA,0}; CUdeviceptr va; cuMemAddressReserve(&va,total,0,0,0); std::vector<CUmemGenericAllocationHandle> H(n); long before=avail(); double t0=now(); CUresult r=CUDA_SUCCESS; for(size_t i=0;i<n&&!r;i++) r=cuMemCreate(&H[i],chunk,&p,0); double t1=now(); for(size_t i=0;i<n&&!r;i++) r=cuMemMap(va+i*chunk,chunk,0,H[n-1-i],0); double t2=now(); CUmemAccessDesc d[2]={dev,{{CU_MEM_LOCATION_TYPE_HOST_NUMA,0},CU_MEM_ACCESS_FLAGS_PROT_READWRITE}}; if(!r) r=cuMemSetAccess(va,total,d,2); double t3=now(); if(r){ CUmemAccessDesc e[2]={dev,{{CU_MEM_LOCATION_TYPE_HOST,0},CU_MEM_ACCESS_FLAGS_PROT_READWRITE}}; r=cuMemSetAccess(va,total,e,2);} printf("chunks of %zu MiB x %zu: %s; us each: create %.1f map %.1f access %.1f; MemAvailable fell %ld MiB\n",chunk/M,n,nm(r),(t1-t0)/n,(t2-t1)/n,(t3-t2)/n,before-avail()); fflush(stdout); if(r) continue;
    u64*q=(u64*)va; size_t w=total/8; double c0=now(); for(size_t i=0;i<w;i++) q[i]=i; double c1=now(); u64*out,ho=0; cudaMalloc(&out,8); cudaMemset(out,0,8); sum<<<264,512,0,st>>>(q,w,out); cudaMemcpyAsync(&ho,out,8,cudaMemcpyDeviceToHost,st); cudaStreamSynchronize(st); printf("  CPU wrote at %.1f GB/s; GPU sum right: %d\n",total/(c1-c0)/1e3,ho==(u64)w*(w-1)/2);
    cudaPointerAttributes at; cudaError_t ce=cudaPointerGetAttributes(&at,(void*)va); printf("  attributes: %s type %d device %d host pointer %d\n",cudaGetErrorName(ce),at.type,at.device,at.hostPointer==(void*)va);
    void*dd; cudaMalloc(&dd,total); for(int dir=0;dir<2;dir++){ double best=1e30,issue=0; for(int k=0;k<6;k++){ double a0=now(); ce=dir?cudaMemcpyAsync((void*)va,dd,total,cudaMemcpyDeviceToHost,st):cudaMemcpyAsync(dd,(void*)va,total,cudaMemcpyHostToDevice,st); double a1=now(); cudaStreamSynchronize(st); double a2=now(); if(a2-a0<best){best=a2-a0; issue=a1-a0;} } printf("  %s %s: %.2f GB/s, issued in %.1f us of %.1f\n",dir?"D2H":"H2D",cudaGetErrorName(ce),total/best/1e3,issue,best);} 
    memset((void*)va,0,4*M); double u0=now(); CUresult ru=cuMemUnmap(va,total); double u1=now(); for(auto h:H) cuMemRelease(h); double u2=now(); printf("  unmap %s %.1f us each, release %.1f us each, MemAvailable now %ld below\n",nm(ru),(u1-u0)/n,(u2-u1)/n,before-avail()); cudaFree(dd); cudaFree(out); fflush(stdout); }
  for(size_t s: {2*M,20*M,256*M}){ void*p; double a0=now(); cudaError_t e=cudaHostAlloc(&p,s,0); double a1=now(); if(s==256*M){ void*dd; cudaMalloc(&dd,s); memset(p,1,s); for(int dir=0;dir<2;dir++){ double best=1e30,issue=0; for(int k=0;k<6;k++){ double b0=now(); dir?cudaMemcpyAsync(p,dd,s,cudaMemcpyDeviceToHost,st):cudaMemcpyAsync(dd,p,s,cudaMemcpyHostToDevice,st); double b1=now(); cudaStreamSynchronize(st); double b2=now(); if(b2-b0<best){best=b2-b0;issue=b1-b0;} } printf("cudaHostAlloc %s: %.2f GB/s, issued in %.1f us\n",dir?"D2H":"H2D",s/best/1e3,issue);} cudaFree(dd);} double f0=now(); cudaFreeHost(p); double f1=now(); printf("cudaHostAlloc %zu MiB: %s %.1f us, cudaFreeHost %.1f us\n",s/M,cudaGetErrorName(e),a1-a0,f1-f0);} 
  // registered pieces of one reservation
  return 0; }
