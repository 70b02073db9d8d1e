package device

import (
	"bytes"
	"context"
	"runtime"
	"runtime/debug"
	"sync/atomic"
	"syscall"
	"testing"

	"causeway/remote"
	"causeway/vhostuser/vhosttest"
	"causeway/virtio"
	"causeway/virtio/fs"
	"causeway/virtio/virtiotest"
)

// TestExtentsHoldTheirMemory: what a copy touches stays mapped, of the request and of the loans,
// also when it is taken back in the middle, as after too long, and its region leaves the VM.
func TestExtentsHoldTheirMemory(t *testing.T) {
	for _, in := range []bool{false, true} {
		inKernel(t, func(k *kernel) {
			zero := k.begin()
			k.want("region", k.declare(1, 2), 0)
			more := k.more() // for the ring keeps the memory that it lies in
			k.lend(loanAt(1, 0), more(1))
			k.lend(loanAt(1, pageSize), more(1))
			for range cap(k.d.hands) { // it waits for its turn
				k.d.hands <- struct{}{}
			}
			call := k.file.Read
			if in {
				call = k.file.Write
			}
			c, err := call(0, int64(remote.FileExtent|1<<44), more(2))
			if err != nil {
				t.Fatal(err)
			}
			k.settle()
			s := k.session()
			var e *extent
			for e = range s.extents {
			}
			// As routineExtent does, up to the first byte.
			var work copying
			s.mu.Lock()
			if !work.hold(e.req) {
				t.Error("a request that waits is not held")
			}
			work.pages = e.req.Segments()
			if errno := s.lentLocked(e, &work); errno != 0 {
				t.Error(errno)
			}
			s.mu.Unlock()
			k.d.mem.Clear() // all pages are taken back before
			k.settle()
			k.want("an extent whose memory goes", c, syscall.EAGAIN)
			if k.isLent(zero[0].GPA) {
				t.Error("a loan is left")
			}
			if e.req.Hold() != nil {
				t.Error("a request that was taken back is held")
			}
			func() {
				defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
				defer func() {
					if err := recover(); err != nil {
						t.Errorf("what is mapped there now was touched: %v", err)
					}
				}()
				if n, errno := work.run(e); n != 2*pageSize || errno != 0 {
					t.Errorf("%d bytes, %v", n, errno)
				}
			}()
			work.release()
			for range cap(k.d.hands) {
				<-k.d.hands
			}
			k.settle()
		})
	}
}

// more adds another region of memory, and allocates pages of it.
func (k *kernel) more() func(pages int) []virtiotest.Buffer {
	k.t.Helper()
	const gpa, size = 0x8000_0000, 1 << 20
	m, err := vhosttest.NewMemory(gpa, size)
	if err != nil {
		k.t.Fatal(err)
	}
	k.t.Cleanup(m.Close)
	fd, err := m.DupFD()
	if err == nil {
		err = k.d.mem.Add(fd, gpa, size, gpa, 0)
	}
	if err != nil {
		k.t.Fatal(err)
	}
	return func(pages int) []virtiotest.Buffer {
		at, b := m.Alloc(uint64(pages)*pageSize, pageSize)
		return []virtiotest.Buffer{{GPA: at, Bytes: b}}
	}
}

// TestExtentsAreCut: whoever takes memory back for QEMU's sake waits for no more than a step of the
// copies that are under way.
func TestExtentsAreCut(t *testing.T) {
	inKernel(t, func(k *kernel) {
		k.begin()
		s := k.session()
		e := &extent{}
		for name, end := range map[string]func(){"revoke": func() { s.Revoke(context.Background(), []fs.Request{}) }, "fail": func() { s.fail(errState) }} {
			e.cut.Store(false)
			s.mu.Lock()
			s.underway[e] = struct{}{}
			s.mu.Unlock()
			s.copying.RLock()
			done := make(chan struct{})
			go func() { end(); close(done) }()
			for i := 0; !e.cut.Load(); i++ {
				select {
				case <-done:
					t.Fatalf("%s does not wait for a copy", name)
				default:
					runtime.Gosched()
				}
				if i == 1e7 {
					t.Errorf("%s does not cut a copy", name)
					break
				}
			}
			s.copying.RUnlock()
			<-done
		}
		delete(s.underway, e)
	})
	const size = 8 * copyStep
	src, dst := bytes.Repeat([]byte{1}, size), make([]byte, size)
	var cut atomic.Bool
	cut.Store(true)
	if n := copySegments([]virtio.Segment{{Data: dst}}, []virtio.Segment{{Data: src}}, &cut); n != 0 {
		t.Errorf("%d bytes are copied of what was cut", n)
	}
	work := copying{pages: []virtio.Segment{{Data: dst}}, lent: []virtio.Segment{{Data: src}}}
	e := &extent{size: size}
	if n, errno := work.run(e); n != size || errno != 0 || !bytes.Equal(dst, src) {
		t.Errorf("%d bytes, %v", n, errno)
	}
	e.cut.Store(true)
	if n, errno := work.run(e); n != 0 || errno != syscall.EAGAIN {
		t.Errorf("of what was cut: %d bytes, %v", n, errno)
	}
}
