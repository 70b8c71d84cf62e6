import sched as S, multi as M
import importlib
for f in (1,2,4):
    S.Sched.wide=lambda s,f=f:s.C>=f*s.active()
    print('factor',f)
    for C in (6,12,24):
        M.go(f' 1 member C{C} N6 300/s 2ms',1,6,C,300,2)
