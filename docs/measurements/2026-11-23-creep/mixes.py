import subprocess,random,sys,json
B="seamalloc"
def trace(name,seed,steps):
    subprocess.run([B,"convert",name,"m.csv","--seed",str(seed),"--steps",str(steps)],check=True,capture_output=True)
    return [l.strip().split(',') for l in open("m.csv") if l[0]!='#']
def mix(path,parts):
    out=[];base=0
    for name,seed,steps in parts:
        live={};mx=0
        for op in trace(name,seed,steps):
            i=int(op[1]); mx=max(mx,i)
            if op[0]=='a': live[i]=1; out.append(f"a,{base+i},{op[2]},{op[3]}")
            else:
                out.append(f"{op[0]},{base+i}")
                if op[0]=='f': live.pop(i,None)
        for i in live: out += [f"r,{base+i}",f"f,{base+i}"]
        base+=mx+1
    open(path,'w').write('\n'.join(out)+'\n')
def show(path,*a):
    r=subprocess.run([B,"replay",path,"--strategy","stitch","--passes","20","--json",*a],capture_output=True,text=True).stdout
    rows=[json.loads(l) for l in r.splitlines()]; u=[round(100*x['utilization'],2) for x in rows]
    grow=max([i+1 for i in range(1,len(u)) if u[i]<u[i-1]] or [1])
    print(path.split('/')[-1],a,u[:6],u[-1],'last growth in pass',grow,'views',[x['views_built'] for x in rows][:6],sum(x['views_built'] for x in rows[6:]))
names=["gpt2-xl-R","opt-1.3b-R","gpt2-xl-LR","llama-1b-rlhf","resnet-152","gpt-neox-20b-LR","opt-13b-N","kv-requests"]
random.seed(1)
for k in range(6):
    parts=[(random.choice(names),random.randrange(100),random.randrange(1,4)) for _ in range(5)]
    mix(f"mix{k}.csv",parts); show(f"mix{k}.csv")
