package device

import (
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"causeway/host/worker/link"
	"causeway/remote"
	"causeway/remote/sys"
	"causeway/virtio/fs"
)

/*
A guest process whose VM has an RDMA adapter of its own may be the end of its session with a GPU
server itself. The control file then carries what goes out of band, some hundred bytes, between the
process and its worker, which has the keys and knows what may be said. No guest memory is lent, so
nothing is to be parked; and the session cannot leave with the VM, whose adapter stays here.
*/

var (
	// ErrDirect says why a session cannot leave with its VM.
	ErrDirect = errors.New("its program is an RDMA end itself, by an adapter of the VM's")
	errHere   = errors.New("programs of this virtual GPU are no RDMA ends: it is of this host, or has remote.guest_rdma off")
)

const (
	// directSlot is where READs wait for what the worker says, beside those for slots.
	directSlot = remote.SlotCount + 1
	// mostQueued bounds what a worker may have sent that the guest has not read, in bytes: an
	// honest one sends less in all.
	mostQueued = 16 << 10
	// mostWriting is how many WRITEs of a guest process may wait for its worker: each has an entry
	// of the queue of all programs. An honest one has one, or one for each of its threads that
	// speak.
	mostWriting = 4
	writeLimit  = 5 * time.Second
	hearLimit   = 5 * time.Second // somebody else may hold the end of a worker that is gone
)

// direct is the device's end of it. session.mu guards it, but conn.
type direct struct {
	conn *net.UnixConn
	came []byte
	over bool          // nothing more comes
	out  int           // WRITEs that wait for the worker
	read chan struct{} // closed when routineDirect has ended
}

// beginDirect follows MsgDirect.
func (s *session) beginDirect(h remote.Hello, w *fs.WriteRequest) (syscall.Errno, error) {
	may := s.dev.direct()
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.state != idle || h.Region != 0:
		return syscall.EINVAL, fmt.Errorf("message for an RDMA end: %w", errState)
	case !may:
		return syscall.EOPNOTSUPP, errHere
	}
	near, far, err := sys.PacketPair("the channel out of band of RDMA")
	if err != nil {
		return syscall.EIO, err
	}
	h.TextLen = 0
	if _, err := near.Write(remote.FormatHello(h, "")); err != nil {
		return syscall.EIO, errors.Join(err, near.Close(), far.Close())
	}
	s.state, s.direct = opening, &direct{conn: near, read: make(chan struct{})}
	if !s.do(func() { s.connectDirect(far, h, w) }) {
		return syscall.EBUSY, errors.Join(errState, near.Close(), far.Close())
	}
	return 0, nil
}

// connectDirect starts the worker, and answers MsgDirect. It runs on routine.
func (s *session) connectDirect(far *os.File, h remote.Hello, w *fs.WriteRequest) {
	defer far.Close()
	err := s.connectWorker(far, func(c *link.Config) { c.Carrier, c.Spare = link.CarrierUnix, link.Fits(h, 1) })
	if err != nil {
		s.refuse(w, syscall.EIO, err)
		_ = s.direct.conn.Close()
		s.fail(nil)
		return
	}
	go s.routineDirect()
	w.Complete(w.Size, 0)
}

// routineDirect reads what the worker sends, to its end.
func (s *session) routineDirect() {
	defer close(s.direct.read)
	b := make([]byte, remote.FileDirectMost)
	for {
		n, err := s.direct.conn.Read(b)
		s.mu.Lock()
		d := s.direct
		d.came = append(d.came, b[:n]...)
		d.over = d.over || err != nil || n == 0 || len(d.came) > mostQueued
		over := d.over
		s.mu.Unlock()
		s.answerDirect()
		if over {
			_ = s.direct.conn.Close()
			return
		}
	}
}

// hearDirect waits until what a worker that is gone had said is there for the guest to read: one
// that refuses says why, and ends. p nil: there was none.
func (s *session) hearDirect(p workerProcess) {
	s.mu.Lock()
	d := s.direct
	s.mu.Unlock()
	if d == nil {
		return
	}
	if p != nil {
		t := time.NewTimer(hearLimit)
		defer t.Stop()
		select {
		case <-d.read:
		case <-t.C:
		}
	}
	s.mu.Lock()
	d.over = true
	s.mu.Unlock()
}

// answerDirect answers a READ that waits by what there is.
func (s *session) answerDirect() {
	s.mu.Lock()
	list := s.waits[directSlot]
	delete(s.waits, directSlot)
	s.waitingLocked(-len(list))
	s.mu.Unlock()
	for _, w := range list {
		s.readDirect(w.req)
	}
}

// readDirect answers a READ by what the worker has sent, or keeps it until there is something.
func (s *session) readDirect(req *fs.ReadRequest) {
	s.mu.Lock()
	d := s.direct
	n, errno := 0, unix.Errno(0)
	switch {
	case d == nil:
		errno = unix.EINVAL
	case len(d.came) > 0:
		n = req.CopyIn(d.came[:min(len(d.came), req.Size)], 0)
		d.came = d.came[n:]
	case d.over: // which a session that has failed is a moment after its worker: hearDirect
		errno = unix.EPIPE
	case s.waiting >= maxWaits:
		errno = unix.EINVAL
	case !s.dev.maySleep(): // it looks again
	default:
		s.waits[directSlot] = append(s.waits[directSlot], wait{req, time.Now()})
		s.waitingLocked(1)
		s.mu.Unlock()
		return
	}
	s.mu.Unlock()
	req.Complete(n, errno)
}

// writeDirect passes on what the guest process writes, which waits for its answer before it writes
// more.
func (s *session) writeDirect(w *fs.WriteRequest) {
	b := w.Data()
	s.mu.Lock()
	d := s.direct
	errno := syscall.Errno(0)
	switch {
	case s.state >= dead:
		errno = syscall.EPIPE
	case d == nil || len(b) == 0:
		errno = syscall.EINVAL
	case d.out >= mostWriting:
		errno = syscall.EBUSY
	default:
		d.out++
	}
	s.mu.Unlock()
	if errno != 0 {
		w.Complete(0, errno)
		return
	}
	go func() {
		_ = d.conn.SetWriteDeadline(time.Now().Add(writeLimit))
		_, err := d.conn.Write(b)
		s.mu.Lock()
		d.out--
		s.mu.Unlock()
		if err != nil {
			w.Complete(0, syscall.EPIPE)
			return
		}
		w.Complete(w.Size, 0)
	}()
}

// controlDirect is control of a process that is an RDMA end: all that it may say there is that it
// ends.
func (s *session) controlDirect(h remote.Hello, w *fs.WriteRequest) (syscall.Errno, error) {
	if h.Type != remote.MsgRegionEnd || h.Region != 0 {
		return syscall.EINVAL, fmt.Errorf("message %d of an RDMA end: %w", h.Type, errState)
	}
	_ = s.direct.conn.Close() // with which its worker ends, having told the server
	w.Complete(w.Size, 0)
	return 0, nil
}

// isDirect reports whether the program is an RDMA end itself.
func (s *session) isDirect() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.direct != nil
}

// direct reports whether programs may be RDMA ends.
func (d *Device) direct() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.at != nil && d.at.Worker.Relay != nil && d.at.Worker.Direct
}
