package inventory

import (
	"bytes"
	"reflect"
	"strings"
	"testing"
)

func watched(t *testing.T, f *fakeLibrary) *NVML {
	t.Helper()
	s, err := OpenNVML(f, all)
	if err != nil {
		t.Fatal(err)
	}
	s.Watch()
	return s
}

func (s *NVML) mustRead(t *testing.T) *Reading {
	t.Helper()
	r, err := s.Read()
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// TestFaults: each event is told once, by the device that had it.
func TestFaults(t *testing.T) {
	f := newFake(2)
	s := watched(t, f)
	if f.registered != 2 {
		t.Errorf("%d devices report events", f.registered)
	}
	if r := s.mustRead(t); len(r.Faults) != 0 {
		t.Errorf("faults of healthy devices: %+v", r.Faults)
	}
	f.events = []fakeEvent{{1, eventXID, 79}, {0, eventDoubleBit, 0}}
	want := []Fault{{fakeUUID(1), 79, "XID 79"}, {fakeUUID(0), 48, "uncorrectable memory error"}}
	if r := s.mustRead(t); !reflect.DeepEqual(r.Faults, want) {
		t.Errorf("%+v, want %+v", r.Faults, want)
	}
	if r := s.mustRead(t); len(r.Faults) != 0 {
		t.Errorf("told twice: %+v", r.Faults)
	}
	for range 200 {
		f.events = append(f.events, fakeEvent{0, eventXID, 31})
	}
	if r := s.mustRead(t); len(r.Faults) != maxEvents {
		t.Errorf("%d faults at once", len(r.Faults))
	}
}

// TestCounters: what grows is a fault, what was there before is none.
func TestCounters(t *testing.T) {
	f := newFake(1)
	f.ecc = 5
	s := watched(t, f)
	if r := s.mustRead(t); len(r.Faults) != 0 {
		t.Errorf("old errors: %+v", r.Faults)
	}
	f.ecc = 7
	if r := s.mustRead(t); len(r.Faults) != 1 || r.Faults[0].UUID != fakeUUID(0) || r.Faults[0].Text != "2 more uncorrectable memory errors" {
		t.Errorf("new errors: %+v", r.Faults)
	}
}

// TestGone: a device that fell off its bus is said to have, once, and the others are told of as
// before.
func TestGone(t *testing.T) {
	f := newFake(2)
	s := watched(t, f)
	f.lost = map[uint32]bool{0: true}
	r := s.mustRead(t)
	if len(r.Faults) != 1 || r.Faults[0].UUID != fakeUUID(0) || !strings.Contains(r.Faults[0].Text, "does not answer") {
		t.Errorf("%+v", r.Faults)
	}
	if len(r.Devices) != 2 || FormatUUID(r.Devices[0].UUID) != fakeUUID(0) || r.Devices[0].MemoryTotal != Unknown64 || r.Devices[1].MemoryTotal != 1000 {
		t.Errorf("%+v", r.Devices)
	}
	if r := s.mustRead(t); len(r.Faults) != 0 {
		t.Errorf("told twice: %+v", r.Faults)
	}
}

func TestSlices(t *testing.T) {
	r := watched(t, newFake(2)).mustRead(t)
	if want := []Slice{{"MIG-a", fakeUUID(0), "1g.18gb", 180, 3, 0}}; !reflect.DeepEqual(r.Slices, want) {
		t.Errorf("%+v, want %+v", r.Slices, want)
	} else if name := r.Slices[0].Name(); name != "MIG-"+fakeUUID(0)+"/3/0" {
		t.Errorf("the slice's older name: %s", name)
	}
	if name := (&Slice{Parent: "GPU-a", GPUInstance: 1, ComputeInstance: Unknown32}).Name(); name != "" {
		t.Errorf("a slice of which little is known: %s", name)
	}
}

// TestNoEvents: a driver without events has its counters watched.
func TestNoEvents(t *testing.T) {
	f := newFake(1)
	f.fails["nvmlEventSetCreate"] = NotSupported
	s := watched(t, f)
	f.events = []fakeEvent{{0, eventXID, 79}}
	if r := s.mustRead(t); len(r.Faults) != 0 || f.calls["nvmlEventSetWait_v2"] != 0 {
		t.Errorf("%+v", r.Faults)
	}
}

// TestWatchedChild: faults and slices come through the child's pipe.
func TestWatchedChild(t *testing.T) {
	f := newFake(1)
	s := watched(t, f)
	f.events = []fakeEvent{{0, eventXID, 79}}
	var out bytes.Buffer
	if err := Serve(strings.NewReader("\n"), &out, s); err != nil {
		t.Fatal(err)
	}
	if !bytes.Contains(out.Bytes(), []byte("XID 79")) || !bytes.Contains(out.Bytes(), []byte("MIG-a")) {
		t.Errorf("%q", out.Bytes())
	}
}
