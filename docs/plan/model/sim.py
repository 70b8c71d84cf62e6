import heapq,random,sys
from sched import *
class Sim:
    """one consumer; brokers hold counts; rtt and per record cost; app: work ms per poll batch (serial per record)."""
    def __init__(s,N,C,backlog,work=0.0,rtt=1.0,per=0.006,fix=1.0,prod=None,until=60000,poll_rows='one'):
        s.N,s.C=N,C;s.sc=Sched(C);s.sc.brokers(range(N));s.t=0.0;s.h=[];s.seq=0
        s.q={n:[] if not isinstance(backlog,list) else [0.0]*backlog[n] for n in range(N)}
        s.cnt={n:len(s.q[n]) for n in range(N)}
        s.parked={};s.watchers={};s.hw={n:0 for n in range(N)};s.wpos={n:0 for n in range(N)}
        s.bheld={n:0 for n in range(N)};s.maxheld=0
        s.buf=[];s.work=work;s.rtt,s.per,s.fix=rtt,per,fix;s.lat=[];s.got=0;s.hist=[];s.req={};s.until=until
        s.app='poll';s.inhand=None;s.timer=None
        if prod:s.prod=prod
        for (t,n) in (prod or []):s.at(t,'P',n)
    def at(s,t,*e): s.seq+=1;heapq.heappush(s.h,(t,s.seq,e))
    def count(s,k): s.req[k]=s.req.get(k,0)+1
    def broker_fetch(s,n,m,w,acks,expire=False):
        s.bheld[n]-=acks
        k=min(m,len(s.q[n]))
        if k==0 and w>0:
            s.parked[n]=(m,);s.at(s.t+w,'X',n,id(s.parked[n]));s.pk=s.parked[n];return
        s.reply(n,m)
    def reply(s,n,m):
        k=min(m,len(s.q[n]));rows=s.q[n][:k];s.q[n]=s.q[n][k:];s.bheld[n]+=k
        s.maxheld=max(s.maxheld,sum(s.bheld.values()))
        s.at(s.t+s.rtt/2+s.fix+k*s.per,'R',n,rows,len(s.q[n])>0 and m>1)
    def app_step(s):
        # poll: implicit acks then take
        if s.inhand is not None:return
        if s.lastrows:
            n,k=s.lastrows;s.sc.give(s.t,n,k);s.lastrows=None
        if s.buf:
            n,rows=s.buf.pop(0)
            for r in rows:s.lat.append(s.t-r)
            s.got+=len(rows);s.inhand=(n,len(rows));s.lastrows=(n,len(rows))
            s.sc.demand=0 if s.buf else 1
            s.at(s.t+max(0.03,s.work*len(rows)),'W')
        else:s.sc.demand=2
    def run(s):
        s.lastrows=None;s.app_step();s.drive()
        lastt=0;lastgot=0;nextrep=1000
        while s.h and s.t<s.until:
            t,_,e=heapq.heappop(s.h);s.t=t
            while t>=nextrep:
                s.hist.append(s.got-lastgot);lastgot=s.got;nextrep+=1000
            k=e[0]
            if k=='P':
                n=e[1];s.q[n].append(t);s.hw[n]+=1
                if n in s.parked:m,=s.parked.pop(n);s.reply(n,m)
                if n in s.watchers:s.watchers.pop(n);s.at(t+s.rtt,'V',n,True)
            elif k=='X':
                if n_ok(s,e):m,=s.parked.pop(e[1]);s.reply(e[1],m)
            elif k=='S':s.broker_fetch(*e[1:])
            elif k=='A':
                s.bheld[e[1]]-=e[2];s.at(t+s.rtt/2+s.fix,'K',e[1])
            elif k=='K':s.sc.acked(e[1])
            elif k=='R':
                n,rows,more=e[1:];s.sc.answered(t,n,len(rows),more)
                if rows:s.buf.append((n,rows))
                if s.inhand is None:s.app_step()
                elif s.buf:s.sc.demand=0
            elif k=='V':
                s.sc.watched(e[1],e[2]);s.wpos[e[1]]=s.hw[e[1]]
            elif k=='Y':
                if s.watchers.get(e[1])==e[2]:s.watchers.pop(e[1]);s.at(t+s.rtt/2,'V',e[1],False)
            elif k=='U':
                n=e[1]
                if s.hw[n]>s.wpos[n]:s.at(t+s.rtt/2,'V',n,True)
                else:s.watchers[n]=s.seq;s.at(t+WATCH,'Y',n,s.watchers[n])
            elif k=='W':s.inhand=None;s.app_step()
            elif k=='T':pass
            assert s.sc.charged()<=s.C,(s.sc.charged(),s.t)
            assert sum(s.bheld.values())<=s.C
            s.drive()
            if s.until_empty and not any(s.q.values()) and not s.buf and s.got>=s.total:break
        return s
    until_empty=False
    def drive(s):
        while (a:=s.sc.poll(s.t)) is not None:
            s.count(a[0])
            if a[0]=='F':s.at(s.t+s.rtt/2,'S',*a[1:])
            elif a[0]=='A':s.at(s.t+s.rtt/2,'A',a[1],a[2])
            else:s.at(s.t+s.rtt/2,'U',a[1])
        ts=[x for x in s.sc.timeouts() if x>s.t]
        if ts and (s.timer is None or s.timer<=s.t or min(ts)<s.timer):
            s.timer=min(ts);s.at(s.timer,'T')
