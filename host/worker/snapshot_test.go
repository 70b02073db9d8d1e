package worker

import (
	"bytes"
	"errors"
	"io"
	"maps"
	"reflect"
	"testing"

	"causeway/cuda/wire"
	"causeway/host/worker/link"
	"causeway/host/worker/state"
	"causeway/remote"
	"causeway/remote/shm"
)

// sampleSnapshot has something in every field.
func sampleSnapshot() *snapshot {
	return &snapshot{
		Virtiofs: &virtiofsState{
			Head: 4096, Guest: []link.MemoryRegion{{GPA: 1 << 30, Size: 1 << 20, Offset: 4096}},
			Regions: []shm.RegionState{{ID: 1, VA: 1 << 40, Size: 8192, Offset: 1, Shared: true, Part: 2}},
			Pieces:  map[uint32]map[uint64][]link.Range{1: {4096: {{GPA: 1 << 30, Size: 4096}}}},
		},
		Sticky: 1, Deferred: 2, Console: []byte("out"), ConsoleErrs: []byte("err"), ConsoleLost: true,
		Calls: callbackState{Open: true, Slot: 3, Base: 4, Number: 5}, Watch: watchState{Wanted: true, Over: true, Limit: 6},
		More:     map[uint32][]byte{7: []byte("more")},
		Blobs:    map[uint32]blobState{8: {Total: 100, Bytes: []byte("half")}},
		Requests: []request{{Record: bytes.Repeat([]byte{9}, 64), Placed: []uint64{10, 11}}, {Record: []byte("short"), Placed: []uint64{}}},
		Images:   map[uint32][]byte{12: bytes.Repeat([]byte("image"), 50000)},
		Graphs:   sampleGraphs(),
	}
}

func sampleGraphs() graphsState {
	inner := &graphPlan{id: 40, nodes: []planNode{{id: 41, kind: wire.NodeEmpty, params: []byte{}}}}
	plan := &graphPlan{
		nodes: []planNode{
			{id: 42, kind: wire.NodeKernel, params: []byte("params"), plain: 6, attrs: []planAttr{{3, []byte{4}}}},
			{kind: wire.NodeGraph, params: []byte{}, inner: []*graphPlan{inner}},
		},
		edges: []planEdge{{0, 1, [8]byte{1}}},
	}
	counts := map[uint32]uint32{43: 2}
	return graphsState{
		last: 44, modes: counts, objects: []objectState{{45, 46, 1, 2}},
		graphs: []graphState{
			{kind: graphLive, id: 47, ctx: 48, nested: true, plan: plan, conds: []graphCondition{{47, 48, 1, 1, 49}}, users: counts},
			{kind: graphPast, ctx: 48, plan: inner, twins: []graphTwin{{0, 0, 1}}},
		},
		execs:  []execState{{id: 50, ctx: 48, flags: 1, origin: 1, users: counts, params: []paramsState{{0, 48, 0, []byte("changed")}}, off: []uint32{0}, nameless: true}},
		clones: []graphClone{{graphPlace{0, 1}, graphPlace{1, 0}}},
	}
}

func written(t testing.TB, s *snapshot) []byte {
	t.Helper()
	var b bytes.Buffer
	w := state.NewWriter(&b)
	s.write(w)
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// TestSnapshotTravels: what is written is what is read; cut anywhere it is refused, and so is what
// is more than may be kept.
func TestSnapshotTravels(t *testing.T) {
	want := sampleSnapshot()
	b := written(t, want)
	got, err := readSnapshot(state.NewReader(bytes.NewReader(b), 1<<20))
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("it became another: %v", err)
	}
	for n := 0; n < len(b); n += 1 + n/64 {
		if _, err := readSnapshot(state.NewReader(bytes.NewReader(b[:n]), 1<<20)); !errors.Is(err, state.ErrState) {
			t.Fatalf("%d of %d bytes: %v", n, len(b), err)
		}
	}
	if _, err := readSnapshot(state.NewReader(bytes.NewReader(b), 250000)); !errors.Is(err, state.ErrState) {
		t.Errorf("more than may be kept: %v", err)
	}
	unix := &snapshot{Unix: &shm.UnixState{Head: 1, PID: 2, Regions: []shm.RegionState{{ID: 3}}}}
	if got, err := readSnapshot(state.NewReader(bytes.NewReader(written(t, unix)), 1<<20)); err != nil || got.Virtiofs != nil || !reflect.DeepEqual(got.Unix, unix.Unix) {
		t.Errorf("%+v, %v", got, err)
	}
}

