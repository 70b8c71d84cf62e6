import sched as S
from sim import *
for f in (1,2):
    S.Sched.wide=lambda s,f=f:s.C>=f*s.active()
    for N,C,bl in ((6,6,[6000,0,0,0,0,0]),(6,8,[6000,0,0,0,0,0]),(6,12,[6000]+[0]*5),(6,24,[20000]+[0]*5)):
        s=Sim(N,C,bl);s.total=sum(bl);s.until_empty=True;s.run();print('factor',f,'N',N,'C',C,'rate',round(s.got/s.t*1000),s.req)
