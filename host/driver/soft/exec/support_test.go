package exec_test

import (
	"context"
	"encoding/binary"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"causeway/host/driver/soft/exec"
	"causeway/host/driver/soft/ptx"

	"golang.org/x/sys/unix"
)

// arena is device memory for tests: anonymous memory outside of the Go heap.
type arena struct {
	mu     sync.Mutex
	allocs map[uint64][]byte
	fixed  uint64 // an allocation that kernels may read only
}

func newArena(tb testing.TB) *arena {
	a := &arena{allocs: map[uint64][]byte{}}
	tb.Cleanup(a.free)
	return a
}

func (a *arena) free() {
	for _, m := range a.allocs {
		_ = unix.Munmap(m[:cap(m)])
	}
	clear(a.allocs)
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

// Find implements exec.AddressSpace.
func (a *arena) Find(addr uint64) (base, size uint64, writable, ok bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for b, m := range a.allocs {
		if addr >= b && addr-b < uint64(len(m)) {
			return b, uint64(len(m)), b != a.fixed, true
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

// file loads what nvcc made of testdata/name.cu; PTX_TESTDATA names another
// directory, to test the output of another compiler or other options.
func (a *arena) file(tb testing.TB, name string) *exec.Module {
	tb.Helper()
	dir := os.Getenv("PTX_TESTDATA")
	if dir == "" {
		dir = "testdata"
	}
	b, err := os.ReadFile(filepath.Join(dir, name+".ptx"))
	if err != nil {
		tb.Fatal(err)
	}
	return a.load(tb, string(b))
}

// pack lays out kernel arguments.
func pack(args ...any) []byte {
	var b []byte
	for _, v := range args {
		n := binary.Size(v)
		for n <= 8 && len(b)%n != 0 {
			b = append(b, 0)
		}
		b, _ = binary.Append(b, binary.LittleEndian, v)
	}
	return b
}

// launch runs a kernel and returns its error.
func (a *arena) launch(tb testing.TB, mod *exec.Module, name string, c exec.Config) error {
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

// run launches a kernel that must end without a fault.
func (a *arena) run(tb testing.TB, mod *exec.Module, name string, grid, block uint32, params []byte) {
	tb.Helper()
	if err := a.launch(tb, mod, name, exec.Config{Grid: [3]uint32{grid}, Block: [3]uint32{block}, Params: params}); err != nil {
		tb.Fatalf("%s: %v", name, err)
	}
}

// put allocates memory that holds v.
func put[T any](a *arena, v []T) uint64 {
	addr, mem := a.alloc(max(uint64(binary.Size(v)), 1))
	if _, err := binary.Encode(mem, binary.LittleEndian, v); err != nil {
		panic(err)
	}
	return addr
}

// get reads n values back.
func get[T any](a *arena, addr uint64, n int) []T {
	v := make([]T, n)
	if _, err := binary.Decode(a.allocs[addr], binary.LittleEndian, v); err != nil {
		panic(err)
	}
	return v
}

// check compares element by element.
func check[T comparable](tb testing.TB, what string, got []T, want func(i int) T) {
	tb.Helper()
	bad := 0
	for i, v := range got {
		if w := want(i); v != w {
			if bad++; bad > 5 {
				tb.Errorf("%s: and more", what)
				return
			}
			tb.Errorf("%s[%d] = %v, want %v", what, i, v, w)
		}
	}
}
