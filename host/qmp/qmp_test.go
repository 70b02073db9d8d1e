package qmp_test

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"causeway/host/qmp"
	"causeway/host/qmp/qmptest"
)

func dial(t *testing.T, q *qmptest.QEMU) *qmp.Machine {
	t.Helper()
	path := filepath.Join(t.TempDir(), "q")
	q.Serve(t, path)
	m, err := qmp.Dial(path, 5*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.Close() })
	return m
}

func TestAttachDetach(t *testing.T) {
	q := &qmptest.QEMU{Ports: []string{"rp1", "rp2"}}
	m := dial(t, q)
	for name, want := range map[string]string{"gpu0": "rp1"} {
		port, err := m.Check(name)
		if err != nil || port != want {
			t.Fatalf("port %q, %v", port, err)
		}
		if err := m.Attach(name, "/run/x.sock", port); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := m.Check("gpu0"); !errors.Is(err, qmp.ErrExists) {
		t.Errorf("%v", err)
	}
	port, err := m.Check("a:b+c@d")
	if err != nil || port != "rp2" {
		t.Fatalf("port %q, %v", port, err)
	}
	if err := m.Attach("a:b+c@d", "/run/y.sock", port); err != nil {
		t.Fatal(err)
	}
	if _, err := m.Check("gpu2"); !errors.Is(err, qmp.ErrNoPort) {
		t.Errorf("%v", err)
	}
	for _, name := range []string{"a:b+c@d", "gpu0"} {
		if err := m.Detach(t.Context(), name); err != nil {
			t.Fatal(err)
		}
	}
	if chardevs, devices, _ := q.Has(); chardevs != 0 || devices != 0 {
		t.Errorf("%d chardevs and %d devices are left", chardevs, devices)
	}
	if err := m.Detach(t.Context(), "gpu0"); !errors.Is(err, qmp.ErrNoVGPU) {
		t.Errorf("%v", err)
	}
}

func TestUndone(t *testing.T) {
	q := &qmptest.QEMU{Ports: []string{"rp1"}, Refuse: map[string]string{"device_add": "vhost initialization failed"}}
	m := dial(t, q)
	err := m.Attach("gpu0", "/run/x.sock", "rp1")
	if err == nil || !strings.Contains(err.Error(), "vhost initialization failed") {
		t.Errorf("%v", err)
	}
	chardevs, devices, calls := q.Has()
	if chardevs != 0 || devices != 0 || !slices.Equal(calls, []string{"chardev-add", "chardev-remove"}) {
		t.Errorf("%d chardevs, %d devices, %v", chardevs, devices, calls)
	}
}

func TestRefused(t *testing.T) {
	for name, c := range map[string]struct {
		qemu *qmptest.QEMU
		err  error
	}{
		"private memory": {&qmptest.QEMU{Private: true, Ports: []string{"rp1"}}, qmp.ErrNoMemory},
		"no ports":       {&qmptest.QEMU{}, qmp.ErrNoPort},
	} {
		if _, err := dial(t, c.qemu).Check("gpu0"); !errors.Is(err, c.err) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestDeafGuest(t *testing.T) {
	q := &qmptest.QEMU{Ports: []string{"rp1"}, Deaf: true}
	m := dial(t, q)
	if err := m.Attach("gpu0", "/run/x.sock", "rp1"); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := m.Detach(ctx, "gpu0"); !errors.Is(err, qmp.ErrGuest) {
		t.Errorf("%v", err)
	}
	if _, devices, _ := q.Has(); devices != 1 {
		t.Errorf("%d devices", devices)
	}
}

func TestNoGreeting(t *testing.T) {
	path := filepath.Join(t.TempDir(), "q")
	if _, err := qmp.Dial(path, time.Second); err == nil {
		t.Error("connected to nobody")
	}
	(&qmptest.QEMU{Silent: true}).Serve(t, path)
	if _, err := qmp.Dial(path, 100*time.Millisecond); err == nil || !strings.Contains(err.Error(), "another program") {
		t.Errorf("%v", err)
	}
}

// What QEMU answers is not believed.
func FuzzAnswers(f *testing.F) {
	f.Add(`{"return": [{"share": true}]}`, `{"return": [{"devices": [{"qdev_id": "rp1", "pci_bridge": {"devices": []}}]}]}`)
	f.Add(`{"return": [{"share": 1}]}`, `{"return": {}}`)
	f.Add(`{"return": []}`, `{"return": [{"devices": [{"pci_bridge": {"devices": [{"pci_bridge": {}}]}}]}]}`)
	f.Fuzz(func(t *testing.T, memory, pci string) {
		m, err := qmp.New(&answers{memory, pci})
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		if port, err := m.Check("gpu0"); err == nil && port == "" {
			t.Error("no port and no error")
		}
	})
}
