package shm

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"causeway/remote"
	"causeway/remote/sys"
)

// Unix is the carrier of a guest process on this host: a SOCK_SEQPACKET connection, memfds, an
// eventfd.
type Unix struct {
	conn *net.UnixConn
	mem  *Memory
	ring *Ring
	bell *Bell
	pid  uint32
	env  uint32

	tenant bool // the guest is another's: AcceptTenant

	mu    sync.Mutex
	files map[uint32][]int // region to memfds; Memory's end callbacks close them
	err   error            // why Done was closed, if not by EOF

	done   chan struct{}
	wg     sync.WaitGroup
	files0 []*os.File // duplicates made by State
}

var _ remote.Carrier = (*Unix)(nil)

// helloTime is how long a guest may take to say hello: it connects to say it.
const helloTime = 10 * time.Second

// AcceptUnix receives the MsgHello of a guest process of this user's on a connection, which it
// takes over, and maps region 0. The caller answers by Welcome.
func AcceptUnix(conn *net.UnixConn) (*Unix, error) { return accept(newUnix(conn), helloTime) }

// AcceptTenant is AcceptUnix of somebody else's guest process, in a container for instance. Its
// memory is files of memory, which nothing but memory can make wait, and of those that are the
// session's alone none that can shrink.
func AcceptTenant(conn *net.UnixConn) (*Unix, error) {
	u := newUnix(conn)
	u.tenant = true
	return accept(u, helloTime)
}

func accept(u *Unix, patience time.Duration) (*Unix, error) {
	conn := u.conn
	_ = conn.SetReadDeadline(time.Now().Add(patience))
	h, files, err := u.receive()
	if errors.Is(err, os.ErrDeadlineExceeded) {
		err = remote.Violation("nothing was said for %v", patience)
		_ = u.Welcome(uint32(unix.ETIMEDOUT), err.Error())
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("handshake: %w", err), conn.Close())
	}
	_ = conn.SetReadDeadline(time.Time{})
	if err := u.hello(h, files); err != nil {
		_ = u.Welcome(uint32(unix.EPROTO), err.Error())
		return nil, errors.Join(fmt.Errorf("handshake: %w", err), u.release())
	}
	u.wg.Go(u.routineReceive)
	return u, nil
}

func newUnix(conn *net.UnixConn) *Unix {
	u := &Unix{conn: conn, mem: NewMemory(), files: map[uint32][]int{}, done: make(chan struct{})}
	u.mem.poll = u.poll
	return u
}

func (u *Unix) hello(h remote.Hello, files []int) error {
	if h.Type != remote.MsgHello || h.Region != 0 || h.Size != remote.Region0Size || len(files) != 2 {
		sys.CloseAll(files)
		return remote.Violation("message %d for region %d of %#x bytes with %d descriptors is no hello", h.Type, h.Region, h.Size, len(files))
	}
	if h.Version != remote.ProtocolVersion {
		sys.CloseAll(files)
		return remote.Violation("guest library speaks protocol version %d, this host %d: use the library that came with it", h.Version, remote.ProtocolVersion)
	}
	u.pid, u.env = h.Pid, h.Flags
	if err := sys.CheckEvent(files[1]); err != nil {
		sys.CloseAll(files)
		return remote.Violation("the doorbell is %v", err)
	}
	if err := u.declare(0, remote.Declared{VA: h.Va, Size: h.Size}, files[:1]); err != nil {
		_ = unix.Close(files[1])
		return err
	}
	return u.attach(files[1], 0, true)
}

// attach maps region 0 and makes ring and doorbell. It takes over bell.
func (u *Unix) attach(bell int, head uint64, fresh bool) error {
	mem, err := u.mem.Map(0, 0)
	if err == nil && fresh {
		err = CheckControl(mem)
	}
	if err == nil {
		u.ring, err = NewRing(mem, head)
	}
	if err == nil {
		u.bell, err = FutexBell(bell, u.ring)
	}
	if err != nil {
		_ = unix.Close(bell)
	}
	return err
}

