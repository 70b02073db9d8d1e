package device_test

import (
	"strings"
	"testing"

	"causeway/cuda/wire"
	"causeway/host/device"
	"causeway/host/driver/soft/softtest"
	"causeway/host/worker/link"
	"causeway/virtio/fs/fstest"
)

// TestRehearsal: what would come out another at the other host is said while programs run, by name,
// and the VM stays; when it is gone the VM moves.
func TestRehearsal(t *testing.T) {
	set := func(o *device.Options) {
		o.Worker = link.Config{GPU: softtest.DifferentGPU, Migratable: true, Base: link.DrawBase()}
	}
	from, to := bootWith(t, set), bootWith(t, set)
	if err := to.Kill(); err != nil {
		t.Fatal(err)
	}
	to.Guest = nil
	stays, moves := hold(t, from, 1), hold(t, from, 2)
	var m wire.MemAllocReply
	must(t, stays.Guest, &wire.MemAllocArgs{Size: softtest.Wanders}, &m)

	c := precopy(t, from, to, device.CopyOptions{})
	eventually(t, "the other host finds nothing", func() bool { return c.status().Unmovable != "" })
	if st := c.status(); st.Ready || !strings.Contains(st.Unmovable, "comes out beside where it was") {
		t.Errorf("%+v", st)
	}
	said := func() (list []string) {
		for _, s := range from.device.Status().Sessions {
			list = append(list, s.Unmovable)
		}
		return list
	}
	if list := said(); len(list) != 2 || !strings.Contains(list[0], "comes out beside") || list[1] != "" {
		t.Errorf("the device says %q", list)
	}
	c.cut(t)
	stays.check(t)
	moves.check(t)
	if list := said(); len(list) != 2 || list[0] != "" {
		t.Errorf("when it is over the device says %q", list)
	}
	must(t, stays.Guest, &wire.MemFreeArgs{Ptr: m.Ptr}, nil)

	c = precopy(t, from, to, device.CopyOptions{})
	c.ready(t, 2)
	front, err := fstest.Await(to.socket)
	if err != nil {
		t.Fatal(err)
	}
	logs(t, from)
	c.moves(t, from, front, save(t, from))
	for _, h := range []*holding{stays, moves} {
		h.check(t)
		if err := h.Close(); err != nil {
			t.Error(err)
		}
	}
}
