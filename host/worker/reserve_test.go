package worker

import (
	"slices"
	"testing"

	"causeway/cuda/wire"
	"causeway/host/driver"
)

// placing is a session that notes what it is to reserve.
type placing struct {
	driver.Session
	asked  bool
	addrs  []uint64
	images []string
}

func (r *placing) Reserve(addrs []uint64, images [][]byte) {
	r.asked, r.addrs = true, addrs
	for _, b := range images {
		r.images = append(r.images, string(b))
	}
}

// TestReserve: a driver is told where variables were, and of which code, if that is asked for.
func TestReserve(t *testing.T) {
	asks := func(ctx wire.ID, a wire.Args, placed ...uint64) request {
		rec, err := wire.AppendRecord(nil, wire.Header{Ctx: ctx}, a)
		if err != nil {
			t.Fatal(err)
		}
		return request{rec, placed}
	}
	load := asks(16, &wire.LibraryLoadArgs{Library: 20, Image: []byte("code")}, 1<<40, 1<<40+16)
	plain := asks(16, &wire.ModuleLoadArgs{Module: 21, Image: []byte("text")})
	here, there := asks(16, &wire.KernelGetFunctionArgs{Func: 31, Kernel: 30}, 2<<40), asks(17, &wire.KernelGetFunctionArgs{Func: 32, Kernel: 30}, 3<<40)
	memory := asks(16, &wire.MemAllocArgs{Size: 1}, 7<<40)
	for name, c := range map[string]struct {
		how   string
		list  []request
		addrs []uint64 // nil: nothing is asked
	}{
		"not asked for":       {"", []request{load, plain, here, memory}, nil},
		"two contexts":        {"own", []request{load, plain, here, there, memory}, []uint64{1 << 40, 1<<40 + 16, 2 << 40, 3 << 40}},
		"asked for":           {"own", []request{load, plain}, []uint64{1 << 40, 1<<40 + 16}},
		"green contexts":      {"own", []request{load, plain, asks(16, &wire.GreenCtxCreateArgs{})}, nil},
		"what cannot be read": {"own", []request{load, {Record: []byte{1}}, plain}, []uint64{1 << 40, 1<<40 + 16}},
	} {
		t.Setenv(variablesEnv, c.how)
		r := &placing{}
		w := &Worker{session: r}
		w.reserve(&snapshot{Requests: c.list}, &blobStore{byID: map[uint32]*storedBlob{}})
		if r.asked != (c.addrs != nil) || !slices.Equal(r.addrs, c.addrs) || r.asked && !slices.Equal(r.images, []string{"code", "text"}) {
			t.Errorf("%s: %v %#x of %q", name, r.asked, r.addrs, r.images)
		}
	}
}
