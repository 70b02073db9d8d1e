package shm

import (
	"testing"

	"golang.org/x/sys/unix"

	"causeway/remote"
)

// TestAdoptRefuses: a state whose regions say that they are of other files than came with it is
// none, whatever the sum of their numbers wraps to.
func TestAdoptRefuses(t *testing.T) {
	zero := RegionState{Size: remote.Region0Size}
	for name, regions := range map[string][]RegionState{
		"none":                 nil,
		"not region 0":         {{ID: 1, Size: pageSize}},
		"one too many":         {zero, {ID: 1, Size: pageSize}, {ID: 2, Size: pageSize}},
		"of no bytes":          {zero, {ID: 1, Part: 1}},
		"of no bytes in pages": {zero, {ID: 1, Part: pageSize}},
		"of very many files":   {zero, {ID: 1, Size: 1 << 63, Part: 1}},
		"that wrap together":   {{ID: 1, Size: 1 << 63, Part: 1}, {ID: 2, Size: 1<<63 + 1, Part: 1}, zero},
	} {
		before := descriptors(t)
		pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		files := []int{pair[0]}
		for range 3 {
			fd, err := unix.MemfdCreate("x", unix.MFD_CLOEXEC)
			if err != nil {
				t.Fatal(err)
			}
			files = append(files, fd)
		}
		if u, err := AdoptUnix(UnixState{Regions: regions}, files); err == nil {
			t.Errorf("%s: %v", name, u)
		}
		_ = unix.Close(pair[1])
		if n := descriptors(t); n != before {
			t.Errorf("%s: %d descriptors, %d before", name, n, before)
		}
	}
}

// TestAdoptNothing: a state without a descriptor is none, however many its regions say that they
// need.
func TestAdoptNothing(t *testing.T) {
	for _, need := range []uint64{1, 2, 1 << 63, ^uint64(0) - 2, ^uint64(0) - 1, ^uint64(0)} {
		// 2 more are 0 for one of them
		if u, err := AdoptUnix(UnixState{Regions: []RegionState{{Size: need, Part: 1}}}, nil); err == nil {
			t.Errorf("%#x files: %v", need, u)
		}
	}
}

// TestAdoptLetsGo: of what cannot be taken over no descriptor stays, wherever that shows: at a
// connection that is none, at a region in the midst of others, at region 0's bytes.
func TestAdoptLetsGo(t *testing.T) {
	zero, one, two := RegionState{Size: remote.Region0Size}, RegionState{ID: 1, Size: pageSize}, RegionState{ID: 2, Size: pageSize}
	for name, x := range map[string]struct {
		regions []RegionState
		socket  bool
		short   int // of which file is of no bytes, of the regions'; -1: none
	}{
		"no connection":       {[]RegionState{zero, one, two}, false, -1},
		"a region twice":      {[]RegionState{zero, one, one, two}, true, -1},
		"region 0 twice":      {[]RegionState{zero, zero, one, two}, true, -1},
		"region 0 is short":   {[]RegionState{zero, one, two}, true, 0},
		"the first is short":  {[]RegionState{zero, one, two}, true, 1},
		"the last is short":   {[]RegionState{zero, one, two}, true, 2},
		"region 0 is another": {[]RegionState{{Size: pageSize}, one}, true, -1},
	} {
		before := memfiles(t)
		pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		files := []int{pair[0], memfile(t, 8)} // whatever rings
		if !x.socket {
			_ = unix.Close(pair[0])
			files[0] = memfile(t, 8)
		}
		for i := range x.regions {
			size := int64(x.regions[i].Size)
			if i == x.short {
				size = 0
			}
			files = append(files, memfile(t, size))
		}
		if u, err := AdoptUnix(UnixState{Regions: x.regions}, files); err == nil {
			t.Errorf("%s: %v", name, u)
		}
		_ = unix.Close(pair[1])
		if n := memfiles(t); n != before {
			t.Errorf("%s: %d descriptors, %d before", name, n, before)
		}
	}
}
