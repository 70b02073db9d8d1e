package worker_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"runtime"
	"testing"
	"time"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/driver"
	"causeway/host/driver/drivertest"
	"causeway/host/worker"
	"causeway/host/worker/workertest"
	"causeway/remote"
	"causeway/remote/remotetest"
	"causeway/remote/resume"
)

// session is a guest and the worker that serves it, in one process.
type session struct {
	*workertest.Guest
	driver *drivertest.Session
	done   chan error
}

func start(t testing.TB) *session {
	t.Helper()
	return startOver(t, remotetest.Unix)
}

// startOver is start over any carrier.
func startOver(t testing.TB, carrier func() (remotetest.Ends, error)) *session {
	t.Helper()
	ends, err := carrier()
	if err != nil {
		t.Fatal(err)
	}
	return startOn(t, ends.Accept, func() (*workertest.Guest, error) {
		g, err := ends.Connect()
		if err != nil {
			return nil, err
		}
		return workertest.New(g), nil
	})
}

func startOn(t testing.TB, accept func() (remote.Carrier, error), connect func() (*workertest.Guest, error)) *session {
	t.Helper()
	s := &session{done: make(chan error, 1)}
	go func() {
		s.done <- serve(accept, &drivertest.Backend{OnOpen: func(d *drivertest.Session) { s.driver = d }})
	}()
	var err error
	if s.Guest, err = connect(); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Init(); err != nil {
		t.Fatal(err)
	}
	return s
}

