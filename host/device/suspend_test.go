package device_test

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/device"
	"causeway/host/device/sealed"
	"causeway/host/worker/link"
	"causeway/host/worker/workertest"
)

// asleep boots a VM with a session on the software GPU that holds "kept" in device memory, and 64
// MiB of zeros.
func asleep(t *testing.T, limit uint64) (*onGPU, *guestOfMemory) {
	t.Helper()
	g := &onGPU{T: t, limit: limit}
	g.v = bootWith(t, func(o *device.Options) {
		o.Worker, o.Limits.Memory = link.Config{GPU: "soft", Devices: []int{0}}, limit
	})
	s := &guestOfMemory{onGPU: g, Guest: g.session()}
	var m, zeros wire.MemAllocReply
	must(t, s.Guest, &wire.MemAllocArgs{Size: 4096}, &m)
	must(t, s.Guest, &wire.MemAllocArgs{Size: 64 * mib}, &zeros)
	must(t, s.Guest, &wire.MemsetArgs{Dst: zeros.Ptr, Element: 1, Width: 64 * mib, Height: 1, Stream: wire.StreamLegacy}, nil)
	s.ptr = m.Ptr
	id, mem, res, err := s.AddRegion(0, wire.RegionPinned, mib)
	if err != nil || res != cuda.Success {
		t.Fatal(res, err)
	}
	s.region, s.mem = id, mem
	if err := s.Send(&wire.MemcpyHtoDArgs{Dst: m.Ptr, Src: []byte("kept"), Stream: wire.StreamLegacy}); err != nil {
		t.Fatal(err)
	}
	must(t, s.Guest, &wire.CtxSynchronizeArgs{}, nil)
	time.Sleep(30 * time.Millisecond) // idle
	return g, s
}

