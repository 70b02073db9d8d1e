package daemon_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"causeway/host/api"
	"causeway/host/daemon/daemontest"
)

// TestPrograms: a vGPU for programs has a folder that only root reaches on the host and everybody
// uses in a container. It is the same folder when the vGPU is lost and made again, and is gone with
// the vGPU. A vGPU becomes none for a VM while it is in use.
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

// TestProgramsOwner: the folder of a vGPU for programs lets its owner pass, who stays until another
// is said; nobody is one by the configuration.
func TestProgramsOwner(t *testing.T) {
	h := newHost(t, daemontest.Soft(1<<30))
	h.cfg.Devices.SocketOwner = "0"
	h.start()
	passes := func(s api.Spec) string {
		t.Helper()
		b := make([]byte, 256)
		n, err := unix.Getxattr(filepath.Dir(s.ProgramsPath(h.cfg.RunDir)), "system.posix_acl_access", b)
		if errors.Is(err, unix.ENODATA) {
			return ""
		}
		if err != nil {
			t.Fatal(err)
		}
		var who []string
		for b = b[4:n]; len(b) > 0; b = b[8:] {
			if tag := binary.LittleEndian.Uint16(b); /* a user, others, the group (acl(5)) */ tag == 0x02 || tag == 0x20 || tag == 0x04 {
				who = append(who, fmt.Sprint(tag, binary.LittleEndian.Uint16(b[2:]), int32(binary.LittleEndian.Uint32(b[4:]))))
			}
		}
		return strings.Join(who, ", ")
	}
	s := api.Spec{VM: "slurm-1", Name: "gpu0", Programs: true, Owner: "12345"}
	h.ensure(s)
	const want = "2 1 12345, 4 0 -1, 32 0 -1"
	if got := passes(s); got != want {
		t.Errorf("who passes: %s", got)
	}
	if v := h.ensure(api.Spec{VM: s.VM, Name: s.Name}); v.Spec.Owner != "12345" || passes(s) != want {
		t.Errorf("a wish that says nothing of it: %q, %s", v.Spec.Owner, passes(s))
	}
	other := api.Spec{VM: "claim-2", Name: "gpu0", Programs: true}
	if v := h.ensure(other); v.Spec.Owner != "" || passes(other) != "" {
		t.Errorf("without an owner: %q, %s", v.Spec.Owner, passes(other))
	}
}
