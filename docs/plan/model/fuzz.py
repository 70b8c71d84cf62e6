import random
from sched import *
def run(seed):
    r=random.Random(seed);C=1+r.randrange(40);N=1+r.randrange(7)
    s=Sched(C);s.brokers(range(1,N+1));s.demand=2
    held={n:0 for n in range(1,N+1)};lost=[];sent=[];gb={}
    stats=[0,0]
    for now in range(3000):
        lost=[x for x in lost if x[0]>now]
        done=[x for x in sent if x[0]<=now];sent=[x for x in sent if x[0]>now]
        for _,ask,acq,acks in done:
            n=ask[1]
            if ask[0]=='W':s.watched(n,r.randrange(2)==0)
            elif r.randrange(20)==0:
                held[n]-=acq;lost.append((now+700,max(acq,acks)));s.lost(n,now+700)
            elif ask[0]=='A':s.acked(n)
            else:s.answered(now,n,acq,acq>0 and r.randrange(2)==0)
        for n in held:
            p=gb.get(n,0);h=s.b[n].held
            assert p==s.b[n].due,(p,s.b[n].due)
            if h>p and r.randrange(10)==0:
                k=1+r.randrange(h-p);s.give(now,n,k,r.randrange(10)==0);gb[n]=p+k
        s.demand=r.randrange(3)
        while(a:=s.poll(now)):
            n=a[1];acks=0
            if a[0]!='W':acks=gb.pop(n,0)
            acq=r.randrange(a[2]+1) if a[0]=='F' else 0
            assert held[n]>=acks
            held[n]+=acq-acks;sent.append((now+1+r.randrange(30),a,acq,acks));stats[0]+=1
            assert s.charged()<=C
            assert sum(held.values())+sum(x[1] for x in lost)<=C,(seed,now)
    return stats[0]
print(sum(run(i) for i in range(60)))
# the unit tests of scheduler.rs, in this model
def S(C,N):
    s=Sched(C);s.brokers(range(1,N+1));s.demand=2;return s
def al(s,now):
    o=[]
    while(a:=s.poll(now)):o.append(a[:4] if a[0]=='F' else a[:2]);
    return [(a[0],a[1],a[2],s.log and next(x[4] for x in reversed(s.log) if x[1]==a[1] and x[2]=='fetch')) if a[0]=='F' else a for a in o]
s=S(500,3);print(al(s,0));s.answered(10,2,1,True);print(al(s,10));s.answered(12,2,8,True);s.give(12,2,9);print(al(s,12));s.answered(14,2,64,True);s.give(14,2,64);print(al(s,14),s.charged())
print('t2');s=S(1,2);print(al(s,1000));s.answered(1001,1,1,True);s.watched(2,True);print(al(s,1001));s.give(1002,1,1);print(al(s,1002));s.acked(1);print(al(s,1003));s.answered(1004,2,1,True);s.give(1004,2,1);print(al(s,1004));s.acked(2);print(al(s,1005));s.answered(1006,1,1,True);s.give(1006,1,1);print(al(s,1006))
print('t4');s=S(500,2);al(s,0);s.answered(5,1,1,False);print(al(s,5));s.answered(6,1,0,False);print(al(s,6),al(s,26),al(s,505));s.answered(507,1,0,False);s.give(510,1,1);print(al(s,510));s.acked(1);print(al(s,512))
print('t6');s=S(1,3)
for n in(1,2,3):
    now=1000+n;print(al(s,now));a=int(n==2);s.answered(now,n,a,False);s.give(now,n,a)
    if n==2:print(' ',al(s,now));s.acked(2)
print(al(s,1004));s.answered(1005,2,0,False);print(al(s,1100))
for now in(1505,1506,1507):
    a=s.poll(now);print(a)
    if now==1505:s.watched(3,True)
    s.answered(now,a[1],0,False)
print('t11');s=S(500,1)
for _ in range(6):
    for a in al(s,0):s.answered(0,1,a[2],True);s.give(0,1,a[2])
a=s.poll(1);print(a);s.answered(2,1,500,True,100);print(s.charged(),al(s,2));s.give(3,1,50);print(al(s,3));s.acked(1);print(al(s,4))
print('t3');s=S(10,2);sv={1:0,2:0}
for now in range(400):
    for a in al(s,now):
        if a[0]=='F':sv[a[1]]+=a[2];s.answered(now,a[1],a[2],True);s.give(now,a[1],a[2])
        elif a[0]=='A':s.acked(a[1])
        else:print('watch!',now,a)
print(sv)
