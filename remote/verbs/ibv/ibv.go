// Package ibv is the RDMA adapters of this machine, by libibverbs, which is loaded when it is asked
// for: a build needs nothing of it (abi.h), and a machine without it says so.
package ibv

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"causeway/remote/verbs"
)

// Errors of Open.
var (
	ErrNoLibrary = errors.New("libibverbs.so.1 cannot be loaded; install rdma-core's libraries (Debian: libibverbs1, ibverbs-providers)")
	ErrNoDevice  = errors.New("this machine has no active RDMA port")
	// ErrNoPartition: there are ports, and the subnet manager has put none into the partition.
	ErrNoPartition = errors.New("no active RDMA port has in its table of P_Keys the partition")
)

// libraryName is what is loaded.
const libraryName = "libibverbs.so.1"

// timeout is how long a packet may be unacknowledged: 4.096 us times 2 to its power, 2.1 s. With
// six repetitions (shim.h) a link that is gone for 10 s is survived.
const timeout = 19

// Devices are the devices of this machine that have active ports.
type Devices struct {
	opened   []*device
	adapters []verbs.Adapter
}

// Open opens all devices with active ports; or one, by its name, and of that one port if the name
// ends in /PORT. Queue pairs are of a partition, and ports that are not left out; 0: of each port's
// first.
func Open(name string, partition verbs.Partition) (*Devices, error) {
	return OpenIn(os.DirFS(sysfs), name, partition)
}

// OpenIn is Open of devices that are shown elsewhere, and that the library which is loaded has: for
// tests.
func OpenIn(sys fs.FS, name string, partition verbs.Partition) (*Devices, error) {
	found, err := scan(sys, name, partition)
	if err != nil {
		return nil, err
	}
	lib, err := load(libraryName)
	if err != nil {
		return nil, err
	}
	ds := &Devices{}
	for _, f := range found {
		if err := ds.open(lib, f); err != nil {
			return nil, errors.Join(err, ds.Close())
		}
	}
	return ds, nil
}

func (ds *Devices) open(lib *library, f found) error {
	d, err := lib.open(f.device)
	if err != nil {
		return fmt.Errorf("RDMA device %s: %w", f.device, err)
	}
	ds.opened = append(ds.opened, d)
	for _, p := range f.ports {
		if p.MTU, err = d.mtu(p.Number); err != nil {
			return fmt.Errorf("RDMA device %s: %w", f.device, err)
		}
		ds.adapters = append(ds.adapters, &adapter{d, p})
	}
	return nil
}

// Adapters are the active ports.
func (ds *Devices) Adapters() []verbs.Adapter { return ds.adapters }

// Close closes the devices. Nothing of them is in use any more: one of which something is stays
// open, and is another Close's.
func (ds *Devices) Close() error {
	var err error
	var left []*device
	for _, d := range ds.opened {
		if bad := d.close(); bad != nil {
			err, left = errors.Join(err, bad), append(left, d)
		}
	}
	ds.opened = left
	return err
}

// adapter implements verbs.Adapter.
type adapter struct {
	d    *device
	port verbs.Port
}

// Port implements verbs.Adapter.
func (a *adapter) Port() verbs.Port { return a.port }

// Register implements verbs.Adapter.
func (a *adapter) Register(mem []byte, may verbs.Access) (verbs.Memory, error) {
	m, err := a.d.register(mem, may, !a.port.Software)
	if err != nil {
		return nil, err
	}
	return m, nil
}

var _ verbs.GPUAdapter = (*adapter)(nil)

// RegisterFile implements verbs.GPUAdapter.
func (a *adapter) RegisterFile(f *os.File, off, size, address uint64) (verbs.Memory, error) {
	m, err := a.d.registerFile(int(f.Fd()), off, size, address)
	if err != nil {
		return nil, err
	}
	return m, nil
}

// RegisterAddress implements verbs.GPUAdapter.
func (a *adapter) RegisterAddress(address, size uint64) (verbs.Memory, error) {
	m, err := a.d.registerAddress(address, size)
	if err != nil {
		return nil, err
	}
	return m, nil
}

// NewQueue implements verbs.Adapter.
func (a *adapter) NewQueue(size verbs.QueueSize) (verbs.Queue, error) {
	p, err := a.d.pair(size)
	if err != nil {
		return nil, err
	}
	q := &queue{pair: p, port: a.port.Number, pkey: a.port.PKey}
	if q.file, err = events(p.channel()); err == nil {
		q.raw, err = q.file.SyscallConn()
	}
	if err != nil {
		return nil, errors.Join(err, q.Close())
	}
	return q, nil
}

// events is a file of the same events, for the runtime to wait on.
func events(fd int) (*os.File, error) {
	err := unix.SetNonblock(fd, true)
	own := -1
	if err == nil {
		own, err = unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 3)
	}
	if err != nil {
		return nil, fmt.Errorf("completion events: %w", err)
	}
	return os.NewFile(uintptr(own), "completion events"), nil
}

// queue implements verbs.Queue.
type queue struct {
	*pair
	port int
	pkey int // where in the port's table its partition stands
	file *os.File
	raw  interface {
		Read(f func(fd uintptr) (done bool)) error
	}

	mu     sync.Mutex
	kicked bool
}

// Number implements verbs.Queue.
func (q *queue) Number() uint32 { return q.number() }

// Inline implements verbs.Queue.
func (q *queue) Inline() int { return q.inline }

// Connect implements verbs.Queue.
func (q *queue) Connect(p verbs.Path) error { return q.connect(q.port, q.pkey, p) }

// Post implements verbs.Queue.
func (q *queue) Post(ws []verbs.Work) error { return q.post(ws) }

// PostReceive implements verbs.Queue.
func (q *queue) PostReceive(n int) error { return q.postReceive(n) }

// Poll implements verbs.Queue.
func (q *queue) Poll(cs []verbs.Completion) (int, error) { return q.poll(cs) }

// Arm implements verbs.Queue.
func (q *queue) Arm() error { return q.arm() }

// Wait implements verbs.Queue.
func (q *queue) Wait() error {
	var failed unix.Errno
	err := q.raw.Read(func(uintptr) bool {
		failed = q.event()
		return failed != unix.EAGAIN
	})
	if errors.Is(err, os.ErrDeadlineExceeded) {
		q.mu.Lock()
		defer q.mu.Unlock()
		q.kicked = false
		return q.file.SetReadDeadline(time.Time{})
	}
	if err == nil && failed != 0 {
		err = failed
	}
	if err != nil {
		return fmt.Errorf("completion events: %w", err)
	}
	return nil
}

// Kick implements verbs.Queue.
func (q *queue) Kick() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.kicked {
		q.kicked = true
		_ = q.file.SetReadDeadline(time.Unix(1, 0)) // passed
	}
}

// Close implements verbs.Queue.
func (q *queue) Close() error {
	var err error
	if q.file != nil {
		err = q.file.Close()
	}
	return errors.Join(err, q.close())
}
