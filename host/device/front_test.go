package device_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/worker/workertest"
	"causeway/remote/remotetest"
	"causeway/virtio/fs/fstest"
)

// These make TestFront a VM's front end on a device that runs elsewhere, for scripts/soak.sh: a
// socket, how long, how many programs at a time, how many seconds each waits for the next one, and
// a file that ends it as soon as it is there.
const (
	socketEnv   = "CAUSEWAY_FRONT_SOCKET"
	secondsEnv  = "CAUSEWAY_FRONT_SECONDS"
	programsEnv = "CAUSEWAY_FRONT_PROGRAMS"
	restEnv     = "CAUSEWAY_FRONT_REST"
	stopEnv     = "CAUSEWAY_FRONT_STOP"
)

// TestFront has a VM's programs come and go, and holds every byte against what they wrote: some
// exit, some are killed, some stop for longer than their loans last. A limit that was lowered may
// refuse memory; a device that is gone ends it. Without a socket it has a device of its own, for a
// program that exits and one that is killed.
func TestFront(t *testing.T) {
	f := &front{t: t}
	socket, programs, least, end := os.Getenv(socketEnv), 1, 2, time.Now()
	if socket == "" {
		f.vm = movingVMWith(t, lapses)
	} else {
		g, err := fstest.Connect(socket, fstest.Options{Memory: 2 << 30})
		if err != nil {
			t.Fatal(err)
		}
		f.vm = &vm{Guest: g, t: t, socket: filepath.Dir(socket), whole: os.Getenv(gpuEnv) == nestedGPU}
		t.Cleanup(func() { _ = g.Kill() })
		seconds, _ := strconv.Atoi(os.Getenv(secondsEnv))
		end = time.Now().Add(time.Duration(seconds) * time.Second)
		least = 0
		if n, err := strconv.Atoi(os.Getenv(programsEnv)); err == nil {
			programs = n
		}
	}
	rest, _ := time.ParseDuration(os.Getenv(restEnv) + "s")
	var wg sync.WaitGroup
	for i := range programs {
		wg.Go(func() {
			for n := 0; n < least || time.Now().Before(end) && !stopped(); n++ {
				if err := f.program(uint32(1000*i+n), n%4); err != nil {
					if f.gone(err) {
						return
					}
					t.Errorf("program %d of %d: %v", n, i, err)
					return
				}
				time.Sleep(rest)
			}
		})
	}
	wg.Wait()
	fmt.Printf("programs %d refused %d gone %v\n", f.ran.Load(), f.refused.Load(), f.lost.Load())
}

// stopped reports whether the file that ends it is there.
func stopped() bool {
	_, err := os.Stat(os.Getenv(stopEnv))
	return os.Getenv(stopEnv) != "" && err == nil
}

type front struct {
	t            *testing.T
	vm           *vm
	ran, refused atomic.Int64
	lost         atomic.Bool
}

// gone reports whether the device's end explains an error.
func (f *front) gone(err error) bool {
	if os.Getenv(socketEnv) == "" {
		return false
	}
	if _, e := f.vm.Lookup(1, "session"); e == nil && !errors.Is(err, workertest.ErrGone) {
		return false
	}
	f.lost.Store(true)
	return true
}

// program is one process's life. how: 0 exits, 1 is killed, 2 is stopped for a while, 3 is killed
// while it is stopped.
func (f *front) program(pid uint32, how int) error {
	p, g, err := f.vm.exec(pid)
	if err != nil {
		return fmt.Errorf("start: %w", err)
	}
	f.ran.Add(1)
	defer p.halt()
	call := func(a wire.Args, r wire.Reply) error {
		res, err := g.Call(0, a, r)
		if err == nil && res != cuda.Success {
			err = res
		}
		return err
	}
	if err := call(&wire.PrimaryCtxRetainArgs{Ctx: 5}, nil); errors.Is(err, cuda.ErrorOutOfMemory) {
		f.refused.Add(1)
		return g.Close()
	} else if err != nil {
		return fmt.Errorf("context: %w", err)
	}
	g.Ctx = 5
	_, back, res, err := g.AddRegion(0, wire.RegionPinned, mostWork)
	if err == nil && res != cuda.Success {
		err = res
	}
	if err != nil {
		return fmt.Errorf("pinned memory: %w", err)
	}
	for range 3 {
		if err := f.work(g, back, call); errors.Is(err, cuda.ErrorOutOfMemory) {
			f.refused.Add(1)
		} else if err != nil {
			return err
		}
		if how == 2 {
			p.stop(true)
			time.Sleep(2500 * time.Millisecond)
			p.stop(false)
		}
	}
	switch how {
	case 1, 3: // nobody renews its loans, and its file is closed when they have ended
		p.stop(true)
		p.halt()
		for begin := time.Now(); p.pending() > 0; time.Sleep(10 * time.Millisecond) {
			if time.Since(begin) > time.Minute {
				return errors.New("its loans do not end")
			}
		}
		return errors.Join(p.file.Close(), p.mem.Close())
	}
	return g.Close()
}

// mostWork is what work writes at most, in bytes.
const mostWork = 15 * 4096

// work writes memory, has it copied to pinned memory, and compares. Small copies into replies are
// not asked for: how they come is the back end's.
func (f *front) work(g *workertest.Guest, back []byte, call func(wire.Args, wire.Reply) error) error {
	size := 4096 * (1 + rand.IntN(mostWork/4096))
	var m wire.MemAllocReply
	if err := call(&wire.MemAllocArgs{Size: uint64(size)}, &m); err != nil {
		return fmt.Errorf("allocate: %w", err)
	}
	want := make([]byte, size)
	for i := range want {
		want[i] = byte(rand.Uint32())
	}
	clear(back)
	err := errors.Join(
		g.Send(&wire.MemcpyHtoDArgs{Dst: m.Ptr, Stream: wire.StreamLegacy, Src: want}),
		g.Send(&wire.MemcpyArgs{Dst: remotetest.Address(back), Src: m.Ptr, Size: uint64(size), Stream: wire.StreamLegacy}),
		call(&wire.CtxSynchronizeArgs{}, nil))
	if err == nil && !bytes.Equal(back[:size], want) {
		err = fmt.Errorf("%d bytes came back as others", size)
	}
	return errors.Join(err, call(&wire.MemFreeArgs{Ptr: m.Ptr}, nil))
}
