package device_test

import (
	"errors"
	"testing"

	"causeway/host/device"
	"causeway/virtio/fs/fstest"
)

// TestPreCopyComesAndGoes: programs begin and end while the first rounds are made, while little is
// left, and when QEMU sends the VM already, the last of them unseen by any round. All that are
// there then move, whole, and nothing of the others is left on either side.
func TestPreCopyComesAndGoes(t *testing.T) {
	v, to := onSoft(t, nil), empty(t, nil)
	programs := []*holding{hold(t, v, 1), hold(t, v, 2)}
	turn := func(n byte) {
		t.Helper()
		if err := programs[0].Close(); err != nil {
			t.Error(err)
		}
		programs = append(programs[1:], hold(t, v, n))
	}
	c := precopy(t, v, to, device.CopyOptions{Connections: 2})
	turn(3)
	c.ready(t, len(programs))
	turn(4)
	programs[0].write(t, 3000, 99)
	front, err := fstest.Await(to.socket)
	if err != nil {
		t.Fatal(err)
	}
	logs(t, v)
	turn(5)
	c.moves(t, v, front, save(t, v))
	for _, h := range programs {
		h.check(t)
	}
	nothingIn(t, v)
	eventually(t, "there are other sessions than the programs'", func() bool { return len(to.device.Status().Sessions) == len(programs) })
	for _, h := range programs {
		if err := h.Close(); err != nil {
			t.Error(err)
		}
	}
	nothingIn(t, to)
}

// TestPreCopyCounts: a session that ends while nothing else begins is no longer counted among those
// whose memory goes ahead.
func TestPreCopyCounts(t *testing.T) {
	v, to := onSoft(t, nil), empty(t, nil)
	stays, ends := hold(t, v, 1), hold(t, v, 2)
	c := precopy(t, v, to, device.CopyOptions{})
	c.ready(t, 2)
	if err := ends.Close(); err != nil {
		t.Error(err)
	}
	c.ready(t, 1)
	c.cut(t)
	if err := stays.Close(); err != nil {
		t.Error(err)
	}
	nothingIn(t, to)
}

// TestPreCopyOutgrown: programs that grow, while their memory goes ahead, beyond what the other
// host's vGPU may have are told of, the state is refused there, and the VM goes on with all of
// them. When they have shrunk it moves.
func TestPreCopyOutgrown(t *testing.T) {
	v, to := onSoft(t, nil), empty(t, func(o *device.Options) { o.Limits.Memory = held * 5 / 2 })
	programs := []*holding{hold(t, v, 1)}
	c := precopy(t, v, to, device.CopyOptions{})
	c.ready(t, 1)
	programs = append(programs, hold(t, v, 2), hold(t, v, 3))
	eventually(t, "the source is not told", func() bool { return c.status().Why != "" })
	t.Log(c.status().Why)
	front, err := fstest.Await(to.socket)
	if err != nil {
		t.Fatal(err)
	}
	logs(t, v)
	state := save(t, v)
	if _, err := v.MoveTo(front, state); !errors.Is(err, fstest.ErrRefused) {
		t.Fatalf("it is where it has no room: %v", err)
	}
	front.Close()
	c.cut(t)
	nothingIn(t, to)
	if err := v.StartRings(); err != nil {
		t.Fatal(err)
	}
	for _, h := range programs {
		h.check(t)
	}
	if err := programs[1].Close(); err != nil {
		t.Error(err)
	}
	programs = append(programs[:1], programs[2])
	arrive(t, v, to.socket, save(t, v))
	for _, h := range programs {
		h.check(t)
		if err := h.Close(); err != nil {
			t.Error(err)
		}
	}
}
