package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/api"
	"causeway/host/inventory"
	"causeway/remote"
	"causeway/remote/sys"
)

// attacks are what a hostile program does at its sockets, by what the host then says: to it, or in
// the vGPU's log. "": its session goes on.
var attacks = []struct {
	name string
	do   func(v *containerVGPU, h *hostile)
	told string // the program
	says string // the log
}{
	{"a piece of a hello", func(_ *containerVGPU, h *hostile) { _, _ = h.conn.Write([]byte("CWAY!")) }, "", "message of 5 bytes"},
	{"no descriptors", func(_ *containerVGPU, h *hostile) { h.hello() }, "with 0 descriptors is no hello", "no hello"},
	{"too many descriptors", func(_ *containerVGPU, h *hostile) {
		var files []int
		for range 200 {
			files = append(files, bell(h.t))
		}
		h.hello(files...)
	}, "", "more descriptors than"},
	{"a pipe for a doorbell", func(_ *containerVGPU, h *hostile) {
		var p [2]int
		_ = unix.Pipe2(p[:], unix.O_CLOEXEC)
		_ = unix.Close(p[1])
		h.hello(region0(h.t, unix.MFD_ALLOW_SEALING), p[0])
	}, "no eventfd", "no eventfd"},
	{"a doorbell that cannot be read", func(_ *containerVGPU, h *hostile) {
		ep, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
		if err != nil {
			h.t.Fatal(err)
		}
		set := bell(h.t)
		sys.Signal(set)
		_ = unix.EpollCtl(ep, unix.EPOLL_CTL_ADD, set, &unix.EpollEvent{Events: unix.EPOLLIN})
		h.hello(region0(h.t, unix.MFD_ALLOW_SEALING), ep)
	}, "", "doorbell: read an eventfd"},
	{"a ring that can shrink", func(_ *containerVGPU, h *hostile) {
		fd := region0(h.t, 0)
		h.hello(dup(h.t, fd), bell(h.t))
		_ = unix.Ftruncate(fd, 0) // as soon as it was looked at
		_ = unix.Close(fd)
	}, "cannot be kept from shrinking", "cannot be kept from shrinking"},
	{"a ring on a disk", func(_ *containerVGPU, h *hostile) { h.hello(disk(h.t, int64(remote.Region0Size)), bell(h.t)) }, "no file of memory", "no file of memory"},
	{"a ring that is shorter than it says", func(_ *containerVGPU, h *hostile) { h.hello(memfile(h.t, 4096, unix.MFD_ALLOW_SEALING), bell(h.t)) }, "in a file of 0x1000 bytes", "0x1000 bytes"},
	{"a ring's end that is nonsense", func(_ *containerVGPU, h *hostile) {
		h.open()
		binary.LittleEndian.PutUint64(h.g.Mem[remote.ControlPageTailOffset:], 1<<40+8)
		h.g.Ring()
	}, "", "ring tail 1099511627784 does not follow"},
	{"a region that can shrink", func(_ *containerVGPU, h *hostile) { h.open().region(500, 1<<20, 0, memfile(h.t, 1<<20, 0)) }, "", "cannot be kept from shrinking"},
	{"a folder for a region", func(_ *containerVGPU, h *hostile) {
		fd, _ := unix.Open("/", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		h.open().region(500, 4096, 0, fd)
	}, "", "no file of memory"},
	{"its own connection for a region", func(_ *containerVGPU, h *hostile) {
		f, err := h.open().conn.File()
		if err != nil {
			h.t.Fatal(err)
		}
		defer f.Close()
		h.region(500, 4096, 0, dup(h.t, int(f.Fd())))
	}, "", "no file of memory"},
	{"a region of all memory and more", func(_ *containerVGPU, h *hostile) {
		h.open().region(500, 1<<40, 0, memfile(h.t, 1<<40, unix.MFD_ALLOW_SEALING))
	}, "", "0x10000000000 bytes"},
	{"more regions than there may be", func(_ *containerVGPU, h *hostile) {
		fd := memfile(h.t, 64<<30, unix.MFD_ALLOW_SEALING) // nobody's until somebody writes there
		defer unix.Close(fd)
		h.open()
		for id := range uint32(4100) {
			h.region(500+id, 64<<30, 0, dup(h.t, fd))
		}
	}, "", "more than 4096 regions"},
	{"shared memory on a disk", func(_ *containerVGPU, h *hostile) {
		h.open().region(500, 1<<20, remote.RegionShared, disk(h.t, 1<<20))
		if res, err := h.add(500, 1<<20); res != cuda.ErrorNotSupported || err != nil {
			h.t.Errorf("%v, %v", res, err)
		}
		h.say(remote.Hello{Type: remote.MsgRegionEnd, Region: 500})
		if res, err := h.g.Call(0, &wire.PrimaryCtxRetainArgs{Ctx: 16}, &wire.PrimaryCtxRetainReply{}); err != nil || res != cuda.Success {
			h.t.Errorf("the session does not go on: %v, %v", res, err)
		}
		_ = h.g.Close()
	}, "", "memory of this kind is not reached"},
	{"shared memory that shrinks", func(_ *containerVGPU, h *hostile) {
		fd := memfile(h.t, 1<<20, 0)
		defer unix.Close(fd)
		h.open().region(500, 1<<20, remote.RegionShared, dup(h.t, fd))
		if res, err := h.add(500, 1<<20); res != cuda.Success || err != nil {
			h.t.Fatal(res, err)
		}
		if res, err := h.g.Call(0, &wire.PrimaryCtxRetainArgs{Ctx: 16}, &wire.PrimaryCtxRetainReply{}); err != nil || res != cuda.Success {
			h.t.Fatal(res, err)
		}
		h.g.Ctx = 16
		var m wire.MemAllocReply
		if res, err := h.g.Call(0, &wire.MemAllocArgs{Size: 1 << 20}, &m); err != nil || res != cuda.Success {
			h.t.Fatal(res, err)
		}
		_ = unix.Ftruncate(fd, 0)
		_ = h.g.Send(&wire.MemcpyStagedArgs{Region: 500, Size: 1 << 20, Device: m.Ptr, Stream: wire.StreamLegacy})
		if res, err := h.g.Call(0, &wire.CtxSynchronizeArgs{}, nil); err == nil && res == cuda.Success {
			h.t.Error("memory that is not there was copied")
		}
		_ = h.g.Close()
	}, "", ""},
	{"a hundred connections at once", func(v *containerVGPU, h *hostile) {
		for range 100 {
			_ = v.hostile()
		}
	}, "", "as many CUDA processes as it may"},
	{"questions that nobody reads", func(v *containerVGPU, _ *hostile) {
		path := filepath.Join(v.dir, api.ProgramsNVML)
		for range 150 {
			c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
			if err != nil {
				v.t.Fatal(err)
			}
			defer c.Close()
			_, _, _ = c.WriteMsgUnix([]byte("x"), unix.UnixRights(0, 1, 2), nil)
		}
		within(v.t, time.Minute, "an honest question's answer", func() bool {
			c, err := net.Dial("unix", path)
			if err != nil {
				return false
			}
			defer c.Close()
			b, _ := io.ReadAll(c)
			a, err := inventory.DecodeAnswer(b)
			return err == nil && len(a.Devices) == 1
		})
	}, "", ""},
}

// TestHostilePrograms: whatever a container does with the sockets that it is given, its own session
// ends, by name; the vGPU's other programs and other vGPUs go on, and nothing is held for it.
func TestHostilePrograms(t *testing.T) {
	t.Parallel() // most of it is waiting for who says nothing
	v, other := newContainerVGPU(t, "--sessions", "8", "--user-sessions", "8"), newContainerVGPU(t)
	silent := v.hostile() // for as long as it may be
	began := time.Now()
	files, _ := v.holds()
	for _, a := range attacks {
		from := len(v.log.String())
		h := v.hostile()
		a.do(v, h)
		if a.told != "" {
			if s := h.refused(); !strings.Contains(s, a.told) {
				t.Errorf("%s: the program hears %q, want %q", a.name, s, a.told)
			}
		}
		within(t, 10*time.Second, a.name+": the log says "+a.says, func() bool { return strings.Contains(v.log.String()[from:], a.says) })
		v.works(a.name)
		other.works(a.name)
		if s := v.log.String()[from:]; strings.Contains(s, "goroutine ") || strings.Contains(s, "SIGBUS") {
			t.Errorf("%s: a worker crashed:\n%s", a.name, s)
		}
	}
	if s := silent.refused(); !strings.Contains(s, "nothing was said") || time.Since(began) > time.Minute {
		t.Errorf("who says nothing hears %q after %v", s, time.Since(began))
	}
	within(t, time.Minute, "one session is left", func() bool { return len(v.sessions()) == 1 })
	within(t, time.Minute, "no descriptors are left", func() bool { n, _ := v.holds(); return n <= files+4 })
	v.works("all")
	if _, n := v.holds(); n > 64 {
		t.Errorf("%d threads are left", n)
	}
	// Who stays connected when the claim is taken back keeps nothing.
	stays, says := v.hostile().open(), v.hostile()
	workers := v.sessions()
	if err := v.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- v.cmd.Wait() }()
	select {
	case <-done:
	case <-time.After(30 * time.Second):
		t.Fatal("the vGPU does not end while a program stays")
	}
	<-stays.g.Gone()
	_ = says.refused()
	for _, s := range workers {
		within(t, 10*time.Second, "no worker is left", func() bool { return unix.Kill(s.Worker, 0) != nil })
	}
	if _, err := net.Dial("unixpacket", v.path()); err == nil {
		t.Error("the socket is still served")
	}
	other.works("its end")
}

// TestWhoConnects: what the host says of who uses a vGPU is the kernel's word, whatever the program
// says, in a process name space of its own.
func TestWhoConnects(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("makes process name spaces")
	}
	v := newContainerVGPU(t)
	for _, uid := range []uint32{0, 12345} {
		cmd := exec.CommandContext(context.WithoutCancel(t.Context()), "/proc/self/exe", guestArg)
		cmd.Env = append(os.Environ(), "CAUSEWAY=unix:"+v.path())
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID, Credential: &syscall.Credential{Uid: uid, Gid: uid}, Pdeathsig: syscall.SIGKILL}
		in, _ := cmd.StdinPipe()
		cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
		if err := os.Chmod(v.dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		want := fmt.Sprintf("process %d of uid %d", cmd.Process.Pid, uid)
		within(t, time.Minute, want, func() bool {
			for _, s := range v.sessions() {
				if s.Peer == want && s.GuestPID == 1 && s.GuestUID == uid && s.Program != "" {
					// In its own name space, as it says.
					return true
				}
			}
			return false
		})
		_ = in.Close()
		if err := cmd.Wait(); err != nil {
			t.Error(err)
		}
	}
	_ = v.honest.Close()
}
