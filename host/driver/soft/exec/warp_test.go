package exec_test

import (
	"math/bits"
	"testing"

	"causeway/host/driver/soft/exec"
)

func TestReduce(t *testing.T) {
	a := newArena(t)
	m := a.file(t, "warp")
	const n = 5000
	x := make([]int32, n)
	var want uint64
	for i := range x {
		x[i] = int32(i * 3)
		want += uint64(x[i])
	}
	o := put(a, []uint64{0})
	a.run(t, m, "reduce", 3, 256, pack(put(a, x), int32(n), o))
	if got := get[uint64](a, o, 1)[0]; got != want {
		t.Errorf("sum %d, want %d", got, want)
	}
}

func TestLaneOperations(t *testing.T) {
	a := newArena(t)
	m := a.file(t, "warp")
	o := put(a, make([]uint32, 32*15))
	a.run(t, m, "lanes", 1, 32, pack(o))
	got := get[uint32](a, o, 32*15)
	thirds, fifths := uint32(0), [5]uint32{}
	for i := range 32 {
		if i%3 == 0 {
			thirds |= 1 << i
		}
		fifths[i%5] |= 1 << i
	}
	b := func(v bool) uint32 {
		if v {
			return 1
		}
		return 0
	}
	for n, f := range []func(i int) uint32{
		func(int) uint32 { return thirds },
		func(int) uint32 { return 0 },
		func(int) uint32 { return 1 },
		func(int) uint32 { return 5 },
		func(i int) uint32 { return uint32(i - 3*int(b(i%8 >= 3))) },
		func(i int) uint32 { return uint32(i + 3*int(b(i%16 < 13))) },
		func(i int) uint32 { return uint32(i^1) * 2 },
		func(i int) uint32 { return fifths[i%5] },
		func(int) uint32 { return 0xffffffff },
		func(int) uint32 { return 1 },
		func(int) uint32 { return 0xffffffff },
		func(i int) uint32 { return uint32(i) },
		func(i int) uint32 { return 0xff * b(i < 8) },
		func(i int) uint32 { return uint32(i^1) * b(i < 8) },
		func(i int) uint32 { return thirds + 1 + b(i < 16) },
	} {
		check(t, "row "+string(rune('a'+n)), got[32*n:32*n+32], f)
	}
}

func TestCooperativeGroups(t *testing.T) {
	a := newArena(t)
	m := a.file(t, "warp")
	x := make([]int32, 64)
	odd := [2]uint32{}
	for i := range x {
		x[i] = int32(i * i % 23)
		if x[i]&1 != 0 {
			odd[i/32] |= 1 << (i % 32)
		}
	}
	o := put(a, make([]int32, 64))
	a.run(t, m, "groups", 1, 64, pack(o, put(a, x)))
	check(t, "o", get[int32](a, o, 64), func(i int) int32 {
		g := x[i&^15 : i&^15+16]
		s := int32(0)
		for _, v := range g {
			s += v
		}
		v := s*1000 + g[3] + int32(i%16)
		if x[i]&1 != 0 {
			v += int32(bits.OnesCount32(odd[i/32])) * 1000000
		}
		return v
	})
}

func TestGridSync(t *testing.T) {
	a := newArena(t)
	m := a.file(t, "warp")
	const blocks, threads, rounds = 9, 64, 20
	x := make([]int32, blocks*threads)
	for i := range x {
		x[i] = int32(i)
	}
	o := put(a, x)
	c := exec.Config{Grid: [3]uint32{blocks}, Block: [3]uint32{threads}, Params: pack(o, int32(rounds)), Cooperative: true}
	if err := a.launch(t, m, "grid_sync", c); err != nil {
		t.Fatal(err)
	}
	check(t, "rotated", get[int32](a, o, len(x)), func(i int) int32 { return int32((i + rounds) % len(x)) })
}
