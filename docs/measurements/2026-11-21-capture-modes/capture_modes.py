"""Which driver calls a stream capture refuses, by the mode of the capture and the mode of the calling thread."""
import ctypes as C,threading,time
L=C.CDLL('libcuda.so.1');P=C.c_void_p
def v():return P()
L.cuInit(0);d=C.c_int();L.cuDeviceGet(C.byref(d),0);c=v();L.cuDevicePrimaryCtxRetain(C.byref(c),d)
def cur():L.cuCtxSetCurrent(c)
cur()
def S():
 s=v();L.cuStreamCreate(C.byref(s),1);return s
def E():
 e=v();L.cuEventCreate(C.byref(e),2);return e
s,t=S(),S();e=E();L.cuEventRecord(e,t)
m=C.c_uint64()
def ma():
 r=L.cuMemAlloc_v2(C.byref(m),C.c_size_t(1<<21));return r
def mf():
 return L.cuMemFree_v2(m)
def cap(x):
 k=C.c_uint(9);r=L.cuStreamIsCapturing(x,C.byref(k));return (r,k.value)
ops={'query':lambda:L.cuEventQuery(e),'esync':lambda:L.cuEventSynchronize(e),'malloc':ma,'free':mf,'ssync t':lambda:L.cuStreamSynchronize(t),'ssync s':lambda:L.cuStreamSynchronize(s),'ctxsync':lambda:L.cuCtxSynchronize(),'iscap s,t,0':lambda:(cap(s),cap(t),cap(P(0))),'rec t':lambda:L.cuEventRecord(e,t),'wait t':lambda:L.cuStreamWaitEvent(t,e,0),'minfo':lambda:L.cuMemGetInfo_v2(C.byref(C.c_size_t()),C.byref(C.c_size_t()))}
def ex(k):
 x=C.c_uint(k);r=L.cuThreadExchangeStreamCaptureMode(C.byref(x));return r,x.value
def go(mode,own,other,n):
 if n=='free':ma()
 L.cuStreamBeginCapture_v2(s,mode);o=[]
 def w():
  cur();b=ex(own);o.append(ops[n]());ex(b[1])
 if other:
  h=threading.Thread(target=w);h.start();h.join()
 else:w()
 g=v();r=L.cuStreamEndCapture(s,C.byref(g));
 if n in('malloc',):mf()
 return o[0],r
for n in ops:
 print(n)
 for mode in(0,1,2):
  print('  cap',mode,*[(('other' if o else 'same')+str(own),go(mode,own,o,n)) for o in(0,1) for own in(0,1,2)])
a=time.perf_counter()
for i in range(100000):L.cuThreadExchangeStreamCaptureMode(C.byref(C.c_uint(0)))
b=time.perf_counter()
for i in range(100000):C.byref(C.c_uint(0));L.cuDriverGetVersion
print('exchange ns',(b-a)*1e4,(time.perf_counter()-b)*1e4)