// TestSnapshotThatPromises: numbers alone take no memory.
func TestSnapshotThatPromises(t *testing.T) {
	b := written(t, &snapshot{Virtiofs: &virtiofsState{}})
	// Requests, ahead of no images and no graphs.
	huge := append(bytes.Clone(b[:len(b)-8-6*4]), 0xff, 0xff, 0xff, 3)
	if n := testing.AllocsPerRun(1, func() {
		if _, err := readSnapshot(state.NewReader(bytes.NewReader(huge), 1<<40)); !errors.Is(err, state.ErrState) {
			t.Error(err)
		}
	}); n > 1000 {
		t.Errorf("%v allocations", n)
	}
}

// TestSnapshotBounds: what a snapshot says is within the bounds of a session, each to the last.
func TestSnapshotBounds(t *testing.T) {
	blob := func(total uint64) blobState { return blobState{Total: total, Bytes: []byte("x")} }
	many := map[uint32]blobState{}
	for i := range uint32(maxBlobs) {
		many[i] = blob(1)
	}
	more := maps.Clone(many)
	more[maxBlobs] = blob(1)
	for what, c := range map[string]struct {
		s    snapshot
		fits bool
	}{
		"as much ahead as may be": {snapshot{Blobs: map[uint32]blobState{1: blob(maxBlobBytes / 2), 2: blob(maxBlobBytes / 2)}}, true},
		"more ahead":              {snapshot{Blobs: map[uint32]blobState{1: blob(maxBlobBytes / 2), 2: blob(maxBlobBytes/2 + 1)}}, false},
		"far more ahead":          {snapshot{Blobs: map[uint32]blobState{1: blob(1<<64 - 1)}}, false},
		"more than it is":         {snapshot{Blobs: map[uint32]blobState{1: {Total: 3, Bytes: []byte("four")}}}, false},
		"many blobs":              {snapshot{Blobs: many}, true},
		"one too many":            {snapshot{Blobs: more}, false},
		"the last slot":           {snapshot{More: map[uint32][]byte{remote.SlotCount - 1: []byte("x")}}, true},
		"a slot beyond it":        {snapshot{More: map[uint32][]byte{remote.SlotCount: []byte("x")}}, false},
		"a long record":           {snapshot{Requests: []request{{Record: make([]byte, wire.MaxRecord)}}}, true},
		"a record too long":       {snapshot{Requests: []request{{Record: make([]byte, wire.MaxRecord+1)}}}, false},
	} {
		c.s.Virtiofs = &virtiofsState{}
		if _, err := readSnapshot(state.NewReader(bytes.NewReader(written(t, &c.s)), 1<<24)); (err == nil) != c.fits || err != nil && !errors.Is(err, state.ErrState) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// FuzzSnapshot: whatever comes is refused, or is a snapshot that can be written again. What it has
// a worker keep stays within the bound.
func FuzzSnapshot(f *testing.F) {
	f.Add(written(f, sampleSnapshot())[:4096])
	f.Add(written(f, &snapshot{Virtiofs: &virtiofsState{}, Graphs: sampleGraphs()}))
	f.Add(written(f, &snapshot{Unix: &shm.UnixState{Regions: []shm.RegionState{{ID: 1}}}}))
	f.Add(written(f, &snapshot{Virtiofs: &virtiofsState{}, Requests: []request{{Record: make([]byte, wire.RecordSize)}}}))
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := readSnapshot(state.NewReader(bytes.NewReader(b), 1<<20))
		if err != nil {
			if !errors.Is(err, state.ErrState) {
				t.Fatal(err)
			}
			return
		}
		again, err := readSnapshot(state.NewReader(bytes.NewReader(written(t, s)), 1<<20))
		if err != nil || !reflect.DeepEqual(again, s) {
			t.Fatalf("%d bytes are read and written as another snapshot: %v", len(b), err)
		}
	})
}

// TestStateStream: what follows a state is read as it came.
func TestStateStream(t *testing.T) {
	var b bytes.Buffer
	w := state.NewWriter(&b)
	w.U32(1)
	w.Copy(bytes.NewReader([]byte("memory")), 6)
	w.Bool(true)
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	b.WriteString("rest")
	r := state.NewReader(&b, 0)
	n := r.U32()
	mem, err := io.ReadAll(r.Stream(6))
	if n != 1 || string(mem) != "memory" || err != nil || !r.Bool() {
		t.Errorf("%d, %q, %v", n, mem, err)
	}
	if rest, err := io.ReadAll(r.Rest()); string(rest) != "rest" || err != nil || r.Err() != nil {
		t.Errorf("%q, %v, %v", rest, err, r.Err())
	}
	if w.Copy(bytes.NewReader(nil), 1); !errors.Is(w.Flush(), io.ErrUnexpectedEOF) {
		t.Error("copied what is not there")
	}
}
