package main

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/api"
	"causeway/host/worker/workertest"
	"causeway/remote"
	"causeway/remote/remotetest"
	"causeway/remote/sys"
)

// said is what a process says, for whoever looks while it goes on.
type said struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (w *said) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.b.Write(p)
}

func (w *said) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.b.String()
}

// containerVGPU is a device process that serves programs, and one of them.
type containerVGPU struct {
	t      *testing.T
	cmd    *exec.Cmd
	log    said
	dir    string
	client *api.Client
	honest *workertest.Guest
	ptr    uint64
}

// within looks until something is so.
func within(t *testing.T, d time.Duration, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(d); !is(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s", d, what)
		}
	}
}

func newContainerVGPU(t *testing.T, args ...string) *containerVGPU {
	t.Helper()
	v := &containerVGPU{t: t, dir: shortDir(t)}
	control := filepath.Join(v.dir, "ctl")
	v.cmd = causeway(t, append([]string{"device", "--programs", "--gpu", "soft", "--memory", "64MiB", "--socket", v.path(), "--control", control}, args...)...)
	v.cmd.Stderr = &v.log
	if err := v.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = v.cmd.Process.Kill() })
	v.client = api.NewClient(control)
	within(t, time.Minute, "a device process", func() bool {
		_, err := v.client.Status(t.Context())
		return err == nil
	})
	var err error
	if v.honest, err = workertest.Dial(v.path()); err == nil {
		_, err = v.honest.Init()
	}
	if err != nil {
		t.Fatal(err)
	}
	if res, err := v.honest.Call(0, &wire.PrimaryCtxRetainArgs{Ctx: 16}, &wire.PrimaryCtxRetainReply{}); err != nil || res != cuda.Success {
		t.Fatal(res, err)
	}
	v.honest.Ctx = 16
	var m wire.MemAllocReply
	if res, err := v.honest.Call(0, &wire.MemAllocArgs{Size: 4096}, &m); err != nil || res != cuda.Success {
		t.Fatal(res, err)
	}
	v.ptr = m.Ptr
	return v
}

func (v *containerVGPU) path() string { return filepath.Join(v.dir, api.ProgramsSession) }

// works has the honest program compute: what it copies there comes back.
func (v *containerVGPU) works(after string) {
	v.t.Helper()
	if err := v.honest.Send(&wire.MemcpyHtoDArgs{Dst: v.ptr, Src: []byte(after), Stream: wire.StreamLegacy}); err != nil {
		v.t.Fatalf("after %s: %v", after, err)
	}
	var back wire.MemcpyDtoHReply
	res, err := v.honest.Call(0, &wire.MemcpyDtoHArgs{Src: v.ptr, Size: uint32(len(after)), Stream: wire.StreamLegacy}, &back)
	if err != nil || res != cuda.Success || string(back.Dst) != after {
		v.t.Fatalf("after %s: %v, %v, %q", after, res, err, back.Dst)
	}
}

func (v *containerVGPU) sessions() []api.Session {
	st, err := v.client.Status(v.t.Context())
	if err != nil {
		v.t.Fatalf("%v: %s", err, v.log.String())
	}
	return st.Sessions
}

// descriptors and threads of the device process.
func (v *containerVGPU) holds() (files, threads int) {
	f, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", v.cmd.Process.Pid))
	th, err2 := os.ReadDir(fmt.Sprintf("/proc/%d/task", v.cmd.Process.Pid))
	if err := errors.Join(err, err2); err != nil {
		v.t.Fatal(err)
	}
	return len(f), len(th)
}

// hostile is a program that keeps its hands on its connection.
type hostile struct {
	t    *testing.T
	conn *net.UnixConn
	g    *workertest.Guest // after open
}

func (v *containerVGPU) hostile() *hostile {
	v.t.Helper()
	conn, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: v.path(), Net: "unixpacket"})
	if err != nil {
		v.t.Fatal(err)
	}
	v.t.Cleanup(func() { _ = conn.Close() })
	return &hostile{t: v.t, conn: conn}
}

// say sends a message with descriptors, which it takes over.
func (h *hostile) say(m remote.Hello, files ...int) {
	h.t.Helper()
	if err := sys.SendPacket(h.conn, remote.FormatHello(m, ""), files); err != nil && !errors.Is(err, unix.EPIPE) {
		h.t.Fatal(err)
	}
	sys.CloseAll(files)
}

// hello says hello with other descriptors than a library would.
func (h *hostile) hello(files ...int) {
	h.t.Helper()
	h.say(remote.Hello{Type: remote.MsgHello, Va: 0x6a0000000000, Size: remote.Region0Size}, files...)
}

// open is a session as a library begins it.
func (h *hostile) open() *hostile {
	h.t.Helper()
	g, err := workertest.Connect(h.conn)
	if err == nil {
		_, err = g.Init()
	}
	if err != nil {
		h.t.Fatal(err)
	}
	h.g = g
	return h
}

// refused is what the host says.
func (h *hostile) refused() string {
	b := make([]byte, 4096)
	_ = h.conn.SetReadDeadline(time.Now().Add(time.Minute))
	n, err := h.conn.Read(b)
	if errors.Is(err, unix.ECONNRESET) {
		n, err = h.conn.Read(b)
	}
	if err != nil {
		return err.Error()
	}
	_, text, err := remote.ParseHello(b[:n])
	if err != nil {
		return err.Error()
	}
	return text
}

// region passes a file as a region.
func (h *hostile) region(id uint32, size uint64, flags uint32, file int) {
	h.t.Helper()
	h.say(remote.Hello{Type: remote.MsgRegion, Region: id, Va: 0x6a0010000000 + uint64(id)<<24, Size: size, Flags: flags}, file)
}

// add has a region used.
func (h *hostile) add(id uint32, size uint64) (cuda.Result, error) {
	return h.g.Call(0, &wire.RegionAddArgs{Region: id, Kind: wire.RegionStaging, Va: 0x6a0010000000 + uint64(id)<<24, Size: size}, &wire.RegionAddReply{})
}

func bell(t *testing.T) int {
	t.Helper()
	fd, err := sys.NewEvent()
	if err != nil {
		t.Fatal(err)
	}
	return fd
}

// memfile is a file of memory; flags are memfd_create's.
func memfile(t *testing.T, size int64, flags int) int {
	t.Helper()
	fd, err := unix.MemfdCreate("hostile", unix.MFD_CLOEXEC|flags)
	if err == nil {
		err = unix.Ftruncate(fd, size)
	}
	if err != nil {
		t.Fatal(err)
	}
	return fd
}

// region0 is a first region as a library makes it, but for its seals.
func region0(t *testing.T, flags int) int {
	t.Helper()
	fd := memfile(t, int64(remote.Region0Size), flags)
	mem, err := unix.Mmap(fd, 0, int(remote.Region0Size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	remotetest.Prepare(mem)
	_ = unix.Munmap(mem)
	return fd
}

func disk(t *testing.T, size int64) int {
	t.Helper()
	name := filepath.Join(t.TempDir(), "disk")
	if err := errors.Join(os.WriteFile(name, nil, 0o600), os.Truncate(name, size)); err != nil {
		t.Fatal(err)
	}
	fd, err := unix.Open(name, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	return fd
}

func dup(t *testing.T, fd int) int {
	t.Helper()
	d, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		t.Fatal(err)
	}
	return d
}
