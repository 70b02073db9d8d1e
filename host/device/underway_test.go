package device_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/api"
	"causeway/host/device"
	"causeway/host/worker/workertest"
	"causeway/vhostuser"
	"causeway/vhostuser/vhosttest"
	"causeway/virtio/fs/fstest"
)

// movesEnv is how often TestMovesUnderWay moves its VM; a few times by default.
const movesEnv = "CAUSEWAY_TEST_MOVES"

// TestMovesUnderWay: a VM moves to and fro while its program, on a server's GPU, submits without a
// pause: work of streams that wait for each other by events, and copies over connections of their
// own. Each piece of work leaves a trace that everything after it takes along, so one that is lost,
// done twice or out of order shows for good. And of the guest's memory nothing may change while
// QEMU sends it but what the dirty log says: what a relay, a device or a worker writes beside the
// log would be lost to a VM that moves to other memory than this one, which is the same all the
// time.
func TestMovesUnderWay(t *testing.T) {
	moves := 4
	if n, err := strconv.Atoi(os.Getenv(movesEnv)); err == nil {
		moves = n
	}
	server := newRelayServer(t)
	server.gpu = "soft"
	at, other := bootWith(t, server.options), bootWith(t, server.options)
	server.endsFirst(t)
	emptied(t, other)
	p, g := start(t, at)
	w := newWeave(t, g)
	var stop atomic.Bool
	go func() {
		w.err = w.run(&stop)
		close(w.over)
	}()
	devices := []*device.Device{at.device, other.device}
	sockets := []string{at.socket, other.socket}
	refused := 0
	for n := 0; n < moves; {
		w.goesOn(t)
		log := newDirtyLog(t, at)
		devices[n%2].SetHandover(api.Handover{Host: "hostb"})
		before := p.snapshot()
		if err := at.Front.SetFeatures(vhostuser.Features); err != nil {
			t.Fatal(err)
		}
		w.goesOn(t)
		if err := at.StopRings(); err != nil {
			t.Fatal(err)
		}
		state, err := at.Save()
		if errors.Is(err, fstest.ErrRefused) && refused < 100 {
			// A connection for copies was not there again.
			refused++
			if err := at.StartRings(); err != nil {
				t.Fatal(err)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if unmarked := p.unmarked(before, log); len(unmarked) > 0 {
			t.Fatalf("move %d: %d pages of the guest changed and are not in the dirty log: %s", n, len(unmarked), unmarked[0])
		}
		n++
		arrive(t, at, sockets[n%2], state)
		eventually(t, "not all connections are made again", func() bool { return server.connections() >= relayBranches+n*(1+relayBranches) })
	}
	w.goesOn(t)
	stop.Store(true)
	await(t, "the program does not end", w.over)
	if w.err != nil {
		t.Error(w.err)
	}
	t.Logf("%d moves, %d refused, %d rounds", moves, refused, w.rounds.Load())
	if err := g.Close(); err != nil {
		t.Error(err)
	}
	if len(server.workers) != 1 {
		t.Errorf("%d workers at the server", len(server.workers))
	}
}

// dirtyLog is a bitmap of the guest's pages.
type dirtyLog []byte

// newDirtyLog has a device know where to mark pages; it does once the feature is on.
func newDirtyLog(t *testing.T, v *vm) dirtyLog {
	t.Helper()
	size := (v.Mem.GPA+uint64(len(v.Mem.Bytes)))/4096/8 + 8
	fd, err := unix.MemfdCreate("dirty-log", unix.MFD_CLOEXEC)
	if err == nil {
		err = unix.Ftruncate(fd, int64(size))
	}
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	bits, err := unix.Mmap(fd, 0, int(size), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Munmap(bits) })
	if _, err := v.Front.GetU64(vhostuser.SetLogBase, vhosttest.U64(size, 0), fd); err != nil {
		t.Fatal(err)
	}
	return bits
}

// snapshot is what is in the pages that a program lends, by their guest-physical addresses.
func (p *process) snapshot() map[uint64][]byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	pages := map[uint64][]byte{}
	for _, piece := range p.pieces {
		for _, b := range piece {
			pages[b.GPA] = bytes.Clone(b.Bytes)
		}
	}
	return pages
}

// unmarked are pages of a snapshot that are not what they were, and that the log has not. Nobody
// may touch them now but the program.
func (p *process) unmarked(before map[uint64][]byte, log dirtyLog) (list []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for at, piece := range p.pieces {
		for _, b := range piece {
			page := b.GPA / 4096
			if log[page/8]>>(page%8)&1 == 0 && !bytes.Equal(before[b.GPA], b.Bytes) {
				list = append(list, fmt.Sprintf("loan %#x, page %#x", at, page))
			}
		}
	}
	return list
}

// A weave is a program whose streams push words into histories of their own, and take their
// neighbours' along.
type weave struct {
	t      *testing.T
	g      *workertest.Guest
	region uint32
	back   []byte // what was copied of the histories
	at     uint64 // of the histories: two for each stream, in turn the current one
	want   [weaveStreams][]uint32
	steps  uint32
	rounds atomic.Int64
	moved  chan struct{} // one place: a round is over
	over   chan struct{} // closed when there are no more; err is there then
	err    error
}

// Histories are as long as a copy that goes by connections of its own, all together.
const (
	weaveStreams = 4
	weaveWords   = 64 << 10
	weaveSize    = 4 * weaveWords
	weaveAhead   = 24 // steps of a round
	firstStream  = 40
	firstEvent   = 60
)

