package inventory

import (
	"encoding/binary"
	"maps"
	"slices"
	"testing"
	"time"
)

// samplingLibrary also tells samples of what device 0 worked for; the other cannot tell.
type samplingLibrary struct {
	*fakeLibrary
	list  []fakeSample
	since []uint64 // what was asked for
}

type fakeSample struct {
	pid     uint32
	at      uint64
	percent uint32
}

// Call implements Library.
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
	for _, s := range l.list {
		if s.at <= since {
			continue
		}
		le.PutUint32(list, s.pid)
		le.PutUint64(list[8:], s.at)
		le.PutUint32(list[16:], s.percent)
		list = list[32:]
		n++
	}
	le.PutUint32(count, n)
	if n == 0 {
		return NotFound
	}
	return Success
}

// TestWork: samples add up, each for the time since the one before, whoever asks in between; a
// device that cannot tell says so.
func TestWork(t *testing.T) {
	lib := &samplingLibrary{fakeLibrary: newFake(2), list: []fakeSample{{4000, 10_000_000, 30}, {4001, 10_000_000, 100}}}
	s, err := OpenNVML(lib, func([]Identity) ([]int, error) { return []int{0, 1}, nil })
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	read := func(what string, want map[int]time.Duration) {
		t.Helper()
		r, err := s.Read()
		if err != nil || len(r.Worked) != 2 || !maps.Equal(r.Worked[0], want) || !slices.Equal(r.Sampled, []bool{true, false}) {
			t.Errorf("%s: %v %v, %v, want %v", what, r.Worked, r.Sampled, err, want)
		}
	}
	const ms = time.Millisecond
	read("the first samples are of a second", map[int]time.Duration{4000: 300 * ms, 4001: time.Second})
	read("nothing new", map[int]time.Duration{4000: 300 * ms, 4001: time.Second})
	lib.list = append(lib.list, fakeSample{4000, 15_000_000, 20})
	read("a mean of five seconds", map[int]time.Duration{4000: 1300 * ms, 4001: time.Second})
	lib.list = append(lib.list, fakeSample{4000, 16_000_000, 50}, fakeSample{4000, 17_000_000, 100}, fakeSample{4001, 16_000_000, 10})
	read("several of one process", map[int]time.Duration{4000: 2800 * ms, 4001: 1100 * ms})
	lib.list = append(lib.list, fakeSample{4001, 3_000_000_000, 100}, fakeSample{4002, 3_000_000_000, 4_000_000_000})
	read("absurd ones are bounded", map[int]time.Duration{4000: 2800 * ms, 4001: 21100 * ms, 4002: 20 * time.Second})
	if want := []uint64{0, 10_000_000, 10_000_000, 15_000_000, 17_000_000}; !slices.Equal(lib.since, want) {
		t.Errorf("asked for what came after %v, want %v", lib.since, want)
	}
}

// TestWorkIsBounded: processes that have ended are forgotten.
func TestWorkIsBounded(t *testing.T) {
	s := samples{total: map[int]time.Duration{}, last: map[int]uint64{}}
	for pid := range 3 * mostPIDs {
		s.seen = uint64(pid) * 1_000_000
		s.add(pid, s.seen, 0, 50)
		s.forget()
	}
	if len(s.total) > mostPIDs+61 || len(s.last) != len(s.total) {
		t.Errorf("%d processes are remembered", len(s.total))
	}
}

// TestAccountCounts: what the virtual GPU uses by its own account is used, also where no process
// says so; of several devices nobody knows which.
func TestAccountCounts(t *testing.T) {
	device := func() Device {
		d := Unknown()
		d.MemoryTotal, d.MemoryReserved = 1000, 0
		return d
	}
	one := &Reading{Devices: []Device{device()}}
	if d := AnswerFor(one, Owner{Limit: 500, Used: 200}).Devices[0]; d.MemoryTotal != 500 || d.MemoryUsed != 200 || d.MemoryFree != 300 {
		t.Errorf("%d of %d used, %d free", d.MemoryUsed, d.MemoryTotal, d.MemoryFree)
	}
	if d := AnswerFor(one, Owner{Limit: 500, Used: 700}).Devices[0]; d.MemoryUsed != 500 || d.MemoryFree != 0 {
		t.Errorf("beyond the limit: %d used, %d free", d.MemoryUsed, d.MemoryFree)
	}
	two := &Reading{Devices: []Device{device(), device()}}
	if d := AnswerFor(two, Owner{Limit: 500, Used: 200}).Devices[0]; d.MemoryUsed != 0 {
		t.Errorf("one of two devices: %d used", d.MemoryUsed)
	}
}