// declare takes over files.
func (u *Unix) declare(id uint32, d remote.Declared, files []int) error {
	runs, err := runsOf(d, files, u.tenant)
	if errors.Is(err, remote.ErrRefused) && d.Shared {
		sys.CloseAll(files)
		return u.mem.Refuse(id, d, err) // the application's choice of memory, not the library's
	}
	if err == nil {
		err = u.mem.Declare(id, d, func() error {
			u.mu.Lock()
			defer u.mu.Unlock()
			delete(u.files, id)
			sys.CloseAll(files)
			return nil
		})
	}
	if err != nil {
		sys.CloseAll(files)
		return err
	}
	u.mu.Lock()
	u.files[id] = files
	u.mu.Unlock()
	return u.mem.SetRuns(id, runs)
}

// runsOf lists a region's parts, each of which its file is made sure to have.
func runsOf(d remote.Declared, files []int, tenant bool) ([]Run, error) {
	part := d.Part
	if part == 0 {
		part = d.Size
	}
	if part == 0 || part%pageSize != 0 || part > d.Size || d.Part != 0 && (d.Shared || d.Offset != 0) || uint64(len(files)) != fileCount(d) {
		return nil, remote.Violation("region of %#x bytes, %#x in each of %d files", d.Size, part, len(files))
	}
	var runs []Run
	for i, fd := range files {
		r := Run{FD: fd, Offset: int64(d.Offset), Size: min(part, d.Size-uint64(i)*part)}
		if err := checkMemfd(fd, r, d.Shared, tenant); err != nil {
			return nil, err
		}
		runs = append(runs, r)
	}
	return runs, nil
}

// fileCount is how many files a region of a guest process on this host is made of.
func fileCount(d remote.Declared) uint64 {
	if d.Part == 0 {
		return 1
	}
	return (d.Size-1)/d.Part + 1
}

// checkMemfd makes sure that the file has the bytes and, if it is the session's alone, will keep
// them: a mapping beyond its end raises SIGBUS. What is shared with others cannot be sealed for
// their sake, and of this user's guest also what knows no seals is accepted: a guest process that
// truncates it ends its own worker.
func checkMemfd(fd int, r Run, shared, tenant bool) error {
	if !shared {
		_, _ = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK)
	}
	if tenant { // before anything is asked that is behind the file
		switch shrinks, err := sys.Shrinks(fd); {
		case err != nil:
			return fmt.Errorf("%w: %w: %w", remote.ErrProtocol, remote.ErrRefused, err)
		case shrinks && !shared:
			return remote.Violation("a region's file of memory cannot be kept from shrinking (F_SEAL_SHRINK)")
		}
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return fmt.Errorf("region's file: %w", err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG || r.Offset < 0 || r.Offset%pageSize != 0 || r.Offset > st.Size || r.Size > uint64(st.Size-r.Offset) {
		return remote.Violation("region of %#x bytes at %#x in a file of %#x bytes", r.Size, r.Offset, st.Size)
	}
	return nil
}

// messageRoom is room for a message.
const messageRoom = remote.HelloSize + remote.MaxText

// receive reads one message. Descriptors are the caller's.
func (u *Unix) receive() (remote.Hello, []int, error) {
	b, oob := make([]byte, messageRoom), make([]byte, sys.RightsRoom(int(remote.RegionParts)))
	n, oobn, flags, _, err := u.conn.ReadMsgUnix(b, oob)
	if err != nil {
		return remote.Hello{}, nil, err
	}
	return parse(b[:n], oob[:oobn], flags)
}

// poll handles the messages that are there: who needs one now is awake, the goroutine that waits
// for them would have to wake up first.
func (u *Unix) poll() {
	c, err := u.conn.SyscallConn()
	if err != nil {
		return
	}
	b, oob := make([]byte, messageRoom), make([]byte, sys.RightsRoom(int(remote.RegionParts)))
	for {
		n, oobn, flags := 0, 0, 0
		cerr := c.Control(func(fd uintptr) {
			n, oobn, flags, _, err = unix.Recvmsg(int(fd), b, oob, unix.MSG_DONTWAIT|unix.MSG_CMSG_CLOEXEC)
		})
		if cerr != nil || err != nil || n == 0 {
			return // the goroutine will see what there is to see
		}
		h, files, err := parse(b[:n], oob[:oobn], flags)
		if err == nil {
			err = u.message(h, files)
		}
		if err != nil {
			u.fail(err)
			_ = u.conn.Close() // which ends the goroutine
			return
		}
	}
}

// parse reads a message. Descriptors are the caller's.
func parse(b, oob []byte, flags int) (remote.Hello, []int, error) {
	files, err := sys.Rights(oob)
	if err != nil {
		return remote.Hello{}, nil, err
	}
	if len(b) == 0 {
		sys.CloseAll(files)
		return remote.Hello{}, nil, io.EOF
	}
	h, _, err := remote.ParseHello(b)
	switch {
	case err != nil:
	case flags&unix.MSG_TRUNC != 0:
		err = remote.Violation("handshake message is too long")
	case flags&unix.MSG_CTRUNC != 0:
		err = remote.Violation("a message has more descriptors than %d, or this process has no room for them", remote.RegionParts)
	}
	if err != nil {
		sys.CloseAll(files)
		return h, nil, err
	}
	return h, files, nil
}

// fail keeps the first reason for the session's end.
func (u *Unix) fail(err error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.err == nil {
		u.err = err
	}
}

// routineReceive follows the connection until it ends.
func (u *Unix) routineReceive() {
	for {
		h, files, err := u.receive()
		if err == nil {
			err = u.message(h, files)
		}
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return // Freeze
		}
		if err != nil {
			defer close(u.done)
			if !errors.Is(err, io.EOF) && !errors.Is(err, net.ErrClosed) && !errors.Is(err, unix.ECONNRESET) {
				u.fail(err)
			}
			return
		}
	}
}

