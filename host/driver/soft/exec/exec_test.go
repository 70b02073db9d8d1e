package exec_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"sync"
	"testing"

	"causeway/host/driver/soft/exec"
	"causeway/host/driver/soft/ptx"

	"golang.org/x/sys/unix"
)

// arena is device memory for tests: anonymous memory outside of the Go heap,
// with a guard page after each allocation.
type arena struct {
	mu     sync.Mutex
	allocs map[uint64][]byte
}

func newArena(tb testing.TB) *arena {
	a := &arena{allocs: map[uint64][]byte{}}
	tb.Cleanup(func() {
		for _, m := range a.allocs {
			_ = unix.Munmap(m[:cap(m)])
		}
	})
	return a
}

func (a *arena) alloc(size uint64) (uint64, []byte) {
	mem, err := unix.Mmap(-1, 0, int(size+4095)&^4095, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		panic(err)
	}
	addr := addressOf(mem)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.allocs[addr] = mem[:size]
	return addr, mem[:size]
}

func (a *arena) Find(addr uint64) (base, size uint64, writable, ok bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for b, m := range a.allocs {
		if addr >= b && addr-b < uint64(len(m)) {
			return b, uint64(len(m)), true, true
		}
	}
	return 0, 0, false, false
}

func (a *arena) variable(_ string, size, _ uint64, _ ptx.Space) (uint64, []byte, error) {
	addr, mem := a.alloc(size)
	return addr, mem, nil
}

func (a *arena) load(tb testing.TB, src string) *exec.Module {
	tb.Helper()
	m, err := ptx.Parse([]byte(src))
	if err != nil {
		tb.Fatal(err)
	}
	mod, err := exec.Load(m, a.variable)
	if err != nil {
		tb.Fatal(err)
	}
	return mod
}

// pack lays out kernel arguments.
func pack(args ...any) []byte {
	var b []byte
	align := func(n int) {
		for len(b)%n != 0 {
			b = append(b, 0)
		}
	}
	for _, v := range args {
		n := binary.Size(v)
		align(n)
		b, _ = binary.Append(b, binary.LittleEndian, v)
	}
	return b
}

func (a *arena) run(tb testing.TB, mod *exec.Module, name string, c exec.Config) error {
	tb.Helper()
	k, ok := mod.Kernel(name)
	if !ok {
		tb.Fatalf("no kernel %s", name)
	}
	for i := range 3 {
		c.Grid[i], c.Block[i] = max(c.Grid[i], 1), max(c.Block[i], 1)
	}
	c.Space = a
	return k.Launch(context.Background(), c)
}

func fill[T any](mem []byte, v []T) {
	_, err := binary.Encode(mem, binary.LittleEndian, v)
	if err != nil {
		panic(err)
	}
}

func read[T any](mem []byte, n int) []T {
	v := make([]T, n)
	if _, err := binary.Decode(mem, binary.LittleEndian, v); err != nil {
		panic(err)
	}
	return v
}

func TestSmoke(t *testing.T) {
	b, err := os.ReadFile(os.Getenv("PTX"))
	if err != nil {
		t.Skip()
	}
	a := newArena(t)
	m := a.load(t, string(b))
	const n = 1000
	x, xm := a.alloc(4 * n)
	y, ym := a.alloc(4 * n)
	z, zm := a.alloc(4 * n)
	xs, ys := make([]float32, n), make([]float32, n)
	is := make([]int32, n)
	for i := range xs {
		xs[i], ys[i] = float32(i), float32(3*i)
		is[i] = int32(i)
	}
	fill(xm, xs)
	fill(ym, ys)
	if err := a.run(t, m, "vecadd", exec.Config{Grid: [3]uint32{4}, Block: [3]uint32{256}, Params: pack(x, y, z, int32(n))}); err != nil {
		t.Fatal(err)
	}
	for i, v := range read[float32](zm, n) {
		if v != float32(4*i) {
			t.Fatal(i, v)
		}
	}
	if err := a.run(t, m, "matmul", exec.Config{Grid: [3]uint32{2, 2}, Block: [3]uint32{16, 16}, Params: pack(x, y, z, int32(30))}); err != nil {
		t.Fatal(err)
	}
	got := read[float32](zm, 900)
	for i := range 30 {
		for j := range 30 {
			var s float32
			for k := range 30 {
				s += xs[i*30+k] * ys[k*30+j]
			}
			if got[i*30+j] != s {
				t.Errorf("%d %d: %v want %v", i, j, got[i*30+j], s)
			}
		}
	}
	fill(xm, is)
	fill(zm, []uint64{0})
	if err := a.run(t, m, "reduce", exec.Config{Grid: [3]uint32{3}, Block: [3]uint32{128}, Params: pack(x, int32(n), z)}); err != nil {
		t.Fatal(err)
	}
	if v := read[uint64](zm, 1)[0]; v != n*(n-1)/2 {
		t.Error(v)
	}
	if err := a.run(t, m, "hello", exec.Config{Block: [3]uint32{2}, Params: pack(int32(7)), Printf: func(s []byte) { fmt.Print(string(s)) }}); err != nil {
		t.Fatal(err)
	}
}
