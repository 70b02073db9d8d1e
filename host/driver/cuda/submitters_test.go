package cuda

import (
	"encoding/binary"
	"math/rand/v2"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/driver"
	"causeway/host/driver/cuda/bind"
	"causeway/host/driver/cuda/cudatest"
)

// submitterHost keeps what a session tells its worker.
type submitterHost struct {
	driver.Host      // nothing else is asked
	deferred, sticky atomic.Uint32
}

func (h *submitterHost) SetSticky(r cuda.Result) { h.sticky.Store(uint32(r)) }
func (h *submitterHost) Deferred(r cuda.Result)  { h.deferred.Store(uint32(r)) }

const (
	submitterStreams = 5 // ids from 16; the first two in context 1, the others in 2
	submitterEvents  = 3 // ids from 32
	submitterKernel  = 48
)

// submitterSession is a session on the stand-in with streams, events and a kernel, and n submitters
// at most. Some functions take no time and are not remembered.
func submitterSession(t testing.TB, n int, quick ...string) (*session, *submitterHost) {
	runtime.LockOSThread() // the worker goroutine
	t.Cleanup(runtime.UnlockOSThread)
	h := &submitterHost{}
	functions := map[string]uint64{
		"cuCtxSetCurrent": cudatest.Address(cudatest.SetCurrent), "cuLaunchKernel": cudatest.Address(cudatest.Launch),
		"cuEventRecord": cudatest.Address(cudatest.Record), "cuStreamWaitEvent": cudatest.Address(cudatest.WaitEvent),
		"cuStreamWriteValue32_v2": cudatest.Address(cudatest.WriteValue), "cuEventQuery": cudatest.Address(cudatest.Query),
		"cuStreamQuery": cudatest.Address(cudatest.Query), "cuPointerGetAttribute": cudatest.Moving("cuPointerGetAttribute"),
		"cuStreamIsCapturing": cudatest.Address(cudatest.IsCapturing),
	}
	for _, name := range quick {
		functions[name] = cudatest.Address(cudatest.LaunchQuick)
	}
	s := newSession(bind.New(func(symbol string) uint64 { return functions[symbol] }), h, driver.Options{})
	s.regions[0] = everywhere()
	s.submitters.most = n
	for id := uint32(1); id <= 2; id++ {
		s.ctxs.put(id, &context_{handle: made[bind.Context](1000 * uint64(id))})
	}
	for i := range uint32(submitterStreams) {
		s.streams.put(16+i, &stream{handle: made[bind.Stream](uint64(16 + i)), ctx: 1 + min(i/2, 1), nonBlocking: true})
	}
	for i := range uint32(submitterEvents) {
		s.events.put(32+i, &event{handle: made[bind.Event](uint64(32 + i)), ctx: 1})
	}
	s.funcs.put(submitterKernel, &function{handle: made[bind.Function](1), layout: &bind.Layout{}})
	t.Cleanup(func() {
		s.submitters.drain(nil)
		s.submitters.stop()
		s.watch.stop()
	})
	return s, h
}

func params(n uint64) []byte { return binary.LittleEndian.AppendUint64(nil, n) }

// launch launches number n on a stream.
func (s *session) testLaunch(id uint32, n uint64) cuda.Result {
	s.Before(wire.OpLaunch, true)
	p := append(params(n), make([]byte, n*97%1000)...) // some are too long for an item
	res := s.Launch(&wire.Call{Op: wire.OpLaunch, Ctx: 1}, &wire.LaunchArgs{Func: submitterKernel, Stream: id, Gx: 1, Params: p})
	clear(p) // the ring's memory is used again
	return res
}

// replier is a slot: at its address the GPU answers.
type replier uintptr

func (replier) Reply(slot, seq uint32, res cuda.Result, payload []byte) {}
func (r replier) GPUDone(uint32) (uintptr, bool)                        { return uintptr(r), true }
func (replier) WakeSlot(slot, seq uint32)                               {}