// TestSuspendSessions: a suspended session has no worker and no memory of the GPU, its loans go
// on, and the next call finds everything as it was.
func TestSuspendSessions(t *testing.T) {
	g, s := asleep(t, 1<<30)
	for range 2 {
		did, err := g.v.device.Suspend(context(), device.Suspension{})
		if err != nil || did.Sessions != 1 || did.Bytes == 0 || did.Bytes > 4*mib {
			// zeros take no room
			t.Fatalf("%+v, %v", did, err)
		}
		st := g.v.device.Status()
		if len(st.Sessions) != 1 || st.Sessions[0].State != "suspended" || st.Sessions[0].Worker != 0 || st.Memory != 0 || st.Sessions[0].Stored != did.Bytes {
			t.Errorf("%+v", st)
		}
		if did, err := g.v.device.Suspend(context(), device.Suspension{}); err != nil || did.Sessions != 0 {
			t.Errorf("twice: %+v, %v", did, err)
		}
		time.Sleep(2500 * time.Millisecond) // loans are renewed, and nothing wakes it
		if st := g.v.device.Status().Sessions; len(st) != 1 || st[0].State != "suspended" {
			t.Fatalf("%+v", st)
		}
		s.holds("kept")
		if st := g.v.device.Status().Sessions; len(st) != 1 || st[0].State != "running" || st[0].Memory < 64*mib {
			t.Errorf("%+v", st)
		}
		time.Sleep(30 * time.Millisecond)
	}
	if _, err := g.v.device.Suspend(context(), device.Suspension{}); err != nil {
		t.Fatal(err)
	}
	if did, err := g.v.device.Resume(context(), device.Suspension{}); err != nil || did.Sessions != 1 {
		t.Errorf("resumed %+v, %v", did, err)
	}
	s.holds("kept")
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// TestSuspendedEnds: a program that ends while its session is suspended leaves nothing.
func TestSuspendedEnds(t *testing.T) {
	g, s := asleep(t, 1<<30)
	if did, err := g.v.device.Suspend(context(), device.Suspension{}); err != nil || did.Sessions != 1 {
		t.Fatal(did, err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	eventually(t, "the session stays", func() bool { return len(g.v.device.Status().Sessions) == 0 })
}

// TestSuspendedWaitsForRoom: what another session has taken meanwhile is not there; the program
// waits until it is given back.
func TestSuspendedWaitsForRoom(t *testing.T) {
	g, s := asleep(t, 256*mib)
	if did, err := g.v.device.Suspend(context(), device.Suspension{}); err != nil || did.Sessions != 1 {
		t.Fatal(did, err)
	}
	other := g.session()
	var m wire.MemAllocReply
	must(t, other, &wire.MemAllocArgs{Size: 220 * mib}, &m)
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.holds("kept")
	}()
	select {
	case <-done:
		t.Error("it goes on without memory")
	case <-time.After(time.Second):
	}
	must(t, other, &wire.MemFreeArgs{Ptr: m.Ptr}, nil)
	must(t, other, &wire.CtxSynchronizeArgs{}, nil)
	select {
	case <-done:
	case <-time.After(time.Minute):
		t.Fatal("it does not go on")
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// guestOfMemory is a guest process with four bytes of device memory.
type guestOfMemory struct {
	*onGPU
	*workertest.Guest
	ptr    uint64
	region uint32
	mem    []byte
	word   uint32
}

// holds reads the device memory.
func (s *guestOfMemory) holds(want string) {
	s.T.Helper()
	s.word++
	if err := s.Send(&wire.MemcpyStagedArgs{Direction: 1, Region: s.region, Size: 4, Device: s.ptr, Stream: wire.StreamLegacy, Word: 1, Value: s.word}); err != nil {
		s.T.Error(err)
		return
	}
	if res, err := s.Call(0, &wire.CtxSynchronizeArgs{}, nil); err != nil || res != cuda.Success {
		s.T.Error(res, err)
	}
	if string(s.mem[:4]) != want {
		s.T.Errorf("memory holds %q", s.mem[:4])
	}
}

// TestSuspendedInFile: a file that nobody can find, see into or change holds the session; what is
// wrong with its place is said before anything stops.
func TestSuspendedInFile(t *testing.T) {
	g, s := asleep(t, 1<<30)
	dir := t.TempDir()
	for what, c := range map[string]struct {
		to  string
		err error
	}{
		"a folder that is not there": {filepath.Join(dir, "none"), os.ErrNotExist},
		"no absolute path":           {"kept", device.ErrNoDisk},
		"a file":                     {tempFile(t), device.ErrNoDisk},
		// A file system with 0 bytes.
		"no room": {"/proc/self", device.ErrNoDisk},
	} {
		if did, err := g.v.device.Suspend(context(), device.Suspension{To: c.to}); !errors.Is(err, c.err) || !errors.Is(err, device.ErrNoDisk) || did.Sessions != 0 {
			t.Errorf("%s: %+v, %v", what, did, err)
		}
		if st := g.v.device.Status().Sessions; len(st) != 1 || st[0].State != "running" {
			t.Errorf("%s: %+v", what, st)
		}
	}
	id := g.v.device.Status().Sessions[0].ID
	if _, err := g.v.device.Suspend(context(), device.Suspension{Session: id + 1}); !errors.Is(err, device.ErrNoSession) {
		t.Error(err)
	}
	for range 2 {
		did, err := g.v.device.Suspend(context(), device.Suspension{To: dir, Session: id})
		if err != nil || did.Sessions != 1 || did.Folder != dir {
			t.Fatalf("%+v, %v", did, err)
		}
		if st := g.v.device.Status().Sessions[0]; st.State != "suspended" || st.StoredIn != dir || st.Stored != did.Bytes {
			t.Errorf("%+v", st)
		}
		if list, err := os.ReadDir(dir); err != nil || len(list) > 0 {
			t.Errorf("%v, %v", list, err)
		}
		f := deleted(t, dir)
		b, err := io.ReadAll(f)
		if err != nil || uint64(len(b)) != did.Bytes || bytes.Contains(b, []byte("kept")) {
			t.Errorf("%d bytes of %d, %v", len(b), did.Bytes, err)
		}
		if info, err := f.Stat(); err != nil || info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%v, %v", info.Mode(), err)
		}
		_ = f.Close()
		s.holds("kept")
		time.Sleep(30 * time.Millisecond)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// TestSuspendedGoesToFile: what is suspended in the host's memory, or another folder, is put into
// the folder that is named; what is wrong with that leaves it where it was.
func TestSuspendedGoesToFile(t *testing.T) {
	g, s := asleep(t, 1<<30)
	other, dir := t.TempDir(), t.TempDir()
	suspend := func(to string) device.Suspended {
		t.Helper()
		did, err := g.v.device.Suspend(context(), device.Suspension{To: to})
		if err != nil {
			t.Fatal(err)
		}
		return did
	}
	lies := func(want string, bytes uint64) {
		t.Helper()
		if st := g.v.device.Status().Sessions[0]; st.State != "suspended" || st.StoredIn != want || st.Stored != bytes || st.Worker != 0 {
			t.Errorf("%+v", st)
		}
	}
	for _, first := range []string{"", other} {
		did := suspend(first)
		if _, err := g.v.device.Suspend(context(), device.Suspension{To: "/proc/self"}); !errors.Is(err, device.ErrNoDisk) {
			// A file system with 0 bytes.
			t.Error(err)
		}
		lies(first, did.Bytes)
		did = suspend(dir)
		if did.Sessions != 1 || did.Folder != dir {
			t.Errorf("%+v", did)
		}
		lies(dir, did.Bytes)
		if did := suspend(dir); did.Sessions != 0 {
			t.Errorf("it lies there, and is put there again: %+v", did)
		}
		f := deleted(t, dir)
		if b, err := io.ReadAll(f); err != nil || uint64(len(b)) != did.Bytes || bytes.Contains(b, []byte("kept")) {
			t.Errorf("%d bytes of %d, %v", len(b), did.Bytes, err)
		}
		_ = f.Close()
		s.holds("kept")
		time.Sleep(30 * time.Millisecond) // idle
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// TestSuspendedFileAltered: a session whose file is another one, or shorter, does not come back as
// another one.
func TestSuspendedFileAltered(t *testing.T) {
	for what, alter := range map[string]func(*os.File) error{
		"a byte": func(f *os.File) error { _, err := f.WriteAt([]byte{77}, 100); return err },
		"cut":    func(f *os.File) error { return f.Truncate(200) },
	} {
		t.Run(what, func(t *testing.T) {
			g, s := asleep(t, 1<<30)
			dir := t.TempDir()
			if did, err := g.v.device.Suspend(context(), device.Suspension{To: dir}); err != nil || did.Sessions != 1 {
				t.Fatal(did, err)
			}
			f := deleted(t, dir)
			if err := alter(f); err != nil {
				t.Fatal(err)
			}
			_ = f.Close()
			if did, err := g.v.device.Resume(context(), device.Suspension{}); !errors.Is(err, sealed.ErrAltered) || did.Sessions != 0 {
				t.Errorf("%+v, %v", did, err)
			}
			if res, err := s.Call(0, &wire.CtxSynchronizeArgs{}, nil); err == nil && res == cuda.Success {
				t.Error("the program goes on")
			}
			_ = s.Close()
			eventually(t, "the session stays", func() bool { return len(g.v.device.Status().Sessions) == 0 })
		})
	}
}

// tempFile is a file that is no folder.
func tempFile(t *testing.T) string {
	t.Helper()
	f, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	return f.Name()
}

// deleted opens the file without a name that this process has in a folder.
func deleted(t *testing.T, dir string) *os.File {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range list {
		name := filepath.Join("/proc/self/fd", e.Name())
		if to, err := os.Readlink(name); err == nil && strings.HasPrefix(to, dir+"/") {
			f, err := os.OpenFile(name, os.O_RDWR, 0)
			if err != nil {
				t.Fatal(err)
			}
			return f
		}
	}
	t.Fatal("there is no file in the folder")
	return nil
}
