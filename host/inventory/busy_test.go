package inventory

import (
	"encoding/binary"
	"testing"
)

// samplingLibrary also tells samples of what devices worked for.
type samplingLibrary struct {
	*fakeLibrary
	since []uint64 // what was asked for
}

// Call implements Library. Device 0 has three samples of two processes, at 10 s and later; the other cannot tell.
func (l *samplingLibrary) Call(entry string, args ...any) Return {
	if entry != "nvmlDeviceGetProcessUtilization" {
		return l.fakeLibrary.Call(entry, args...)
	}
	list, count, since := args[1].([]byte), args[2].([]byte), args[3].(uint64)
	if args[0].(uint64) != 100 {
		return NotSupported
	}
	l.since = append(l.since, since)
	le := binary.LittleEndian
	n := uint32(0)
	for i, s := range []struct{ pid, sm uint32 }{{4000, 30}, {4001, 100}, {4000, 50}} {
		at := uint64(10_000_000 + i)
		if at <= since {
			continue
		}
		le.PutUint32(list, s.pid)
		le.PutUint64(list[8:], at)
		le.PutUint32(list[16:], s.sm)
		list = list[32:]
		n++
	}
	le.PutUint32(count, n)
	return Success
}

// TestBusy: the mean of the samples since the last reading, by process.
func TestBusy(t *testing.T) {
	lib := &samplingLibrary{fakeLibrary: newFake(2)}
	s, err := OpenNVML(lib, func([]Identity) ([]int, error) { return []int{0, 1}, nil })
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	r, err := s.Read()
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Busy) != 2 || r.Busy[0][4000] != 40 || r.Busy[0][4001] != 100 || len(r.Busy[1]) != 0 {
		t.Errorf("%v", r.Busy)
	}
	if r, err = s.Read(); err != nil || len(r.Busy[0]) != 0 {
		t.Errorf("nothing new: %v, %v", r.Busy, err)
	}
	if len(lib.since) != 2 || lib.since[0] != 0 || lib.since[1] != 10_000_002 {
		t.Errorf("asked for what came after %v", lib.since)
	}
}

// TestAccountCounts: what the virtual GPU uses by its own account is used, also where no process says so; of several devices nobody knows
// which.
func TestAccountCounts(t *testing.T) {
	device := func() Device {
		d := Unknown()
		d.MemoryTotal, d.MemoryReserved = 1000, 0
		return d
	}
	one := &Reading{Devices: []Device{device()}}
	if d := View(one, Owner{Limit: 500, Used: 200}).Devices[0]; d.MemoryTotal != 500 || d.MemoryUsed != 200 || d.MemoryFree != 300 {
		t.Errorf("%d of %d used, %d free", d.MemoryUsed, d.MemoryTotal, d.MemoryFree)
	}
	if d := View(one, Owner{Limit: 500, Used: 700}).Devices[0]; d.MemoryUsed != 500 || d.MemoryFree != 0 {
		t.Errorf("beyond the limit: %d used, %d free", d.MemoryUsed, d.MemoryFree)
	}
	two := &Reading{Devices: []Device{device(), device()}}
	if d := View(two, Owner{Limit: 500, Used: 200}).Devices[0]; d.MemoryUsed != 0 {
		t.Errorf("one of two devices: %d used", d.MemoryUsed)
	}
}
