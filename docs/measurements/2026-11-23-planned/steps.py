import gzip,sys,collections,json,os
# TRACES=FOLDER steps.py NAME OUT LOW PATTERN   e.g. PATTERN "0:3,4,4,4" indices of deep segments; prefix = everything before the first one used
name,out,low,pattern=sys.argv[1],sys.argv[2],float(sys.argv[3]),sys.argv[4]
f=gzip.open(f'{os.environ["TRACES"]}/{name}.csv.gz','rt')
hdr=None; ev=[]
for l in f:
    l=l.strip()
    if l.startswith('#'): hdr=l; continue
    p=l.split(',')
    ev.append((p[0],p[1],int(p[2]) if p[0]=='a' else 0,p[3] if p[0]=='a' else ''))
live=0; sizes={}; lv=[]
for k,i,s,st in ev:
    if k=='a': sizes[i]=s; live+=s
    elif k=='f': live-=sizes[i]
    lv.append(live)
peak=max(lv)
# deep lows: local minima below threshold
thr=low*(1<<20)
cuts=[];i=0;n=len(lv)
while i<n:
    if lv[i]<thr and i>2000:
        j=i; best=i
        while j<n and lv[j]<thr+peak/16:
            if lv[j]<lv[best]: best=j
            j+=1
        cuts.append(best+1); i=j
    i+=1
segs=[(cuts[k],cuts[k+1]) for k in range(len(cuts)-1)]
print('cuts',[(c,lv[c-1]>>20) for c in cuts],'segs',[b-a for a,b in segs],file=sys.stderr)
if pattern=='list': sys.exit()
idx=[int(x) for x in pattern.split(',')]
prefix=segs[idx[0]][0]
o=gzip.open(out,'wt'); o.write(hdr.replace(name,out.split('/')[-1].split('.')[0])+'\n')
alive=collections.OrderedDict() # newid->size
nid=0; m={}
def alloc(old,s,st):
    global nid
    m[old]=nid; alive[nid]=s; o.write(f'a,{nid},{s},{st}\n'); nid+=1
def free(i): 
    o.write(f'r,{i}\nf,{i}\n'); del alive[i]
for k,i,s,st in ev[:prefix]:
    if k=='a': alloc(i,s,st)
    elif k=='f': free(m[i])
base=dict(m)
surv=collections.defaultdict(collections.deque)
skipped=leaked=0
for r,si in enumerate(idx):
    a,b=segs[si]
    mine={}
    for k,i,s,st in ev[a:b]:
        if k=='a':
            alloc(i,s,st); mine[i]=m[i]
        elif k=='f':
            if i in mine: free(mine[i]); del mine[i]
            else:
                q=surv[sizes[i]]
                if q: free(q.popleft())
                elif i in base and base[i] in alive and r==0: free(base[i])
                else: skipped+=1
    for s,q in surv.items():
        for i in q: free(i); leaked+=1
    surv=collections.defaultdict(collections.deque)
    for i,x in mine.items(): surv[sizes[i]].append(x)
print('reps',len(idx),'skipped',skipped,'freed at ends',leaked,file=sys.stderr)