def n_ok(s,e): return e[1] in s.parked and id(s.parked[e[1]])==e[2]
def pct(l,p):
    l=sorted(l);return l[min(len(l)-1,int(p*len(l)))] if l else None
if __name__=='__main__':
    import math
    # case 2: zipf2 over 12 partitions on 3 brokers
    w=[1/(i+1)**2 for i in range(12)];lead=[1,2,0,1,0,2,1,2,0,2,1,0];tot=300000
    bl=[0,0,0]
    for i,x in enumerate(w):bl[lead[i]]+=int(tot*x/sum(w))
    s=Sim(3,500,bl);s.until_empty=True;s.total=sum(bl);s.run()
    print('case2',bl,'t',round(s.t),'hist',s.hist,'req',s.req,'max',s.maxheld)
    # case 5
    rng=random.Random(1)
    def arrivals(N,rate,secs,alpha,parts,spaced=True):
        z=[1/(i+1)**alpha for i in range(parts)];t=0;out=[]
        for i in range(int(rate*secs)):
            x=rng.random()*sum(z);q=0
            while x>z[q]:x-=z[q];q+=1
            out.append((2000+i*1000/rate,q%N))
        return out
    for N,C in((6,1),(2,1),(6,500),(6,3)):
        s=Sim(N,C,None,work=10,prod=arrivals(N,6,60,1.5,12),until=64000);s.run()
        print('case5 N',N,'C',C,'got',s.got,'p50',round(pct(s.lat,.5),1),'p99',round(pct(s.lat,.99),1),'max',round(max(s.lat),1),'req',s.req)
    for N,C in((3,500),(6,1),(6,3)):
        s=Sim(N,C,None,until=60000);s.run();s.at(60000,'T')
        print('idle N',N,'C',C,s.req,'per broker and s',sum(s.req.values())/60/N)
    # overload of C=1
    s=Sim(6,1,[5000,500,500,50,5,1],work=1,until=30000);s.total=6056;s.until_empty=True;s.run();print('c1 drain',s.t,s.got,s.req,'left',{n:len(q) for n,q in s.q.items()})
    # trickle beside backlog
    s=Sim(3,500,[400000,0,0],prod=[(i*37.0,1) for i in range(1,300)],until=11000);s.run()
    print('trickle beside backlog',s.hist,s.req, 'lat of trickle')
