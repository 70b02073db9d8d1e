package cuda

import (
	"io"
	"strings"
	"testing"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/driver/cuda/cudatest"
)

// TestTilesThatStay: what cannot move is said by name, and what is not there is not mapped.
func TestTilesThatStay(t *testing.T) {
	r := newTileRig(t, 2)
	array := r.add(func(id uint32) wire.Args {
		return &wire.ArrayCreateArgs{Array: id, Width: 128 << 10, Height: 64 << 10, Format: 0x20, Channels: 1, Flags: arraySparse}
	})
	mem, other := r.memory(2<<20), r.memory(2<<20)
	key, one := shapedKey{id: array}, [8]uint32{0, 0, 0, 0, 0, 128, 128, 1}
	for what, list := range map[string][]byte{"of no array": tileMapping(shapedKey{id: 999}, one, false, mem, 0), "of no mipmap": tileMapping(shapedKey{true, array}, one, false, mem, 0), "of no memory": tileMapping(key, one, false, 999, 0), "cut": tileMapping(key, one, false, mem, 0)[:95]} {
		if r.do(list) == cuda.Success {
			t.Errorf("a mapping %s is made", what)
		}
	}
	stays := func(why string) {
		t.Helper()
		if err := r.s.Movable(); err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("%v, want %q", err, why)
		}
	}
	r.want(cuda.Success, r.do(tileMapping(key, one, false, mem, 0)), "map")
	r.s.mems.m[mem].foreign = true
	stays("is another process's")
	r.s.mems.m[mem].foreign = false
	if err := r.s.Movable(); err != nil {
		t.Error(err)
	}
	cudatest.RefuseTiles(true)
	if err := r.s.ExportMemory(func(_, _ uint64, b io.Reader) error { _, err := io.Copy(io.Discard, b); return err }); err == nil || !strings.Contains(err.Error(), "copy tiles") {
		t.Errorf("memory that the driver does not show: %v", err)
	}
	cudatest.RefuseTiles(false)
	r.want(cuda.Success, r.s.MemRelease(r.call(), &wire.MemReleaseArgs{Memhandle: other}), "release")
	if r.s.used != 2<<20 {
		t.Errorf("%d bytes in use", r.s.used)
	}
	left := uint64(mostNamed)
	r.s.tilesChanged((*arrayMap)(tileMapping(key, [8]uint32{0, 0, 0, 0, 0, 1 << 31, 1 << 31, 1}, false, mem, 0)), r.s.mems.m[mem], &left)
	stays("are not followed")
	r.want(cuda.Success, r.s.MemRelease(r.call(), &wire.MemReleaseArgs{Memhandle: mem}), "release")
	r.want(cuda.Success, r.s.ArrayDestroy(r.call(), &wire.ArrayDestroyArgs{Array: array}), "destroy")
	if err := r.s.Movable(); err != nil || r.s.used != 0 || r.s.tileCount != 0 || r.s.tilesNamed != 0 {
		t.Errorf("%v, %d bytes in use, %d tiles", err, r.s.used, r.s.tileCount)
	}
}

// TestTilesOfHostileRequests: one request does not make the worker take more steps than a few times
// mostNamed: of more tiles than that the session loses track, and says so; the array's end has it
// forget.
func TestTilesOfHostileRequests(t *testing.T) {
	const side = 512 // tiles of mostTiles
	box := func(from uint32) [8]uint32 {
		return [8]uint32{3: from * 128, 5: side * 128, 6: (side - from) * 128, 7: 1}
	}
	for what, c := range map[string]struct {
		names func(i uint32) [8]uint32
		apart bool // in requests of their own
		lost  bool
	}{
		"much at once, over and over": {func(uint32) [8]uint32 { return box(0) }, false, true},
		"the same, one by one":        {func(uint32) [8]uint32 { return box(0) }, true, false},
		"a row less each time":        {box, true, true}, // which all count
	} {
		r := newTileRig(t, 3)
		array := r.add(func(id uint32) wire.Args {
			return &wire.ArrayCreateArgs{Array: id, Width: side * 128, Height: side * 128, Format: 0x20, Channels: 1, Flags: arraySparse}
		})
		mem, key, list := r.memory(2<<20), shapedKey{id: array}, []byte(nil)
		for i := range uint32(5) {
			if list = append(list, tileMapping(key, c.names(i), false, mem, 0)...); c.apart {
				r.s.tilesFollow(list, func(uint64) *physical { return r.s.mems.m[mem] })
				list = nil
			}
		}
		r.s.tilesFollow(list, func(uint64) *physical { return r.s.mems.m[mem] })
		if kept := r.s.tiles[key]; kept.lost != c.lost || r.s.tilesNamed > mostNamed || c.lost != (r.s.Movable() != nil) {
			t.Errorf("%s: lost: %v, %d are named, %v", what, kept.lost, r.s.tilesNamed, r.s.Movable())
		}
		r.want(cuda.Success, r.s.ArrayDestroy(r.call(), &wire.ArrayDestroyArgs{Array: array}), "destroy")
		if r.s.tilesNamed != 0 || r.s.tileCount != 0 || r.s.mems.m[mem].tiles != 0 || r.s.Movable() != nil {
			t.Errorf("%s: %d tiles, %d named, are left of the array: %v", what, r.s.tileCount, r.s.tilesNamed, r.s.Movable())
		}
		r.want(cuda.Success, r.s.MemRelease(r.call(), &wire.MemReleaseArgs{Memhandle: mem}), "release")
	}
}
