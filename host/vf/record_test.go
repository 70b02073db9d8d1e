package vf_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"causeway/host/vf"
)

// TestLock: who changes functions while another does waits, as long as it may.
func TestLock(t *testing.T) {
	h, m := host(t, 2)
	_, err := m.Assign(t.Context(), forVM("mlx5_0/0", vf.Settings{}), func(context.Context, *vf.VF) error {
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := h.Manager().Create(ended, "mlx5_0", 0, true); !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "another causeway") {
			t.Error(err)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// TestRecordSpoilt: a record that is no record is an error that says where it is, and nothing is
// changed by guess.
func TestRecordSpoilt(t *testing.T) {
	h, m := host(t, 1)
	path := filepath.Join(h.Root, "run/vfs.json")
	for _, text := range []string{"", "{", `{"format":2}`, strings.Repeat(" ", 2<<20)} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := m.Assign(t.Context(), forVM("mlx5_0/0", vf.Settings{}), nil); !errors.Is(err, vf.ErrRecord) || !strings.Contains(err.Error(), path) {
			t.Errorf("%.20q: %v", text, err)
		}
	}
	if len(h.Calls) != 0 {
		t.Errorf("%q", h.Calls)
	}
}

// TestHolder asks the real kernel who has a file open.
func TestHolder(t *testing.T) {
	f, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	own, err := os.Create(filepath.Join(t.TempDir(), "device"))
	if err != nil {
		t.Fatal(err)
	}
	k := vf.System{Proc: "/proc"}
	if pid, _, err := k.Holder("/nowhere", own.Name()); err != nil || pid != os.Getpid() {
		t.Errorf("%d, %v", pid, err)
	}
	if err := own.Close(); err != nil {
		t.Fatal(err)
	}
	if pid, _, err := k.Holder(own.Name()); err != nil || pid != 0 {
		t.Errorf("%d, %v", pid, err)
	}
	if _, err := k.Functions("no-such-link"); err == nil {
		t.Error("a link that is not there has functions")
	}
	if err := k.Write(filepath.Join(t.TempDir(), "x"), "1"); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
}
