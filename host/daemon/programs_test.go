package daemon_test

import (
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"causeway/host/api"
	"causeway/host/daemon/daemontest"
)

// TestPrograms: a vGPU for programs has a folder that only root reaches on the host and everybody uses in a container. It is the same folder when the vGPU is
// lost and made again, and is gone with the vGPU. A vGPU becomes none for a VM while it is in use.
func TestPrograms(t *testing.T) {
	h := newHost(t, daemontest.Soft(1<<30)).start()
	s := api.Spec{VM: "claim-1", Name: "gpu0", Programs: true}
	v := h.ensure(s)
	if !v.Spec.Programs || v.Socket != filepath.Join(h.cfg.RunDir, "claim-1/gpu0.d/programs/session") {
		t.Fatalf("%+v", v)
	}
	inner := s.ProgramsPath(h.cfg.RunDir)
	folder := func(path string) fs.FileInfo {
		t.Helper()
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		return info
	}
	if in, out := folder(inner).Mode().Perm(), folder(filepath.Dir(inner)).Mode().Perm(); in != 0o755 || out != 0o700 {
		t.Errorf("modes %v and %v", in, out)
	}
	was := folder(inner)
	_ = syscall.Kill(v.PID, syscall.SIGKILL)
	until(t, "lost", func() bool { return h.vgpu(s).State == api.Lost })
	again := h.ensure(s)
	if !os.SameFile(was, folder(inner)) || again.PID == v.PID {
		t.Error("containers would not find the vGPU that was made again")
	}
	if v := h.ensure(api.Spec{VM: s.VM, Name: s.Name}); !v.Spec.Programs || v.PID != again.PID {
		t.Errorf("a wish that says nothing of it: %+v", v)
	}
	h.tell(s, api.Status{Connected: true})
	w, no := s.Wish(), false
	w.Programs = &no
	_, err := h.c.Ensure(t.Context(), w)
	refused(t, err, http.StatusConflict, "for programs of this host")
	h.tell(s, api.Status{})
	h.stop()
	h.start()
	if v := h.vgpu(s); v.PID != again.PID || v.Socket != again.Socket {
		t.Errorf("found again: %+v", v)
	}
	// The fake device leaves the second socket to us.
	ln, err := net.Listen("unix", filepath.Join(inner, api.ProgramsNVML))
	if err != nil {
		t.Fatal(err)
	}
	ln.(*net.UnixListener).SetUnlinkOnClose(false)
	_ = ln.Close()
	if err := h.c.Release(t.Context(), s.VM, s.Name, true); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(filepath.Join(h.cfg.RunDir, s.VM)); err == nil {
		t.Errorf("left: %v", h.below())
	}
}
