package ptx
import ("testing";"os";"fmt")
func TestSmoke(t *testing.T){ f:=os.Getenv("PTX"); if f==""{t.Skip()}; b,_:=os.ReadFile(f); m,err:=Parse(b); if err!=nil{t.Fatal(err)}; for _,f:=range m.Funcs{fmt.Println(f.Name,len(f.Body),len(f.Regs),len(f.Labels))} }
