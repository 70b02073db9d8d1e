package cuda

import (
	"bytes"
	"math/rand/v2"
	"strings"
	"testing"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/driver/cuda/cudatest"
	"causeway/host/driver/drivertest"
)

// TestPartsElsewhere: parts of a device, however they were cut, are the same parts in another
// process, whose driver knows them by other bytes: in a description that was recorded, and by what
// the guest holds. A device with fewer multiprocessors is refused, with the reason.
func TestPartsElsewhere(t *testing.T) {
	const size = 144
	session := func(multiprocessors, secret uint32) *session {
		cudatest.SetParts(multiprocessors, secret)
		s := agreeing(t, agreeingDriver(cudatest.Parts()), drivertest.NewHost())
		s.arenas.on = true
		return s
	}
	rng := rand.New(rand.NewPCG(3, 4))
	s := session(132, 1)
	var whole wire.DevResourceGetReply
	if res := s.DevResourceGet(&wire.Call{}, &wire.DevResourceGetArgs{Dev: 1, Type: 1}, &whole); res != cuda.Success {
		t.Fatal(res)
	}
	parts := [][]byte{whole.Resource}
	for range 40 {
		var r wire.DevSmResourceSplitReply
		a := &wire.DevSmResourceSplitArgs{Room: 1 + rng.Uint32N(5), Remain: rng.Uint32N(2), Least: 1 + rng.Uint32N(20), Source: parts[rng.IntN(len(parts))]}
		if res := s.DevSmResourceSplit(&wire.Call{}, a, &r); res != cuda.Success {
			t.Fatal(res)
		}
		for ; len(r.List) > 0; r.List = r.List[size:] {
			parts = append(parts, r.List[:size])
		}
	}
	describe := func(s interface {
		DevResourceGenerateDesc(*wire.Call, *wire.DevResourceGenerateDescArgs) cuda.Result
	}, c *wire.Call, id uint32, list ...[]byte) cuda.Result {
		return s.DevResourceGenerateDesc(c, &wire.DevResourceGenerateDescArgs{Resdesc: id, Count: uint32(len(list)), List: bytes.Join(list, nil)})
	}
	two := [][]byte{parts[rng.IntN(len(parts))], parts[len(parts)-1]}
	var c wire.Call
	if res := describe(s, &c, 5, two...); res != cuda.Success || s.descs.m[5].loose {
		t.Fatal(res, s.descs.m[5].loose)
	}
	want, table := number(s.descs.m[5].handle), s.resourceTable()

	next := session(132, 2)
	again := wire.Call{Replay: true, Placed: c.Placed}
	if res := describe(next, &again, 5, two...); res != cuda.Success || number(next.descs.m[5].handle) != want {
		t.Fatalf("a description made again: %v, %v; %d, not %d", res, again.Reason(), number(next.descs.m[5].handle), want)
	}
	if err := next.setResources(bytes.NewReader(table)); err != nil {
		t.Fatal(err)
	}
	for i, p := range parts { // each is what it is there: descriptions say where they begin
		res, there := describe(next, &wire.Call{}, uint32(10+i), p), number(next.descs.m[uint32(10+i)].handle)
		cudatest.SetParts(132, 1)
		if r := describe(s, &wire.Call{}, uint32(10+i), p); r != cuda.Success || res != cuda.Success || there != number(s.descs.m[uint32(10+i)].handle) {
			t.Fatalf("part %d: %v, %v; %d, not %d", i, r, res, there, number(s.descs.m[uint32(10+i)].handle))
		}
		cudatest.SetParts(132, 2)
	}
	if len(next.resourceTable()) != len(table) {
		t.Error("what it takes along the next time is not what came")
	}

	small := session(64, 3)
	other := wire.Call{Replay: true, Placed: c.Placed}
	if res := describe(small, &other, 5, whole.Resource, whole.Resource); res == cuda.Success {
		t.Error("a smaller device is taken")
	}
	if err := small.setResources(bytes.NewReader(table)); err == nil || !strings.Contains(err.Error(), "part of a device") {
		t.Errorf("a smaller device: %v", err)
	}
}

// FuzzSetResources: a table from elsewhere is taken or refused.
func FuzzSetResources(f *testing.F) {
	f.Add(make([]byte, 148), uint64(1)<<32|1)
	f.Fuzz(func(t *testing.T, b []byte, word uint64) {
		cudatest.SetParts(132, 1)
		s := agreeing(t, agreeingDriver(cudatest.Parts()), drivertest.NewHost())
		_ = s.setResources(bytes.NewReader(b))
		_, _ = s.derive(origin{word, word >> 7, word & 1, word >> 3, word & 7})
	})
}
