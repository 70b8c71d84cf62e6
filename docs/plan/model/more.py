from sim import *
# two hot brokers then one; drain with work per record (serial 0.02ms) ; and N=6 hot all
for N,C,bl,work in((3,500,[100000]*3,0),(6,500,[60000]*6,0),(3,500,[100000,100000,0],0.01),(2,500,[300000,10],0),(6,6,[2000]*6,0),(6,7,[2000,0,0,0,0,0],0)):
    s=Sim(N,C,bl,work=work);s.total=sum(bl);s.until_empty=True;s.run()
    print(N,C,bl,'t',round(s.t),'rate',round(s.got/s.t*1000),'hist',s.hist[:8],s.req,'max',s.maxheld)
