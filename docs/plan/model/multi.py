import heapq,random
from sched import *
class World:
    def __init__(s,M,N,C,prod,work,until,rtt=1.0,fix=1.0,per=0.006,contend=0.0,seed=1,assign=None):
        s.r=random.Random(seed);s.t=0;s.h=[];s.seq=0;s.N=N;s.q={n:[] for n in range(N)};s.hw={n:0 for n in range(N)}
        s.m=[dict(sc=Sched(C),buf=[],hand=None,last=None,timer=None,wpos={n:0 for n in range(N)}) for _ in range(M)]
        for i,m in enumerate(s.m):m['sc'].brokers(assign[i] if assign else range(N))
        s.park=[];s.watch=[];s.lat=[];s.req={'F':0,'A':0,'W':0};s.empty=0;s.work=work;s.until=until;s.rtt,s.fix,s.per=rtt,fix,per;s.contend=contend
        for t,n in prod:s.at(t,'P',n)
    def at(s,t,*e):s.seq+=1;heapq.heappush(s.h,(t,s.seq,e))
    def reply(s,i,n,k0):
        k=min(k0,len(s.q[n]))
        if k0>0 and s.contend and s.r.random()<s.contend:k=0
        rows=s.q[n][:k];s.q[n]=s.q[n][k:]
        if not rows:s.empty+=1
        s.at(s.t+s.rtt/2+s.fix+k*s.per,'R',i,n,rows,len(s.q[n])>0 and k0>1)
    def app(s,i):
        m=s.m[i]
        if m['hand'] is not None:return
        if m['last']:m['sc'].give(s.t,*m['last']);m['last']=None
        if m['buf']:
            n,rows=m['buf'].pop(0)
            for j,r in enumerate(rows):s.lat.append(s.t+j*s.work-r)
            m['hand']=1;m['last']=(n,len(rows));m['sc'].demand=0 if m['buf'] else 1
            s.at(s.t+max(.03,s.work*len(rows)),'D',i)
        else:m['sc'].demand=2
    def drive(s,i):
        m=s.m[i]
        while(a:=m['sc'].poll(s.t)) is not None:
            s.req[a[0]]+=1
            if a[0]=='F':s.at(s.t+s.rtt/2,'S',i,*a[1:])
            elif a[0]=='A':s.at(s.t+s.rtt+s.fix,'K',i,a[1])
            else:s.at(s.t+s.rtt/2,'U',i,a[1])
        ts=[x for x in m['sc'].timeouts() if x>s.t]
        if ts and(m['timer'] is None or m['timer']<=s.t or min(ts)<m['timer']):m['timer']=min(ts);s.at(min(ts),'T',i)
    def run(s):
        for i in range(len(s.m)):s.app(i);s.drive(i)
        while s.h and s.t<s.until:
            s.t,_,e=heapq.heappop(s.h);k=e[0];i=e[1]
            if k=='P':
                n=e[1];s.q[n].append(s.t);s.hw[n]+=1
                for p in [p for p in s.park if p[1]==n]:
                    if s.q[n]:s.park.remove(p);s.reply(*p)
                for w in [w for w in s.watch if w[1]==n]:s.watch.remove(w);s.at(s.t+s.rtt,'V',w[0],n,True)
                continue
            if k=='S':
                _,i,n,mx,w,acks=e
                if w>0 and not s.q[n]:
                    p=(i,n,mx);s.park.append(p);s.at(s.t+w,'X',p);continue
                s.reply(i,n,mx);continue
            if k=='X':
                if e[1] in s.park:s.park.remove(e[1]);s.reply(*e[1])
                continue
            if k=='U':
                n=e[2]
                if s.hw[n]>s.m[i]['wpos'][n]:s.at(s.t+s.rtt/2,'V',i,n,True)
                else:w=(i,n,s.seq);s.watch.append(w);s.at(s.t+WATCH,'Y',w)
                continue
            if k=='Y':
                if e[1] in s.watch:s.watch.remove(e[1]);s.at(s.t+s.rtt/2,'V',e[1][0],e[1][1],False)
                continue
            sc=s.m[i]['sc']
            if k=='K':sc.acked(e[2])
            elif k=='R':
                _,i,n,rows,more=e;sc.answered(s.t,n,len(rows),more)
                if rows:s.m[i]['buf'].append((n,rows))
                if s.m[i]['hand'] is None:s.app(i)
                elif s.m[i]['buf']:sc.demand=0
            elif k=='V':sc.watched(e[2],e[3]);s.m[i]['wpos'][e[2]]=s.hw[e[2]]
            elif k=='D':s.m[i]['hand']=None;s.app(i)
            assert sc.charged()<=sc.C
            s.drive(i)
        return s
def pct(l,p):l=sorted(l);return round(l[min(len(l)-1,int(p*len(l)))],1) if l else None
def go(label,M,N,C,rate,work,secs=20,**k):
    r=random.Random(5);prod=[(1000+r.random()*secs*1000,r.randrange(N)) for _ in range(int(rate*secs))]
    prod.sort();s=World(M,N,C,prod,work,1000+secs*1000+3000,**k).run()
    print(label,'got',len(s.lat),'of',len(prod),'p50',pct(s.lat,.5),'p99',pct(s.lat,.99),'max',pct(s.lat,1),'req/s',{a:round(b/(secs+4)) for a,b in s.req.items()},'empty/s',round(s.empty/(secs+4)))
go('4 members C1 N3 100/s 5ms',4,3,1,100,5)
go('4 members C1 N3 100/s 5ms, contend 10%',4,3,1,100,5,contend=.1)
go('4 members C500 N3 100/s 5ms',4,3,500,100,5)
go('4 members C500 N3 1000/s 1ms',4,3,500,1000,1)
go('12 members C1 N6 6/s 10ms',12,6,1,6,10)
go('1 member C1 N6 60/s 10ms',1,6,1,60,10)
go('1 member C1 N6 80/s 10ms',1,6,1,75,10)
go('1 member C6 N6 300/s 2ms',1,6,6,300,2)
