package device_test

import (
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"causeway/host/device"
	"causeway/virtio/fs/fstest"
)

// TestLoadThatFailsIsTold: what the other host finds wrong with a state whose memory went ahead is
// known here, where QEMU says that something broke.
func TestLoadThatFailsIsTold(t *testing.T) {
	v, to := onSoft(t, nil), empty(t, nil)
	h := hold(t, v, 1)
	c := precopy(t, v, to, device.CopyOptions{})
	c.ready(t, 1)
	front, err := fstest.Await(to.socket)
	if err != nil {
		t.Fatal(err)
	}
	logs(t, v)
	state := slices.Clone(save(t, v))
	state[len(state)-1] ^= 1
	if _, err := v.MoveTo(front, state); !errors.Is(err, fstest.ErrRefused) {
		t.Errorf("moved: %v", err)
	}
	c.ended(t)
	eventually(t, "the source does not hear why", func() bool { return strings.Contains(v.device.Status().CopyEnd, "it was altered") })
	nothingIn(t, to)
	if err := v.StartRings(); err != nil {
		t.Fatal(err)
	}
	h.check(t)
	if err := h.Close(); err != nil {
		t.Error(err)
	}
}

// TestSaveThatFailsIsTold: a worker that is killed while it is about to write its session keeps the
// VM here, and Status says so until the VM is saved.
func TestSaveThatFailsIsTold(t *testing.T) {
	var victim atomic.Int64
	v := onSoft(t, func(o *device.Options) {
		o.Reached = func(part string) {
			pid := int(victim.Swap(0))
			if part != "saving" || pid == 0 {
				return
			}
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
				t.Error(err)
			}
		}
	})
	h := hold(t, v, 2)
	if err := v.StopRings(); err != nil {
		t.Fatal(err)
	}
	victim.Store(int64(v.device.Status().Sessions[0].Worker))
	if _, err := v.Save(); err == nil {
		t.Error("it is saved")
	}
	if why := v.device.Status().SaveEnd; !strings.Contains(why, "worker ended") {
		t.Errorf("the state is not saved, because: %q", why)
	}
	eventually(t, "the session is not lost", func() bool { return v.device.Status().Sessions[0].State == "dead" })
	if _, err := v.Save(); err != nil || v.device.Status().SaveEnd != "" {
		t.Errorf("the VM without that session: %v, %q", err, v.device.Status().SaveEnd)
	}
	if err := v.StartRings(); err != nil {
		t.Fatal(err)
	}
	_ = h.Close() // it has no worker
}
