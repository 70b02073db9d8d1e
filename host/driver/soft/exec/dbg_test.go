package exec
import ("testing";"os";"fmt";"runtime";"reflect";"causeway/host/driver/soft/ptx")
func TestDump(t *testing.T){ b,err:=os.ReadFile(os.Getenv("PTX")); if err!=nil{t.Skip()}
 m,_:=ptx.Parse(b); mod,err:=Load(m,func(n string,s,a uint64,_ ptx.Space)(uint64,[]byte,error){return 4096,make([]byte,s),nil}); if err!=nil{t.Fatal(err)}
 for _,c:=range mod.funcs{ if c.name!=os.Getenv("FN"){continue}; fmt.Println(c.name,c.err,c.consts,c.slots,c.preds)
 for i,bl:=range c.blocks{ fmt.Println("block",i,"term",bl.term,"next",bl.next,"taken",bl.taken,"pred",bl.pred,bl.not)
  for _,o:=range bl.ops{ fmt.Println("   ",o.line,runtime.FuncForPC(reflect.ValueOf(o.fn).Pointer()).Name(),o.d,o.a,o.b,o.c,"p",o.p,o.q,o.imm)}}}}
