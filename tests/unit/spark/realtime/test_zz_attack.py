import random, os, sys, json
from tests.unit.spark.realtime.test_prepared import *
from dataclasses import replace as rep
SEED=int(os.environ.get("ATK","0"))
class Ops(BasicBolt):
    outputs=["n"]; remembers=["kv","mix","cols","two","lst"]
    def prepare(self, config, context):
        self.kv, self.mix = KeyValueState(), KeyValueState()
        self.cols, self.two = ColumnState(int,int), ColumnState(str,{"a":int,"b":float})
        self.lst=[]
    def execute(self, tup, collector):
        n=tup[0]; r=random.Random(SEED*100003+n)
        for _ in range(r.randint(1,6)):
            self.op(r,n)
        if n%7==6: raise ValueError("digest "+json.dumps(self.digest()))
    def digest(self):
        return [sorted(map(repr,self.kv.items())), len(self.kv), sorted(map(repr,self.mix.items())), sorted(map(repr,self.cols.items())), len(self.cols), sorted((k,repr(v)) for k,v in self.two.items()), len(self.two), self.lst[-3:]]
    def op(self,r,n):
        k=r.randint(0,12); w=r.randint(0,24)
        if w==0: self.kv[k]=n
        elif w==1: self.kv.pop(k,None)
        elif w==2: self.kv[str(k)]=self.kv.get(str(k),0)+1
        elif w==3: self.mix.setdefault(k,[]).append(n)
        elif w==4: self.mix[k]=n
        elif w==5: self.mix.pop(k,None)
        elif w==6:
            v=self.mix.get(k)
            if isinstance(v,list) and v: v.pop()
        elif w==7: self.mix[k]={"x":[n]}
        elif w==8:
            v=self.mix.get(k)
            if isinstance(v,dict): v["x"].append(n)
        elif w==9: self.cols[k]=n
        elif w==10: self.cols.pop(k,None)
        elif w==11: self.cols.add_many([k,k+1,k])
        elif w==12: self.two[str(k)]={"a":n,"b":n/2}
        elif w==13: self.two.pop(str(k),None)
        elif w==14:
            try:
                for i,key in enumerate(self.kv):
                    if i==1: self.kv[1000+n]=1
            except RuntimeError: pass
        elif w==15:
            try:
                for key in list(self.cols):
                    if key%3==0: del self.cols[key]
            except RuntimeError: pass
        elif w==16: self.kv[k]=n; self.mix.setdefault(k,[]); raise ValueError(f"middle {n}")
        elif w==17: self.cols[k]=n; self.two[str(k)]={"a":1,"b":2.0}; raise ValueError(f"middle {n}")
        elif w==18: self.kv.clear() if r.random()<.2 else None
        elif w==19: self.cols.clear() if r.random()<.2 else None
        elif w==20: self.lst.append(n)
        elif w==21: self.kv[k]=(n,(1,"a"))
        elif w==22: self.kv[k]=frozenset([n]); self.kv[(1,k)]=b"x"*3
        elif w==23: self.kv[k]=([n],) if r.random()<.5 else n
        elif w==24:
            v=self.kv.get(k)
            if isinstance(v,tuple) and v and isinstance(v[0],list): v[0].append(n)
def model(ns):
    topology, numbers = topology_of(Ops())
    with LocalCluster() as cluster:
        cluster.submit(topology)
        for n in ns:
            numbers.feed([n], message_id=n); cluster.advance(secs=0)
        return {m:f.reason for m,f in numbers.failed}, set(numbers.acked)
@pytest.mark.parametrize("kills",[0,1])
def test_fuzz(tmp_path, monkeypatch, kills, caplog):
    caplog.set_level("ERROR")
    made=[]
    def make(*a): made.append(ThreadedQuery(*a)); return made[-1]
    monkeypatch.setattr(submitting,"ResidentQuery",make)
    ns=range(210); r=random.Random(SEED+kills)
    bad, good = model(ns)
    got={}; acked=set()
    at=0
    while at<len(ns):
        n_here=ns[at:at+r.choice((30,70,210))]
        topology, numbers = topology_of(Ops())
        with submit(topology, checkpoint=tmp_path/"checkpoint", config=CONFIG if not (kills and r.random()<0) else rep(CONFIG,real_time=False)) as running:
            for n in n_here:
                numbers.feed([n], message_id=n)
                if kills and r.random()<.08: made[-1]._query.die()
                await_verdicts(running, numbers, [n])
        got.update((m,f.reason) for m,f in numbers.failed); acked|=set(numbers.acked)
        at+=len(n_here)
    assert acked==good
    diff={m:(bad[m],got.get(m)) for m in bad if bad[m].split(" in ")[0]!=got.get(m,"").split(" in ")[0]}
    first=min(diff,default=None)
    assert not diff, (first, diff[first])
