package device_test

import (
	"encoding/binary"
	"net/http"
	"os"
	"strings"
	"testing"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/api"
	"causeway/host/device"
	"causeway/host/driver"
	cudadriver "causeway/host/driver/cuda"
	"causeway/host/worker/link"
)

// shiftedGPU is a real GPU, on which another module is loaded ahead of each that is
// loaded again, so that variables come out beside where they were.
const shiftedGPU = "shifted"

type shifted struct{ *cudadriver.Backend }

func newShifted() (shifted, error) {
	b, err := cudadriver.New()
	return shifted{b}, err
}

func (b shifted) Open(h driver.Host, o driver.Options) (driver.Session, error) {
	s, err := b.Backend.Open(h, o)
	if err != nil {
		return nil, err
	}
	return shiftedSession{s, s.(driver.Precopier)}, nil
}

type shiftedSession struct {
	driver.Session
	driver.Precopier
}

// shiftedModule is the other module.
const shiftedModule = 9000

func (s shiftedSession) ModuleLoad(c *wire.Call, a *wire.ModuleLoadArgs, r *wire.ModuleLoadReply) cuda.Result {
	if c.Replay {
		other, b := wire.Call{Op: c.Op, Ctx: c.Ctx, Thread: c.Thread}, *a
		b.Module = shiftedModule
		if res := s.Session.ModuleLoad(&other, &b, &wire.ModuleLoadReply{}); res != cuda.Success {
			return res
		}
	}
	return s.Session.ModuleLoad(c, a, r)
}

// variable is a program that counts in a variable of its code.
type variable struct {
	*counting
	times uint32
}

func countsInCode(t *testing.T, v *vm) *variable {
	t.Helper()
	p := &variable{counting: counts(t, v)}
	must(t, p.Guest, &wire.ModuleLoadArgs{Module: tallyModule, Image: []byte(tallyPTX)}, &wire.ModuleLoadReply{})
	must(t, p.Guest, &wire.ModuleGetFunctionArgs{Module: tallyModule, Func: tallyAdd, Name: []byte("add")}, &wire.ModuleGetFunctionReply{})
	return p
}

// add has a kernel count, and looks at the variable.
func (p *variable) add(t *testing.T) {
	t.Helper()
	p.times++
	params := binary.LittleEndian.AppendUint64(nil, p.at+64)
	params = binary.LittleEndian.AppendUint64(params, 1)
	if err := p.Guest.Send(&wire.LaunchArgs{Func: tallyAdd, Gx: 1, Gy: 1, Gz: 1, Bx: 1, By: 1, Bz: 1, Params: params[:12], Stream: wire.StreamLegacy}); err != nil {
		t.Fatal(err)
	}
	var at wire.ModuleGetGlobalReply
	must(t, p.Guest, &wire.ModuleGetGlobalArgs{Module: tallyModule, Name: []byte("tally")}, &at)
	var r wire.MemcpyDtoHReply
	must(t, p.Guest, &wire.MemcpyDtoHArgs{Src: at.Ptr + tallyAt, Size: 4, Stream: wire.StreamLegacy}, &r)
	if n := binary.LittleEndian.Uint32(r.Dst); n != p.times {
		t.Fatalf("the variable is %d after %d launches", n, p.times)
	}
}

// TestServersOnGPU: a program with a variable in its code goes to another GPU server, where that
// comes out where it was; where it would come out elsewhere the rehearsal says so by name, with the
// variable, and the program goes on where it is.
func TestServersOnGPU(t *testing.T) {
	gpu := "soft"
	if name := os.Getenv(gpuEnv); name == "cuda" || name == nestedGPU {
		gpu = "cuda"
	}
	one, two, odd := newRelayServer(t), newRelayServer(t), newRelayServer(t)
	base := link.DrawBase()
	for _, s := range []*relayServer{one, two, odd} {
		s.moves, s.gpu, s.base = true, gpu, base
	}
	odd.gpu = shiftedGPU
	v := bootWith(t, func(o *device.Options) { one.options(o); o.Tree.GPU = "Test GPU" })
	for _, s := range []*relayServer{one, two, odd} {
		s.endsFirst(t)
	}
	p := countsInCode(t, v)
	p.add(t)
	c := control(t, v, func() {})
	goes := func(to *relayServer) (did api.Relocated, err error) {
		return did, c.Do(context(), http.MethodPost, "/v1/divert", to.diversion(), &did)
	}
	if gpu == "cuda" { // the software GPU is told where variables were
		_, err := goes(odd)
		for _, want := range []string{"it cannot be rebuilt there: ", "variable tally of module 40 comes out at "} {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("where it would come out elsewhere: %v, want %q", err, want)
			}
		}
		t.Log(err)
	}
	p.add(t)
	did, err := goes(two)
	if err != nil || did.Sessions != 1 || did.Lost != 0 || did.Rounds == 0 {
		t.Errorf("%+v, %v", did, err)
	}
	p.add(t)
	t.Logf("to another server in %d ms, of which it stood %d, behind %d rounds", did.Nanos/1e6, did.Stood/1e6, did.Rounds)
	if err := p.Close(); err != nil {
		t.Error(err)
	}
}
