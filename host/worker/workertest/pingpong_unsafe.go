package workertest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"causeway/remote/remotetest"
)

// PingPong is the floor under every synchronous call: two processes that poll one cache line each,
// and a socket between them for comparison. The other process is started with a command that calls
// Pong.
type PingPong struct {
	mem  []byte
	sock *os.File
	cmd  *exec.Cmd
	n    uint32
}

// StartPingPong starts the other process.
func StartPingPong(cmd *exec.Cmd) (*PingPong, error) {
	fd, mem, err := remotetest.Memfd(4096)
	if err != nil {
		return nil, err
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, errors.Join(err, unix.Close(fd))
	}
	shared, far := os.NewFile(uintptr(fd), "shared"), os.NewFile(uintptr(pair[1]), "far")
	defer shared.Close()
	defer far.Close()
	p := &PingPong{mem: mem, sock: os.NewFile(uintptr(pair[0]), "near"), cmd: cmd}
	cmd.ExtraFiles = []*os.File{shared, far}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	return p, nil
}

func words(mem []byte) (ping, pong *atomic.Uint32) {
	return (*atomic.Uint32)(unsafe.Pointer(&mem[0])), (*atomic.Uint32)(unsafe.Pointer(&mem[128]))
}

// Memory is one round trip through shared memory.
func (p *PingPong) Memory() {
	ping, pong := words(p.mem)
	p.n++
	ping.Store(p.n)
	for pong.Load() != p.n {
	}
}

// Socket is one round trip through the socket, with blocking system calls.
func (p *PingPong) Socket() error {
	var b [8]byte
	if _, err := unix.Write(int(p.sock.Fd()), b[:]); err != nil {
		return err
	}
	_, err := unix.Read(int(p.sock.Fd()), b[:])
	return err
}

// Polling switches the other process: to the socket, or, with false, back to memory.
func (p *PingPong) Polling(memory bool) {
	if memory {
		_, _ = unix.Write(int(p.sock.Fd()), []byte{1, 0, 0, 0, 0, 0, 0, 0})
		var b [8]byte
		_, _ = unix.Read(int(p.sock.Fd()), b[:])
		return
	}
	ping, pong := words(p.mem)
	ping.Store(1 << 31)
	for pong.Load() != 1<<31 {
	}
	p.n = 0
}

// Close ends the other process.
func (p *PingPong) Close() error {
	err := errors.Join(p.sock.Close(), unix.Munmap(p.mem))
	return errors.Join(err, p.cmd.Wait())
}

// Pong is the other process: it begins with the socket and ends with it.
func Pong() error {
	runtime.LockOSThread()
	mem, err := unix.Mmap(3, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return fmt.Errorf("shared page: %w", err)
	}
	ping, pong := words(mem)
	for {
		var b [8]byte
		if n, err := unix.Read(4, b[:]); n == 0 || err != nil {
			return err
		}
		if _, err := unix.Write(4, b[:]); err != nil {
			return err
		}
		if b[0] == 0 {
			continue
		}
		for last := uint32(0); last != 1<<31; {
			for v := ping.Load(); v != last; v = ping.Load() {
				last = v
				pong.Store(v)
			}
		}
		ping.Store(0)
	}
}
