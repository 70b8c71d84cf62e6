from sim import *
s=Sim(3,500,[400000,0,0],prod=[(i*37.0,1) for i in range(1,300)],until=1200);s.run()
for l in s.sc.log:
    if 1000<l[0]<1090: print(tuple(round(x,2) if isinstance(x,float) else x for x in l))
