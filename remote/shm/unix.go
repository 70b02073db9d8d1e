package shm

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"causeway/remote"
)

// Unix is the carrier of a guest process on this host: a SOCK_SEQPACKET connection, memfds, an eventfd.
type Unix struct {
	conn *net.UnixConn
	mem  *Memory
	ring *Ring
	bell *Bell
	pid  uint32

	mu    sync.Mutex
	files map[uint32]int // region to memfd; Memory's end callbacks close them
	err   error          // why Done was closed, if not by EOF

	done   chan struct{}
	wg     sync.WaitGroup
	files0 []*os.File // duplicates made by State
}

var _ remote.Carrier = (*Unix)(nil)

// AcceptUnix receives the guest's MsgHello on a connection, which it takes over, and maps region 0. The caller answers by
// Welcome.
func AcceptUnix(conn *net.UnixConn) (*Unix, error) {
	u := newUnix(conn)
	h, files, err := u.receive()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("handshake: %w", err), conn.Close())
	}
	if err := u.hello(h, files); err != nil {
		_ = u.Welcome(uint32(unix.EPROTO), err.Error())
		return nil, errors.Join(fmt.Errorf("handshake: %w", err), u.release())
	}
	u.wg.Go(u.routineReceive)
	return u, nil
}

func newUnix(conn *net.UnixConn) *Unix {
	return &Unix{conn: conn, mem: NewMemory(), files: map[uint32]int{}, done: make(chan struct{})}
}

func (u *Unix) hello(h remote.Hello, files []int) error {
	if h.Type != remote.MsgHello || h.Region != 0 || h.Size != remote.Region0Size || len(files) != 2 {
		closeAll(files)
		return remote.Violation("message %d for region %d of %#x bytes with %d descriptors is no hello", h.Type, h.Region, h.Size, len(files))
	}
	if h.Version != remote.ProtocolVersion {
		closeAll(files)
		return remote.Violation("guest library speaks protocol version %d, this host %d: use the library that came with it", h.Version, remote.ProtocolVersion)
	}
	u.pid = h.Pid
	if err := u.declare(0, remote.Declared{VA: h.Va, Size: h.Size}, files[0]); err != nil {
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

// declare takes over fd.
func (u *Unix) declare(id uint32, d remote.Declared, fd int) error {
	err := checkMemfd(fd, d)
	if err == nil {
		err = u.mem.Declare(id, d, func() error {
			u.mu.Lock()
			defer u.mu.Unlock()
			delete(u.files, id)
			return unix.Close(fd)
		})
	}
	if err != nil {
		_ = unix.Close(fd)
		return err
	}
	u.mu.Lock()
	u.files[id] = fd
	u.mu.Unlock()
	return u.mem.SetRuns(id, []Run{{FD: fd, Offset: int64(d.Offset), Size: d.Size}})
}

// checkMemfd makes sure that the file has the bytes and, if it is the session's alone, will keep them: a mapping beyond its end
// kills with SIGBUS. What cannot be sealed is accepted: a guest process that truncates it ends its own worker.
func checkMemfd(fd int, d remote.Declared) error {
	if !d.Shared {
		_, _ = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return fmt.Errorf("region's file: %w", err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG || d.Offset%uint64(os.Getpagesize()) != 0 || d.Offset > uint64(st.Size) || d.Size > uint64(st.Size)-d.Offset {
		return remote.Violation("region of %#x bytes at %#x in a file of %#x bytes", d.Size, d.Offset, st.Size)
	}
	return nil
}

// receive reads one message. Descriptors are the caller's.
func (u *Unix) receive() (remote.Hello, []int, error) {
	b := make([]byte, remote.HelloSize+remote.MaxText)
	oob := make([]byte, unix.CmsgSpace(8*4))
	n, oobn, flags, _, err := u.conn.ReadMsgUnix(b, oob)
	if err != nil {
		return remote.Hello{}, nil, err
	}
	files, err := rights(oob[:oobn])
	if err != nil {
		return remote.Hello{}, nil, err
	}
	if n == 0 {
		closeAll(files)
		return remote.Hello{}, nil, io.EOF
	}
	h, _, err := remote.ParseHello(b[:n])
	if err == nil && flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0 {
		err = remote.Violation("handshake message is too long")
	}
	if err != nil {
		closeAll(files)
		return h, nil, err
	}
	return h, files, nil
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
				u.mu.Lock()
				u.err = err
				u.mu.Unlock()
			}
			return
		}
	}
}

func (u *Unix) message(h remote.Hello, files []int) error {
	switch {
	case h.Type == remote.MsgRegion && len(files) == 1 && h.Region != 0:
		return u.declare(h.Region, remote.Declared{VA: h.Va, Size: h.Size, Offset: h.Offset, Shared: h.Flags&remote.RegionShared != 0}, files[0])
	case h.Type == remote.MsgRegionEnd && len(files) == 0 && h.Region != 0:
		return u.mem.End(h.Region)
	}
	closeAll(files)
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

// Welcome implements remote.Carrier.
func (u *Unix) Welcome(status uint32, text string) error {
	_, err := u.conn.Write(remote.FormatHello(remote.Hello{Type: remote.MsgWelcome, Status: status}, text))
	return err
}

// Done implements remote.Carrier.
func (u *Unix) Done() <-chan struct{} { return u.done }

// Err says why Done was closed: nil after an orderly end.
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

// rights returns the descriptors in control messages.
func rights(oob []byte) ([]int, error) {
	msgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, fmt.Errorf("control message: %w", err)
	}
	var files []int
	for i := range msgs {
		if msgs[i].Header.Type != unix.SCM_RIGHTS {
			continue
		}
		fds, err := unix.ParseUnixRights(&msgs[i])
		if err != nil {
			closeAll(files)
			return nil, fmt.Errorf("descriptors: %w", err)
		}
		files = append(files, fds...)
	}
	return files, nil
}

func closeAll(files []int) {
	for _, fd := range files {
		_ = unix.Close(fd)
	}
}
