package fs_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"causeway/vhostuser"
	"causeway/virtio/fs"
	"causeway/virtio/virtiotest"
)

const scTerm = 7

// termControl lends pages for terms of a second, for ever, or ends sessions.
type termControl struct {
	reads    chan struct{} // one per loan
	revoked  chan int
	released chan struct{}
	end      atomic.Bool
	marks    atomic.Uint32
}

func (c *termControl) Open(fs.Caller) (fs.ControlHandle, syscall.Errno) {
	if c.end.Load() { // else the guest has another before QEMU, on a busy machine, has saved it
		return nil, syscall.EBUSY
	}
	return &termHandle{c}, 0
}

type termHandle struct{ c *termControl }

func (h *termHandle) Write(w *fs.WriteRequest)                 { w.Complete(0, syscall.EINVAL) }
func (h *termHandle) Flush(uint64)                             {}
func (h *termHandle) Release()                                 { h.c.released <- struct{}{} }
func (h *termHandle) Revoke(_ context.Context, p []fs.Request) { h.c.revoked <- len(p) }
func (h *termHandle) Read(r *fs.ReadRequest) {
	if r.Offset>>32 != scTerm {
		r.Complete(0, syscall.EINVAL)
		return
	}
	r.CopyIn([]byte{byte(h.c.marks.Add(1))}, 0)
	h.c.reads <- struct{}{}
	time.AfterFunc(time.Second, func() {
		if h.c.end.Load() {
			r.Complete(0, syscall.EPIPE)
		} else {
			r.Complete(0, 0)
		}
	})
}

// vm is a running QEMU with its monitor.
type vm struct {
	t    *testing.T
	cmd  *exec.Cmd
	out  *virtiotest.Log
	conn net.Conn
	dec  *json.Decoder
	done chan struct{}
}

func startVM(t *testing.T, qemu string, args ...string) *vm {
	t.Helper()
	sock := filepath.Join(t.TempDir(), "qmp")
	v := &vm{t: t, out: &virtiotest.Log{}, done: make(chan struct{})}
	v.cmd = exec.Command(qemu, append(args, "-qmp", "unix:"+sock+",server=on,wait=off")...)
	v.cmd.Stdout, v.cmd.Stderr = v.out, v.out
	if err := v.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = v.cmd.Wait()
		close(v.done)
	}()
	t.Cleanup(func() {
		v.kill()
		t.Logf("QEMU's console:\n%s", v.out)
	})
	within(t, "QEMU's monitor", 10*time.Second, func() bool {
		var err error
		v.conn, err = net.Dial("unix", sock)
		return err == nil
	})
	t.Cleanup(func() { v.conn.Close() })
	v.dec = json.NewDecoder(v.conn)
	var greeting map[string]any
	if err := v.dec.Decode(&greeting); err != nil {
		t.Fatal(err)
	}
	v.qmp("qmp_capabilities", nil)
	return v
}

func (v *vm) kill() {
	_ = v.cmd.Process.Kill()
	<-v.done
}

// qmp runs a monitor command that must succeed.
func (v *vm) qmp(cmd string, args map[string]any) map[string]any {
	v.t.Helper()
	r, err := v.try(cmd, args)
	if err != nil {
		v.t.Fatalf("%s: %v", cmd, err)
	}
	return r
}

// try runs a monitor command. Events are skipped.
func (v *vm) try(cmd string, args map[string]any) (map[string]any, error) {
	v.t.Helper()
	req := map[string]any{"execute": cmd}
	if args != nil {
		req["arguments"] = args
	}
	_ = v.conn.SetDeadline(time.Now().Add(time.Minute))
	if err := json.NewEncoder(v.conn).Encode(req); err != nil {
		v.t.Fatalf("%s: %v", cmd, err)
	}
	for {
		var m map[string]any
		if err := v.dec.Decode(&m); err != nil {
			v.t.Fatalf("%s: the monitor is gone: %v", cmd, err)
		}
		if e, ok := m["error"]; ok {
			return nil, fmt.Errorf("%v", e)
		}
		if r, ok := m["return"]; ok {
			p, _ := r.(map[string]any)
			return p, nil
		}
	}
}