func newWeave(t *testing.T, g *workertest.Guest) *weave {
	t.Helper()
	w := &weave{t: t, g: g, moved: make(chan struct{}, 1), over: make(chan struct{})}
	must(t, g, &wire.PrimaryCtxRetainArgs{Ctx: 16}, &wire.PrimaryCtxRetainReply{})
	g.Ctx = 16
	var m wire.MemAllocReply
	must(t, g, &wire.MemAllocArgs{Size: 2 * weaveStreams * weaveSize}, &m)
	w.at = m.Ptr
	must(t, g, &wire.MemsetArgs{Dst: m.Ptr, Element: 1, Width: 2 * weaveStreams * weaveSize, Height: 1, Stream: wire.StreamLegacy}, nil)
	must(t, g, &wire.CtxSynchronizeArgs{}, nil) // no stream of those below waits for the legacy one
	for i := range weaveStreams {
		must(t, g, &wire.StreamCreateArgs{Stream: wire.ID(firstStream + i), Flags: cuda.StreamNonBlocking}, nil)
		must(t, g, &wire.EventCreateArgs{Event: wire.ID(firstEvent + i), Flags: cuda.EventDisableTiming}, nil)
		w.want[i] = make([]uint32, weaveWords)
	}
	id, mem, res, err := g.AddRegion(0, wire.RegionStaging, weaveStreams*weaveSize)
	if err != nil || res != cuda.Success {
		t.Fatal(res, err)
	}
	w.region, w.back = id, mem
	return w
}

// run makes rounds, and looks after each whether the histories are what they should be.
func (w *weave) run(stop *atomic.Bool) error {
	for !stop.Load() {
		for range weaveAhead {
			if err := w.step(); err != nil {
				return err
			}
		}
		if err := w.check(); err != nil {
			return err
		}
		w.rounds.Add(1)
		select {
		case w.moved <- struct{}{}:
		default:
		}
	}
	return nil
}

// step has each stream shift its history by two words, for its neighbour's latest and one of its
// own.
func (w *weave) step() error {
	w.steps++
	var errs []error
	send := func(a wire.Args) { errs = append(errs, w.g.Send(a)) }
	from, to := w.half(w.steps), w.half(w.steps+1)
	for i := range uint64(weaveStreams) {
		st, own, neighbour := wire.Stream(firstStream+i), uint32(w.steps*8)+uint32(i), (i+weaveStreams-1)%weaveStreams
		send(&wire.MemcpyArgs{Dst: to + i*weaveSize, Src: from + i*weaveSize + 8, Size: weaveSize - 8, Stream: st})
		if i > 0 {
			send(&wire.StreamWaitEventArgs{Stream: st, Event: wire.ID(firstEvent + neighbour)})
			send(&wire.MemcpyArgs{Dst: to + (i+1)*weaveSize - 8, Src: to + (neighbour+1)*weaveSize - 4, Size: 4, Stream: st})
		}
		send(&wire.StreamWriteValueArgs{Stream: st, Addr: to + (i+1)*weaveSize - 4, Value: uint64(own), Width: 4})
		send(&wire.EventRecordArgs{Event: wire.ID(firstEvent + i), Stream: st})
		latest := uint32(0) // nobody writes there for the first stream, which has no neighbour
		if i > 0 {
			latest = w.want[neighbour][weaveWords-1]
		}
		w.want[i] = append(w.want[i][2:], latest, own)
	}
	for i := range weaveStreams - 1 { // nobody writes what a neighbour reads still
		send(&wire.StreamWaitEventArgs{Stream: wire.Stream(firstStream + i), Event: firstEvent + weaveStreams - 1})
	}
	return errors.Join(errs...)
}

// half is where the histories lie before a step.
func (w *weave) half(step uint32) uint64 { return w.at + uint64(step%2)*weaveStreams*weaveSize }

// check has the histories copied to the guest's memory, and compares.
func (w *weave) check() error {
	for i := range weaveStreams {
		a := &wire.MemcpyStagedArgs{
			Direction: 1, Region: w.region, Offset: uint64(i) * weaveSize, Size: weaveSize, Device: w.half(w.steps+1) + uint64(i)*weaveSize,
			Stream: wire.Stream(firstStream + i), Word: uint32(i), Value: w.steps,
		}
		if err := w.g.Send(a); err != nil {
			return err
		}
	}
	for i := range weaveStreams {
		if res, err := w.g.Call(0, &wire.StreamSynchronizeArgs{Stream: wire.Stream(firstStream + i)}, nil); err != nil || res != cuda.Success {
			return fmt.Errorf("stream %d: %w, %w", i, res, err)
		}
	}
	if res, err := w.g.Call(0, &wire.SessionFenceArgs{}, nil); err != nil || res != cuda.Success {
		return fmt.Errorf("fence: %w, %w", res, err)
	}
	for i := range weaveStreams {
		if n := w.g.Word(uint32(i)); n != w.steps {
			return fmt.Errorf("step %d: the copy of stream %d has ended at %d", w.steps, i, n)
		}
		for k, want := range w.want[i] {
			if got := binary.LittleEndian.Uint32(w.back[i*weaveSize+4*k:]); got != want {
				return fmt.Errorf("step %d: word %d of stream %d is %#x, not %#x", w.steps, k, i, got, want)
			}
		}
	}
	return nil
}

// goesOn waits until a round is over that is not now.
func (w *weave) goesOn(t *testing.T) {
	t.Helper()
	for n := w.rounds.Load(); w.rounds.Load() < n+1; {
		select {
		case <-w.moved:
		case <-w.over:
			t.Fatalf("the program has ended after %d rounds: %v", w.rounds.Load(), w.err)
		case <-time.After(hangs):
			standsStill(t, "the program makes no rounds")
		}
	}
}