func (u *Unix) message(h remote.Hello, files []int) error {
	switch {
	case h.Type == remote.MsgRegion && len(files) >= 1 && len(files) <= int(remote.RegionParts) && h.Region != 0:
		d := remote.Declared{VA: h.Va, Size: h.Size, Offset: h.Offset, Shared: h.Flags&remote.RegionShared != 0, Part: h.Part}
		return u.declare(h.Region, d, files)
	case h.Type == remote.MsgRegionEnd && len(files) == 0 && h.Region != 0:
		return u.mem.End(h.Region)
	}
	sys.CloseAll(files)
	return remote.Violation("message %d for region %d with %d descriptors", h.Type, h.Region, len(files))
}

// Ring implements remote.Carrier.
func (u *Unix) Ring() remote.Ring { return u.ring }

// Memory implements remote.Carrier.
func (u *Unix) Memory() remote.GuestMemory { return u.mem }

// Doorbell implements remote.Carrier.
func (u *Unix) Doorbell() remote.Doorbell { return u.bell }

// PID is the guest process, as it says.
func (u *Unix) PID() uint32 { return u.pid }

// Env is what the guest process says of its environment (remote.Env...).
func (u *Unix) Env() uint32 { return u.env }

// Welcome implements remote.Carrier.
func (u *Unix) Welcome(status uint32, text string) error {
	_, err := u.conn.Write(remote.FormatHello(remote.Hello{Type: remote.MsgWelcome, Status: status}, text))
	return err
}

// Done implements remote.Carrier.
func (u *Unix) Done() <-chan struct{} { return u.done }

// Err implements remote.Carrier.
func (u *Unix) Err() error {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.err
}

// Close implements remote.Carrier.
func (u *Unix) Close() error {
	err := u.conn.Close()
	u.wg.Wait()
	return errors.Join(err, u.release())
}

func (u *Unix) release() error {
	err := u.mem.Close()
	for _, f := range u.files0 {
		_ = f.Close()
	}
	if u.bell != nil {
		err = errors.Join(err, u.bell.Close())
	}
	_ = u.conn.Close()
	return err
}
