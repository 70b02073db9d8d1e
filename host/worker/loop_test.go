package worker_test

import (
	"testing"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/driver"
	"causeway/host/driver/drivertest"
	"causeway/host/worker/workertest"
	"causeway/remote"
	"causeway/remote/remotetest"
	"causeway/remote/shm"
)

// ordering is a session that is told of each operation before it. The consumer's, read after it has
// ended.
type ordering struct {
	driver.Session
	told map[wire.Op]int
}

func (o *ordering) Before(op wire.Op, _ bool) { o.told[op]++ }

// orderingBackend opens one.
type orderingBackend struct {
	drivertest.Backend
	session *ordering
}

func (b *orderingBackend) Open(h driver.Host, o driver.Options) (driver.Session, error) {
	s, err := b.Backend.Open(h, o)
	if err != nil {
		return nil, err
	}
	b.session = &ordering{s, map[wire.Op]int{}}
	return b.session, nil
}

// Records that pad to the ring's end are nobody's operation: a session that let its submitters run
// empty for each would do so once in every turn.
func TestSkipsAreNoOperations(t *testing.T) {
	check := leaks(t)
	gc, hc, err := remotetest.Pair()
	if err != nil {
		t.Fatal(err)
	}
	b := &orderingBackend{}
	done := make(chan error, 1)
	go func() { done <- serve(func() (remote.Carrier, error) { return shm.AcceptUnix(hc) }, b) }()
	g, err := workertest.Connect(gc)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := g.Init(); err != nil {
		t.Fatal(err)
	}
	// No whole number of them fills the ring.
	a := &wire.MemcpyHtoDArgs{Dst: drivertest.FirstAddress, Src: make([]byte, 40<<10)}
	record, err := wire.AppendRecord(nil, wire.Header{}, a)
	if err != nil {
		t.Fatal(err)
	}
	if remote.RingSize%uint64(len(record)) == 0 {
		t.Fatalf("records of %d bytes fill the ring: nothing is padded", len(record))
	}
	sent := 3 * int(remote.RingSize) / len(record)
	for range sent {
		if _, err := g.Call(0, a, nil); err != nil {
			t.Fatal(err)
		}
	}
	if res, err := g.Call(0, &wire.SessionFenceArgs{}, nil); err != nil || res != cuda.Success {
		t.Fatal(res, err)
	}
	if err := g.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	told := b.session.told
	if told[wire.OpSkip] != 0 || told[wire.OpMemcpyHtoD] != sent || told[wire.OpSessionFence] != 1 {
		t.Errorf("told of %d paddings, %d of %d copies and %d of 1 fence", told[wire.OpSkip], told[wire.OpMemcpyHtoD], sent, told[wire.OpSessionFence])
	}
	check()
}
