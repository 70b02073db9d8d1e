package device

import (
	"testing"

	"causeway/vhostuser/vhosttest"
)

// TestInPlaceOfWhatThereIs: programs' memory on the host in place of a VM's is bounded by what the
// VM has, more when it gets more, less when some leaves; when the last leaves it is as before.
func TestInPlaceOfWhatThereIs(t *testing.T) {
	d, err := New(quietDevice(library(t)))
	if err != nil {
		t.Fatal(err)
	}
	add := func(gpa, size uint64) {
		m, err := vhosttest.NewMemory(gpa, size)
		if err != nil {
			t.Fatal(err)
		}
		fd, err := m.DupFD()
		if err == nil {
			err = d.mem.Add(fd, gpa, size, 1<<40+gpa, 0)
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(m.Close)
	}
	step := func(what string, want uint64) {
		t.Helper()
		if got := d.host.Part(); got != want {
			t.Errorf("%s: %d, not %d", what, got, want)
		}
	}
	step("without a VM", 0)
	add(0, 4<<20)
	step("its memory", 4<<20)
	add(1<<32, 2<<20)
	step("more of it", 6<<20)
	d.MemoryRemoving(d.mem.Regions()[1]) // as its table says it, which still has it
	step("less of it", 4<<20)
	d.mem.Clear()
	if d.host.Part() == 0 {
		t.Error("of a VM that is gone, or about to have other memory, nothing is known any more")
	}
}
