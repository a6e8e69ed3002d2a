# peak.py FOLDER NAME [NAME ...]
import gzip,sys
folder=sys.argv[1]
for j in sys.argv[2:]:
    live=0;sizes={};ev=[];n=0
    for l in gzip.open(f'{folder}/{j}.csv.gz','rt'):
        p=l.strip().split(',')
        if p[0]=='a':
            s=-(-int(p[2])//512)*512; sizes[p[1]]=s; live+=s
        elif p[0]=='f': live-=sizes[p[1]]
        else: continue
        ev.append(live)
    k=len(ev)
    print(j,'peak of last quarter',max(ev[3*k//4:])/2**20)