// migrate saves the guest to a file and returns how that ended.
func (v *vm) migrate(path string) (status string) {
	v.t.Helper()
	v.qmp("migrate", map[string]any{"uri": "exec:cat > " + path})
	within(v.t, "the migration's end", 60*time.Second, func() bool {
		status, _ = v.qmp("query-migrate", nil)["status"].(string)
		return status == "completed" || status == "failed"
	})
	return status
}

func within(t *testing.T, what string, d time.Duration, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(d); !cond(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("did not happen in %v: %s", d, what)
		}
	}
}

// await receives with a limit.
func await[T any](t *testing.T, what string, ch <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-ch:
	case <-time.After(time.Minute):
		t.Fatalf("did not happen: %s", what)
	}
	return v
}

// drain forgets what happened so far.
func drain[T any](ch <-chan T) {
	for {
		select {
		case <-ch:
		default:
			return
		}
	}
}

// TestVMSuspendMigrateUnplug takes one guest with a pending loan through QEMU's stop and cont, a
// migration that must fail and resume (a session is open), one that succeeds into a second QEMU on
// the same socket, memory hot-plug and hot-unplug of the device.
func TestVMSuspendMigrateUnplug(t *testing.T) {
	qemu := findQEMU(t)
	programs := guestPrograms(t)
	kernel, initrd := findKernel(t, "6.12", programs)

	ctl := &termControl{reads: make(chan struct{}, 100), revoked: make(chan int, 100), released: make(chan struct{}, 100)}
	root := fs.NewDir()
	root.Control("session", ctl)
	mem := vhostuser.NewMemory()
	gone := make(chan struct{}, 8)
	dev, err := fs.New(mem, root, fs.Options{RequestQueues: 2, OnDisconnect: func() { gone <- struct{}{} }})
	if err != nil {
		t.Fatal(err)
	}
	sock := filepath.Join(t.TempDir(), "v.sock")
	ln, err := vhostuser.Listen(sock)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- vhostuser.NewServer(mem, dev, vhostuser.Options{}).Serve(ctx, ln) }()
	t.Cleanup(func() {
		cancel()
		if err := <-served; err != nil {
			t.Errorf("server: %v", err)
		}
	})

	args := qemuArgs(kernel, initrd, sock, "mode=loop")
	v := startVM(t, qemu, args...)
	await(t, "the first loan", ctl.reads)

	v.qmp("stop", nil)
	await(t, "revocation at stop", ctl.revoked)
	drain(ctl.reads)
	v.qmp("cont", nil)
	await(t, "a new loan after cont", ctl.reads)

	image := filepath.Join(t.TempDir(), "image")
	if s := v.migrate(image); s != "failed" {
		t.Errorf("migration with an open session: %s", s)
	}
	drain(ctl.reads)
	await(t, "a loan after the failed migration", ctl.reads)

	ctl.end.Store(true)
	await(t, "the session's end", ctl.released)
	if s := v.migrate(image); s != "completed" {
		t.Fatalf("migration: %s", s)
	}
	v.qmp("quit", nil)
	await(t, "the first QEMU's disconnect", gone)
	ctl.end.Store(false)
	drain(ctl.reads)

	v = startVM(t, qemu, append(args, "-incoming", "exec:cat "+image)...)
	await(t, "a loan on the destination", ctl.reads)

	before := len(mem.Regions())
	v.qmp("object-add", map[string]any{"qom-type": "memory-backend-memfd", "id": "m2", "size": 128 << 20, "share": true})
	v.qmp("device_add", map[string]any{"driver": "pc-dimm", "id": "dimm", "memdev": "m2"})
	within(t, "a region for the new memory", 10*time.Second, func() bool { return len(mem.Regions()) > before })
	drain(ctl.reads)
	await(t, "a loan after memory was added", ctl.reads)

	// The guest waits for all requests in flight, then lets go; the socket closes with its chardev.
	v.qmp("device_del", map[string]any{"id": "gpu"})
	within(t, "unplug", 40*time.Second, func() bool {
		_, err := v.try("chardev-remove", map[string]any{"id": "c"})
		return err == nil
	})
	await(t, "the unplugged device's disconnect", gone)
	within(t, "memory is unmapped", time.Second, func() bool { return len(mem.Regions()) == 0 })
	v.qmp("quit", nil)
	await(t, "QEMU's end", v.done)
}