// TestSubmittersKeepOrder submits random work on several streams, in two contexts, and checks the
// order of what was called: of each stream as submitted, of the records of an event and the waits
// for it as submitted, each in its stream's context, and before a wait returns everything of its
// stream.
func TestSubmittersKeepOrder(t *testing.T) {
	for name, most := range map[string]int{"none": 0, "two": 2, "many": maxSubmitters} {
		t.Run(name, func(t *testing.T) {
			s, h := submitterSession(t, most)
			cudatest.Reset(3000)
			r := rand.New(rand.NewPCG(7, uint64(most)))
			const turns = 20000
			want := []cudatest.Call{}
			answers := bind.NewBuffer(4 * (turns + 1)) // for the length of the process
			for n := uint64(1); n <= turns; n++ {
				i := uint32(r.IntN(submitterStreams))
				id, ev := 16+i, uint32(32+r.IntN(submitterEvents))
				c := cudatest.Call{Stream: uint64(id), Ctx: 1000 * uint64(1+min(i/2, 1))}
				var res cuda.Result
				switch k := r.IntN(100); {
				case k < 70:
					c.Kind, c.Number = cudatest.Launch, n
					res = s.testLaunch(id, n)
				case k < 80:
					c.Kind, c.Event = cudatest.Record, uint64(ev)
					s.Before(wire.OpEventRecord, true)
					res = s.EventRecord(&wire.Call{Op: wire.OpEventRecord, Ctx: 1}, &wire.EventRecordArgs{Event: ev, Stream: id})
				case k < 95:
					c.Kind, c.Event = cudatest.WaitEvent, uint64(ev)
					s.Before(wire.OpStreamWaitEvent, true)
					res = s.StreamWaitEvent(&wire.Call{Op: wire.OpStreamWaitEvent, Ctx: 1}, &wire.StreamWaitEventArgs{Event: ev, Stream: id})
				case k < 98:
					c.Kind, c.Number = cudatest.WriteValue, n
					s.Before(wire.OpStreamSynchronize, true)
					st, _ := s.streams.get(id)
					st.submitted++ // else the driver would be asked
					res = s.StreamSynchronize(&wire.Call{Op: wire.OpStreamSynchronize, Seq: uint32(n), Replier: replier(at(answers) + 4*n)},
						&wire.StreamSynchronizeArgs{Stream: id})
				default: // any other operation: all before it has been called when it runs
					s.Before(wire.OpMemAlloc, true)
					if got := cudatest.Calls(); len(got) != len(want) {
						t.Fatalf("%d of %d calls were made before an operation that orders all", len(got), len(want))
					}
					continue
				}
				if res != cuda.Success {
					t.Fatal(res)
				}
				want = append(want, c)
			}
			s.submitters.drain(nil)
			if most > 0 && len(s.submitters.all) == 0 {
				t.Error("no submitter was used")
			}
			check(t, want, cudatest.Calls())
			if h.deferred.Load() != 0 || h.sticky.Load() != 0 {
				t.Error("errors out of nowhere")
			}
		})
	}
}

// check compares two orders of the same calls by stream and by event.
func check(t *testing.T, want, got []cudatest.Call) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%d calls, want %d", len(got), len(want))
	}
	for _, key := range []func(c cudatest.Call) uint64{
		func(c cudatest.Call) uint64 { return c.Stream },
		func(c cudatest.Call) uint64 { return c.Event },
	} {
		a, b := map[uint64][]cudatest.Call{}, map[uint64][]cudatest.Call{}
		for i := range want {
			a[key(want[i])] = append(a[key(want[i])], want[i])
			b[key(got[i])] = append(b[key(got[i])], got[i])
		}
		delete(a, 0)
		for k := range a {
			for i := range a[k] {
				if i >= len(b[k]) || a[k][i] != b[k][i] {
					t.Fatalf("stream or event %d: call %d is %+v, want %+v", k, i, b[k][i], a[k][i])
				}
			}
		}
	}
}

// TestSubmitterErrors: what fails in a submitter is deferred, and after a fault nothing more goes
// to submitters.
func TestSubmitterErrors(t *testing.T) {
	s, h := submitterSession(t, 4)
	cudatest.Reset(30000)
	for n := range uint64(200) {
		if res := s.testLaunch(16+uint32(n%2), n+1); res != cuda.Success {
			t.Fatal(res)
		}
	}
	s.submitters.drain(nil)
	cudatest.FailNext(uint32(cuda.ErrorInvalidValue))
	if res := s.testLaunch(16, 1); res != cuda.Success {
		t.Errorf("a launch in a submitter failed at once: %v", res)
	}
	s.submitters.drain(nil)
	if got := cuda.Result(h.deferred.Load()); got != cuda.ErrorInvalidValue {
		t.Errorf("deferred: %v", got)
	}
	cudatest.FailNext(uint32(cuda.ErrorIllegalAddress))
	s.testLaunch(16, 1)
	s.submitters.drain(nil)
	if got := cuda.Result(h.sticky.Load()); got != cuda.ErrorIllegalAddress {
		t.Errorf("sticky: %v", got)
	}
	cudatest.FailNext(uint32(cuda.ErrorInvalidValue))
	if res := s.testLaunch(16, 1); res != cuda.ErrorInvalidValue {
		t.Errorf("a launch after a fault went to a submitter: %v", res)
	}
}

// TestSubmittersOnlyWhenBehind: a guest that the worker keeps up with is served by the worker's own
// thread.
func TestSubmittersOnlyWhenBehind(t *testing.T) {
	s, _ := submitterSession(t, 4)
	cudatest.Reset(0)
	for n := range uint64(1000) {
		s.Before(wire.OpLaunch, n%4 != 0)
		if res := s.Launch(&wire.Call{Op: wire.OpLaunch, Ctx: 1}, &wire.LaunchArgs{Func: submitterKernel, Stream: 16, Params: params(n)}); res != cuda.Success {
			t.Fatal(res)
		}
	}
	if len(s.submitters.all) != 0 {
		t.Error("submitters were made")
	}
}

