SWEEP,WATCH,TURN,TINY,LINGER,WDELAY=500,5000,50,5,20,20
PMIN,PMAX,GROW,WMIN=50,500,8,8
class B:
    def __init__(s):
        s.active=True;s.ready=False;s.want=1;s.lane=None;s.watching=False;s.seen=False;s.held=0;s.due=0;s.due_since=0
        s.urgent=False;s.renew=False;s.asked=None;s.gave=0;s.retry=0;s.turn=0;s.fruit=0;s.watchms=0
    def lc(s): return 0 if s.lane is None else (max(s.lane[1],s.lane[2]) if s.lane[0]=='F' else s.lane[1])
    def charge(s): return s.held+s.lc()
    def idle(s,now): return s.lane is None and s.retry<=now
    def sweep(s): return 0 if s.asked is None else s.asked+SWEEP
class Sched:
    def __init__(s,C,wait=500): s.C=C;s.wait=wait;s.b={};s.q=[];s.demand=0;s.turn=None;s.log=[]
    def charged(s): return sum(b.charge() for b in s.b.values())+sum(c for c,_ in s.q)
    def free(s): return max(0,s.C-s.charged())
    def active(s): return sum(b.active for b in s.b.values())
    def wide(s): return s.C>=s.active()
    def cap(s): return max(1,s.C//(4*max(1,s.active())))
    def park(s): return min(PMAX,max(PMIN,s.wait))
    def brokers(s,ns):
        for n in ns: s.b.setdefault(n,B()).active=True
    def give(s,now,n,k,urgent=False):
        b=s.b[n]
        if b.due==0:b.due_since=now
        b.due=min(b.held,b.due+k); b.urgent|=urgent and b.due>0
    def answered(s,now,n,acq,more,refused=0):
        b=s.b[n];_,cr,_,seen=b.lane;b.lane=None;b.held+=acq+refused
        if acq>0:
            b.gave=now;b.fruit=0;b.ready=b.active
            b.want=min(s.C*GROW,max(b.want,cr)*GROW) if acq>=cr or more else min(s.C*GROW,max(WMIN,2*acq))
        else:
            b.ready=b.seen and b.active;b.want=1;b.watchms=now+(WDELAY if s.wide() else 0)
            if seen:
                st=min(b.fruit,16);b.fruit+=1
                if st>0:b.watchms=now+min(500,10<<(st-1))
    def acked(s,n,refused=0):
        b=s.b[n];b.lane=None;b.held+=refused
    def lost(s,n,until):
        b=s.b[n];c=b.lc();b.lane=None;b.ready=False;b.want=1;b.asked=None
        if c:s.q.append((c,until))
    def watched(s,n,seen,again=0):
        b=s.b[n];b.watching=False;b.watchms=max(b.watchms,again)
        if seen:b.seen=b.ready=True
    def let_go(s,n,k,due):
        b=s.b[n];b.held=max(0,b.held-k);b.due=min(b.held,max(0,b.due-due))
    def poll(s,now):
        s.q=[x for x in s.q if x[1]>now]
        return s.fetch(now) or s.alone(now) or s.watch(now)
    def fetch(s,now):
        if s.demand==0:return None
        free,cap,wide=s.C-s.charged(),s.cap(),s.wide()
        s.choose(now,cap);unmet=0
        small=[];quiet=[];turn=[]
        for n,b in sorted(s.b.items()):
            if not(b.active and b.idle(now)):continue
            if b.ready and b.want>cap:
                if s.turn and s.turn[0]==n:turn=[(n,b.want,'backlog')]
            elif b.ready:small.append((-1 if b.asked is None else b.asked,n,b.want,'seen' if b.seen else 'few'))
            elif s.demand==2:
                if wide and b.held==0:quiet.append((-b.gave,n,1,'sentinel'))
                elif b.sweep()<=now:quiet.append((-b.gave,n,1,'sweep'))
        small.sort();quiet.sort()
        for n,want,why in [x[1:] for x in small]+[x[1:] for x in quiet]+turn:
            b=s.b[n];hand=max(0,b.due+free-unmet);m=min(want,hand)
            if why=='backlog' and s.demand==1 and hand<(s.C+1)//2:continue
            if m==0:unmet+=min(want,cap);continue
            w=s.park() if why=='sentinel' else TINY if why in('seen','backlog') else 0
            acks=b.due;b.due=0;b.held-=acks;assert m<=acks+max(0,free)
            b.lane=('F',m,acks,b.seen);b.seen=False;b.asked=now;b.urgent=False
            s.log.append((now,n,'fetch',m,w,acks,why));return ('F',n,m,w,acks)
    def choose(s,now,cap):
        hot=lambda b:b.active and b.ready and b.want>cap and b.retry<=now
        w=[n for n,b in s.b.items() if hot(b)]
        if s.turn and s.turn[0] in w and (now<s.turn[1]+TURN or not any(n!=s.turn[0] for n in w)):return
        before=s.turn[0] if s.turn else None
        if not w:s.turn=None;return
        n=min(w,key=lambda n:(n==before,s.b[n].turn));s.turn=(n,now);s.b[n].turn=now
    def alone(s,now):
        for n,b in s.b.items():
            if b.due>0 and b.idle(now) and(b.urgent or s.demand==2 or b.due_since+LINGER<=now):
                a=b.due;b.due=0;b.held-=a;b.lane=('A',a);b.urgent=False
                s.log.append((now,n,'ack',0,0,a,''));return('A',n,a)
    def watch(s,now):
        if s.demand!=2:return None
        for n,b in s.b.items():
            if b.active and not b.ready and not b.watching and b.idle(now) and b.watchms<=now:
                b.watching=True;s.log.append((now,n,'watch',0,0,0,''));return('W',n)
    def timeouts(s):
        for _,u in s.q:yield u
        for b in s.b.values():
            if b.lane is not None:continue
            yield b.retry
            if b.due:yield b.due_since+LINGER
            if s.demand==2 and not b.ready and b.active:
                yield b.sweep()
                if not b.watching:yield b.watchms