// serve is the worker's side of a session, from its carrier to its end.
func serve(accept func() (remote.Carrier, error), b driver.Backend) error {
	c, err := accept()
	if err != nil {
		return err
	}
	w, err := worker.New(c, b, driver.Options{}, slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	if err := c.Welcome(0, ""); err != nil {
		return err
	}
	return w.Run(context.Background())
}

// overCarriers runs a test over each carrier: nothing above remote's interfaces may tell them
// apart.
func overCarriers(t *testing.T, test func(t *testing.T, s *session)) {
	for name, carrier := range remotetest.Carriers() {
		t.Run(name, func(t *testing.T) {
			check := leaks(t)
			test(t, startOver(t, carrier))
			check()
		})
	}
}

// leaks returns a function that fails if goroutines or descriptors are more than now.
func leaks(t *testing.T) func() {
	t.Helper()
	count := func() (goroutines, files int) {
		fds, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return runtime.NumGoroutine(), len(fds)
	}
	g0, f0 := count()
	return func() {
		t.Helper()
		var g, f int
		for late := time.Now().Add(time.Minute); time.Now().Before(late); time.Sleep(10 * time.Millisecond) {
			if g, f = count(); g <= g0 && f <= f0 {
				return
			}
		}
		t.Errorf("%d goroutines and %d descriptors became %d and %d", g0, f0, g, f)
	}
}

// finish ends the session and returns how the worker ended.
func (s *session) finish(t testing.TB) error {
	t.Helper()
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	select {
	case err := <-s.done:
		if !s.driver.Closed {
			t.Error("driver session is not closed")
		}
		if errors.Is(err, resume.ErrLost) {
			// A reset took the guest's goodbye with it: the worker has waited for another
			// connection.
			return nil
		}
		return err
	case <-time.After(time.Minute):
		t.Fatal("worker does not end with its guest")
		return nil
	}
}

func (s *session) must(t testing.TB, want cuda.Result, a wire.Args, r wire.Reply) {
	t.Helper()
	res, err := s.Call(0, a, r)
	if err != nil {
		t.Fatalf("%v: %v", a.Op(), err)
	}
	if res != want {
		t.Fatalf("%v: %v, want %v", a.Op(), res, want)
	}
}

func TestCalls(t *testing.T) { overCarriers(t, testCalls) }

func testCalls(t *testing.T, s *session) {
	var m wire.MemAllocReply
	s.must(t, cuda.Success, &wire.MemAllocArgs{Size: 40000}, &m)
	if m.Ptr != drivertest.FirstAddress {
		t.Errorf("allocated at %#x", m.Ptr)
	}
	data := bytes.Repeat([]byte("causeway"), 4000)
	if err := s.Send(&wire.MemcpyHtoDArgs{Dst: m.Ptr, Src: data}); err != nil {
		t.Fatal(err)
	}
	var back wire.MemcpyDtoHReply // longer than a slot: comes by ReplyMore
	s.must(t, cuda.Success, &wire.MemcpyDtoHArgs{Src: m.Ptr, Size: uint32(len(data))}, &back)
	if !bytes.Equal(back.Dst, data) {
		t.Error("bytes changed on their way")
	}
	s.must(t, cuda.ErrorNotSupported, &wire.CtxGetLimitArgs{}, nil)
	if err := s.finish(t); err != nil {
		t.Error(err)
	}
}

func TestDeferredErrors(t *testing.T) { overCarriers(t, testDeferredErrors) }

func testDeferredErrors(t *testing.T, s *session) {
	if err := s.Send(&wire.MemFreeArgs{Ptr: 0x1234}); err != nil {
		t.Fatal(err)
	}
	s.must(t, cuda.Success, &wire.SessionFenceArgs{}, nil)
	// Makes an object: cannot carry another's error.
	s.must(t, cuda.Success, &wire.MemAllocArgs{Size: 1}, nil)
	s.must(t, cuda.ErrorInvalidValue, &wire.CtxSynchronizeArgs{}, nil)
	s.must(t, cuda.Success, &wire.CtxSynchronizeArgs{}, nil)
	s.driver.Host.SetSticky(cuda.ErrorIllegalAddress)
	s.must(t, cuda.Success, &wire.SessionFenceArgs{}, nil) // a reply that follows brings it along
	if s.Sticky() != cuda.ErrorIllegalAddress {
		t.Error("sticky error is not published")
	}
	if err := s.finish(t); err != nil {
		t.Error(err)
	}
}

func TestPendingReply(t *testing.T) { overCarriers(t, testestPendingReply) }

func testestPendingReply(t *testing.T, s *session) {
	seq, err := s.Begin(3, &wire.StreamSynchronizeArgs{Stream: drivertest.Held})
	if err != nil {
		t.Fatal(err)
	}
	s.must(t, cuda.Success, &wire.SessionFenceArgs{}, nil) // the consumer goes on meanwhile
	go func() {
		time.Sleep(20 * time.Millisecond) // long enough for the guest to sleep
		s.driver.Finish(cuda.ErrorLaunchFailed)
	}()
	begin := time.Now()
	res, err := s.Finish(3, seq, nil)
	if err != nil || res != cuda.ErrorLaunchFailed {
		t.Fatalf("%v, %v", res, err)
	}
	if d := time.Since(begin); d > remotetest.Limit/2 {
		// Nothing but the wake-up ends the sleep before the limit.
		t.Errorf("woken after %v", d)
	}
	if err := s.finish(t); err != nil {
		t.Error(err)
	}
}

func TestBlobs(t *testing.T) { overCarriers(t, testBlobs) }

func testBlobs(t *testing.T, s *session) {
	image := bytes.Repeat([]byte{1, 2, 3, 4, 5}, 100_000)
	s.must(t, cuda.Success, &wire.ModuleLoadArgs{Module: 20, Image: image}, nil)
	if got := s.driver.Size(drivertest.FirstAddress); got != len(image) {
		t.Errorf("driver got %d bytes, not %d", got, len(image))
	}
	// A record that names bytes which never came fails alone.
	rec, err := (&wire.Encoder{Blob: func([]byte) (uint32, error) { return 99, nil }}).Record(nil,
		wire.Header{Flags: remote.RecordReply, Slot: 9, Seq: 1, Thread: 1}, &wire.ModuleLoadArgs{Module: 21, Image: image})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Append(rec); err != nil {
		t.Fatal(err)
	}
	if res, err := s.Finish(9, 1, nil); err != nil || res != cuda.ErrorInvalidValue {
		t.Errorf("missing blob: %v, %v", res, err)
	}
	if err := s.finish(t); err != nil {
		t.Error(err)
	}
}

func TestRegions(t *testing.T) { overCarriers(t, testRegions) }

func testRegions(t *testing.T, s *session) {
	var m wire.MemAllocReply
	s.must(t, cuda.Success, &wire.MemAllocArgs{Size: 8192}, &m)
	id, mem, res, err := s.AddRegion(0, wire.RegionStaging, 1<<20)
	if err != nil || res != cuda.Success {
		t.Fatal(res, err)
	}
	copy(mem[4096:], "staged")
	if err := s.Send(&wire.MemcpyStagedArgs{Region: id, Offset: 4096, Size: 6, Device: m.Ptr, Word: 5, Value: 7}); err != nil {
		t.Fatal(err)
	}
	if err := s.Send(&wire.MemcpyStagedArgs{Direction: 1, Region: id, Offset: 0, Size: 6, Device: m.Ptr, Word: 6, Value: 8}); err != nil {
		t.Fatal(err)
	}
	s.must(t, cuda.Success, &wire.SessionFenceArgs{}, nil)
	if s.Word(5) != 7 || s.Word(6) != 8 || string(mem[:6]) != "staged" {
		t.Errorf("words %d, %d, bytes %q", s.Word(5), s.Word(6), mem[:6])
	}
	if res, err := s.DropRegion(0, id); err != nil || res != cuda.Success {
		t.Fatal(res, err)
	}
	s.must(t, cuda.ErrorInvalidValue, &wire.RegionDropArgs{Region: id}, nil)
	if err := s.finish(t); err != nil {
		t.Error(err)
	}
}

func TestConsole(t *testing.T) { overCarriers(t, testConsole) }

func testConsole(t *testing.T, s *session) {
	var want []byte
	for i := range 3000 {
		line := bytes.Repeat([]byte{byte('a' + i%26)}, 40)
		want = append(want, line...)
		if err := s.Send(&wire.LaunchArgs{Func: 1, Params: line}); err != nil {
			t.Fatal(err)
		}
	}
	s.must(t, cuda.Success, &wire.SessionFenceArgs{}, nil)
	var got []byte
	for s.Console() != 0 {
		var r wire.ConsoleReadReply
		s.must(t, cuda.Success, &wire.ConsoleReadArgs{}, &r)
		got = append(got, r.Text...)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%d bytes of output came as %d", len(want), len(got))
	}
	if err := s.finish(t); err != nil {
		t.Error(err)
	}
}

// TestRingWraps sends more than the ring holds, in records of odd sizes, with the worker at times
// behind.
func TestRingWraps(t *testing.T) { overCarriers(t, testRingWraps) }

func testRingWraps(t *testing.T, s *session) {
	var m wire.MemAllocReply
	s.must(t, cuda.Success, &wire.MemAllocArgs{Size: 64 << 10}, &m)
	for i := range 400 {
		if err := s.Send(&wire.MemcpyHtoDArgs{Dst: m.Ptr, Src: bytes.Repeat([]byte{byte(i)}, 1+i*83%30000)}); err != nil {
			t.Fatal(err)
		}
	}
	s.must(t, cuda.Success, &wire.CtxSynchronizeArgs{}, nil)
	if err := s.finish(t); err != nil {
		t.Error(err)
	}
}

// TestViolations breaks a rule in each row: the session ends with an error that says so, and
// quickly.
func TestViolations(t *testing.T) {
	record := func(mod func(r []byte)) []byte {
		rec, _ := wire.AppendRecord(nil, wire.Header{Flags: remote.RecordReply, Slot: 1, Seq: 1}, &wire.MemAllocArgs{Size: 4096})
		mod(rec)
		return rec
	}
	for name, do := range map[string]func(g *session){
		"unknown op":      func(g *session) { _ = g.Append(record(func(r []byte) { r[4], r[5] = 0xfe, 0x7f })) },
		"size 0":          func(g *session) { _ = g.Append(record(func(r []byte) { r[0] = 0 })) },
		"size odd":        func(g *session) { _ = g.Append(record(func(r []byte) { r[0] = 41 })) },
		"size too long":   func(g *session) { _ = g.Append(record(func(r []byte) { r[2] = 0xff })) },
		"slot":            func(g *session) { _ = g.Append(record(func(r []byte) { r[8] = 64 })) },
		"seq 0":           func(g *session) { _ = g.Append(record(func(r []byte) { r[12] = 0 })) },
		"no reply wanted": func(g *session) { _ = g.Append(record(func(r []byte) { r[6] = 0 })) },
		"tail backwards":  func(g *session) { g.Publish(8) },
		"tail far ahead":  func(g *session) { g.Publish(1 << 40) },
		"tail unaligned":  func(g *session) { _ = g.Append(make([]byte, 32)); g.Publish(1) },
	} {
		t.Run(name, func(t *testing.T) {
			s := start(t)
			do(s)
			select {
			case err := <-s.done:
				if !errors.Is(err, remote.ErrProtocol) && !errors.Is(err, wire.ErrMalformed) {
					t.Errorf("ended with %v", err)
				}
			case <-time.After(time.Minute):
				t.Fatal("session goes on")
			}
			_ = s.Close()
		})
	}
}