// TestSubmittersSleep: submitters without work use no CPU, and wake for more.
func TestSubmittersSleep(t *testing.T) {
	s, _ := submitterSession(t, 4)
	cudatest.Reset(0)
	for round := range uint64(3) {
		for n := range uint64(300) {
			s.testLaunch(16+uint32(n%4), 1000*round+n)
		}
		s.submitters.drain(nil)
		end := time.Now().Add(time.Minute)
		for _, l := range s.submitters.all {
			for !l.asleep.Load() && time.Now().Before(end) {
				time.Sleep(time.Millisecond)
			}
			if !l.asleep.Load() {
				t.Fatal("a submitter does not sleep")
			}
		}
	}
	if got := len(cudatest.Calls()); got != 900 {
		t.Errorf("%d launches of 900", got)
	}
}

// TestKnownEvents: the driver is not asked for events that the worker knows are complete, and is
// for all others.
func TestKnownEvents(t *testing.T) {
	s, _ := submitterSession(t, 0)
	cudatest.Reset(0)
	for _, e := range s.events.m {
		e.plain = true
	}
	answer := bind.NewBuffer(4)
	record := func(ev uint32) {
		s.Before(wire.OpEventRecord, false)
		s.EventRecord(&wire.Call{Op: wire.OpEventRecord, Ctx: 1}, &wire.EventRecordArgs{Event: ev, Stream: 16})
	}
	query := func(ev uint32, asked bool, what string) {
		t.Helper()
		before := len(cudatest.Calls())
		s.Before(wire.OpEventQuery, false)
		if res := s.EventQuery(&wire.Call{Op: wire.OpEventQuery, Ctx: 1}, &wire.EventQueryArgs{Event: ev}); res != cuda.Success {
			t.Fatal(res)
		}
		if got := len(cudatest.Calls()) > before; got != asked {
			t.Errorf("%s: driver asked: %v", what, got)
		}
	}
	query(32, true, "never recorded")
	s.testLaunch(16, 1)
	record(32)
	query(32, true, "recorded")
	s.Before(wire.OpStreamSynchronize, false)
	s.StreamSynchronize(&wire.Call{Op: wire.OpStreamSynchronize, Seq: 1, Replier: replier(at(answer))}, &wire.StreamSynchronizeArgs{Stream: 16})
	query(32, false, "stream waited for")
	record(33)
	query(33, true, "recorded after the wait")
	query(32, false, "still known")
	record(32)
	query(32, true, "recorded again")
	s.Before(wire.OpGraphLaunch, false)
	query(32, true, "a graph may have recorded it")
}

// BenchmarkLaunch is the worker's own time for a launch, decoding included, beside a driver that
// takes none.
func BenchmarkLaunch(b *testing.B) {
	for name, most := range map[string]int{"inline": 0, "submitter": 1} {
		b.Run(name, func(b *testing.B) {
			s, _ := submitterSession(b, most, "cuLaunchKernel")
			d := wire.Dispatcher{Captures: s.Captures()}
			rec, err := wire.AppendRecord(nil, wire.Header{Ctx: 1}, &wire.LaunchArgs{Func: submitterKernel, Stream: 16, Gx: 1, Gy: 1, Gz: 1, Bx: 32, By: 1, Bz: 1, Params: make([]byte, 64)})
			if err != nil {
				b.Fatal(err)
			}
			c := wire.Call{Op: wire.OpLaunch, Ctx: 1}
			b.ReportAllocs()
			for b.Loop() {
				s.Before(wire.OpLaunch, true)
				if _, res, err := d.Dispatch(s, &c, rec, nil); err != nil || res != cuda.Success {
					b.Fatal(res, err)
				}
			}
		})
	}
}

// BenchmarkOperations is the worker's own time for other operations that submitters take, decoding
// included, beside a driver that takes none.
func BenchmarkOperations(b *testing.B) {
	for name, args := range map[string]wire.Args{
		"copy":   &wire.MemcpyArgs{Dst: 1 << 30, Src: 1 << 31, Size: 4096, Stream: 16},
		"record": &wire.EventRecordArgs{Event: 32, Stream: 16},
		"memset": &wire.MemsetArgs{Dst: 1 << 30, Element: 4, Width: 1024, Height: 1, Stream: 16},
	} {
		for submitter, most := range map[string]int{"inline": 0, "submitter": 1} {
			b.Run(name+"/"+submitter, func(b *testing.B) {
				s, _ := submitterSession(b, most, "cuMemcpyAsync", "cuEventRecord", "cuMemsetD32Async")
				d := wire.Dispatcher{Captures: s.Captures()}
				rec, err := wire.AppendRecord(nil, wire.Header{Ctx: 1}, args)
				if err != nil {
					b.Fatal(err)
				}
				c := wire.Call{Op: args.Op(), Ctx: 1}
				b.ReportAllocs()
				for b.Loop() {
					s.Before(c.Op, true)
					if _, res, err := d.Dispatch(s, &c, rec, nil); err != nil || res != cuda.Success {
						b.Fatal(res, err)
					}
				}
			})
		}
	}
}
