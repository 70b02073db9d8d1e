package exec_test

import (
	"context"
	"errors"
	"os"
	"testing"

	"causeway/host/driver/soft/exec"
	"causeway/host/driver/soft/ptx"

	"golang.org/x/sys/unix"
)

func TestVectorAdd(t *testing.T) {
	a := newArena(t)
	m := a.file(t, "memory")
	const n = 1000
	x, y := make([]float32, n), make([]float32, n)
	for i := range x {
		x[i], y[i] = float32(i), float32(3*i)
	}
	o := put(a, make([]float32, n))
	a.run(t, m, "vector_add", 4, 256, pack(put(a, x), put(a, y), o, int32(n)))
	check(t, "sum", get[float32](a, o, n), func(i int) float32 { return float32(4 * i) })
}

func TestMatmul(t *testing.T) {
	a := newArena(t)
	m := a.file(t, "memory")
	const n = 50
	x, y := make([]float32, n*n), make([]float32, n*n)
	for i := range x {
		x[i], y[i] = float32(i%13), float32(i%7)-3
	}
	o := put(a, make([]float32, n*n))
	c := exec.Config{Grid: [3]uint32{4, 4}, Block: [3]uint32{16, 16}, Params: pack(put(a, x), put(a, y), o, int32(n))}
	if err := a.launch(t, m, "matmul", c); err != nil {
		t.Fatal(err)
	}
	check(t, "product", get[float32](a, o, n*n), func(i int) float32 {
		var s float32
		for k := range n {
			s += x[i/n*n+k] * y[k*n+i%n]
		}
		return s
	})
}

func TestLocalArray(t *testing.T) {
	a := newArena(t)
	m := a.file(t, "memory")
	x := make([]int32, 100)
	for i := range x {
		x[i] = int32(i * 37 % 101)
	}
	o := put(a, make([]int32, 16*40))
	a.run(t, m, "local_sort", 1, 40, pack(put(a, x), o, int32(100)))
	got := get[int32](a, o, 16*40)
	for i := range 40 {
		sum := int32(0)
		for k := range 16 {
			sum += got[i*16+k] - x[(i*5+k)%100]
			if k > 0 && got[i*16+k] < got[i*16+k-1] {
				t.Errorf("thread %d: not sorted", i)
			}
		}
		if sum != 0 {
			t.Errorf("thread %d: other values", i)
		}
	}
}

func TestModuleVariables(t *testing.T) {
	a := newArena(t)
	m := a.file(t, "memory")
	where := map[string]exec.Global{}
	for _, g := range m.Globals() {
		where[g.Name] = g
	}
	if g := where["coef"]; g.Space != ptx.Const || g.Size != 32 {
		t.Errorf("coef: %+v", g)
	}
	if got := get[float32](a, where["coef"].Addr, 8); got[7] != 8 {
		t.Errorf("coef[7] = %v", got[7])
	}
	off := a.allocs[where["offsets"].Addr]
	off[4*9] = 100
	ix := make([]int32, 40)
	for i := range ix {
		ix[i] = int32(i * 3)
	}
	o := put(a, make([]float32, 40))
	a.run(t, m, "constants", 1, 40, pack(o, put(a, ix)))
	check(t, "sum", get[float32](a, o, 40), func(i int) float32 {
		var s float32
		for k := range 8 {
			s = s*0.5 + float32((k+3*i)&7+1)
		}
		if i == 9 {
			s += 100
		}
		return s + float32("ab"[i&1])
	})
	if got := get[int32](a, where["counter"].Addr, 1)[0]; got != 45 {
		t.Errorf("counter = %d, want 45", got)
	}
}

func TestHistogramAndScan(t *testing.T) {
	a := newArena(t)
	m := a.file(t, "memory")
	d := make([]byte, 10000)
	var want [256]uint32
	for i := range d {
		d[i] = byte(i * i >> 3)
		want[d[i]]++
	}
	o := put(a, make([]uint32, 256))
	a.run(t, m, "histogram", 5, 128, pack(put(a, d), int32(len(d)), o))
	check(t, "count", get[uint32](a, o, 256), func(i int) uint32 { return want[i] })

	x := make([]int32, 200)
	for i := range x {
		x[i] = int32(i%9 - 3)
	}
	o = put(a, make([]int32, 200))
	c := exec.Config{Block: [3]uint32{256}, DynShared: 1024, Params: pack(put(a, x), o, int32(200))}
	if err := a.launch(t, m, "scan", c); err != nil {
		t.Fatal(err)
	}
	sum := int32(0)
	check(t, "prefix", get[int32](a, o, 200), func(i int) int32 { sum += x[i]; return sum })
	c.DynShared = 512
	wantFault(t, a.launch(t, m, "scan", c), exec.IllegalAddress, ptx.Shared)
}

func TestDynamicShared(t *testing.T) {
	a := newArena(t)
	m := a.file(t, "memory")
	o := put(a, make([]int32, 64))
	if err := a.launch(t, m, "dynamic_and_static", exec.Config{Block: [3]uint32{64}, DynShared: 512, Params: pack(o)}); err != nil {
		t.Fatal(err)
	}
	check(t, "o", get[int32](a, o, 64), func(i int) int32 { return int32(63 - i + 2) })
	k, _ := m.Kernel("dynamic_and_static")
	if got := k.Attributes().SharedBytes; got != 3 {
		t.Errorf("%d bytes of static shared memory, want 3", got)
	}
}

type mixed struct {
	C byte
	_ byte
	S int16
	I int32
	D float64
	F [3]float32
	_ [4]byte
	L int64
}

func TestStructByValue(t *testing.T) {
	a := newArena(t)
	m := a.file(t, "memory")
	o := put(a, make([]mixed, 5))
	in := mixed{C: 255, S: -300, I: 3, D: 2.5, F: [3]float32{1, 2, 3}, L: -7}
	a.run(t, m, "by_value", 1, 5, pack(in, o))
	k, _ := m.Kernel("by_value")
	if p := k.Params(); len(p) != 2 || p[0] != (exec.Param{Size: 40, Align: 8}) || p[1] != (exec.Param{Offset: 40, Size: 8, Align: 8}) {
		t.Errorf("params %+v", p)
	}
	check(t, "struct", get[mixed](a, o, 5), func(i int) mixed {
		w := mixed{C: 0, S: -600, I: -2, D: 3.75, F: [3]float32{1, 2, 3}, L: -56}
		w.F[i%3] = 9
		return w
	})
}

func TestVectorTypes(t *testing.T) {
	a := newArena(t)
	m := a.file(t, "memory")
	in, c := make([]float32, 128), make([]byte, 128)
	for i := range in {
		in[i], c[i] = float32(i*i), byte(3*i)
	}
	v, d, o := put(a, make([]float32, 128)), put(a, make([]float64, 64)), put(a, make([]int32, 32))
	a.run(t, m, "vectors", 1, 32, pack(v, put(a, in), put(a, c), d, o))
	check(t, "v", get[float32](a, v, 128), func(i int) float32 { return in[i] + in[(31-i/4)*4+i%4] })
	check(t, "d", get[float64](a, d, 64), func(i int) float64 {
		q := c[i/2*4:]
		if i%2 == 0 {
			return float64(q[0]) + float64(q[1])
		}
		return float64(q[2]) * float64(q[3])
	})
	check(t, "o", get[int32](a, o, 32), func(i int) int32 { return int32(201 * i) })
}

func TestAtomics(t *testing.T) {
	a := newArena(t)
	m := a.file(t, "memory")
	const n = 1000
	i32 := make([]int32, 12)
	i32[5] = -1
	x, u := put(a, i32), put(a, []uint32{0, 0})
	l, f, d := put(a, make([]uint64, 3)), put(a, []float32{0}), put(a, []float64{0})
	a.run(t, m, "atomics", 8, 128, pack(x, u, l, f, d, int32(n)))
	xor := int32(0)
	for i := range int32(n) {
		xor ^= i
	}
	want := []int32{n * (n - 1) / 2, -n * (n - 1) / 2, -(n - 1), n - 1, -1, -256, xor, n, 1, 1, n, n}
	check(t, "int", get[int32](a, x, 12), func(i int) int32 { return want[i] })
	check(t, "wrap", get[uint32](a, u, 2), func(i int) uint32 { return 0 })
	check(t, "long", get[uint64](a, l, 3), func(i int) uint64 { return [...]uint64{n * (n - 1) / 2 << 20, n - 1, 5}[i] })
	if v := get[float32](a, f, 1)[0]; v != n/2 {
		t.Errorf("float sum %v", v)
	}
	if v := get[float64](a, d, 1)[0]; v != n/4 {
		t.Errorf("double sum %v", v)
	}
}

func wantFault(t *testing.T, err error, kind exec.FaultKind, space ptx.Space) *exec.Fault {
	t.Helper()
	var f *exec.Fault
	// Unoptimised code reaches every space through generic addresses.
	generic := os.Getenv("PTX_TESTDATA") != ""
	if !errors.As(err, &f) || f.Kind != kind || f.Space != space && !(generic && f.Space == ptx.Generic) {
		t.Errorf("error %v, want %v in %v space", err, kind, space)
		return &exec.Fault{}
	}
	return f
}

func TestAddressFaults(t *testing.T) {
	a := newArena(t)
	m := a.file(t, "memory")
	p, o := put(a, make([]int32, 10)), put(a, []int32{0})
	for _, c := range []struct {
		off  int64
		kind exec.FaultKind
	}{{36, 0}, {40, exec.IllegalAddress}, {37, exec.MisalignedAddress}, {-4, exec.IllegalAddress}, {1 << 60, exec.IllegalAddress}, {-int64(p), exec.IllegalAddress}} {
		for _, name := range []string{"store_at", "load_at"} {
			err := a.launch(t, m, name, exec.Config{Params: pack(p, c.off, o)})
			if c.kind == 0 {
				if err != nil {
					t.Errorf("%s at %d: %v", name, c.off, err)
				}
				continue
			}
			f := wantFault(t, err, c.kind, ptx.Global)
			if f.Address != p+uint64(c.off) || f.Size != 4 || f.Write != (name == "store_at") || f.Function != name || f.Line == 0 {
				t.Errorf("%s at %d: %+v", name, c.off, f)
			}
		}
	}
}

// vanishing claims that memory is live which is not mapped any more.
type vanishing struct {
	*arena
	base uint64
}

func (v vanishing) Find(addr uint64) (base, size uint64, writable, ok bool) {
	if addr-v.base < 4096 {
		return v.base, 4096, true, true
	}
	return v.arena.Find(addr)
}

func TestMemoryFreedWhileInUse(t *testing.T) {
	a := newArena(t)
	m := a.file(t, "memory")
	gone, err := unix.Mmap(-1, 0, 4096, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(gone)
	k, _ := m.Kernel("store_at")
	p := addressOf(gone)
	err = k.Launch(context.Background(), exec.Config{Grid: [3]uint32{1, 1, 1}, Block: [3]uint32{1, 1, 1}, Params: pack(p, int64(8)), Space: vanishing{a, p}})
	var f *exec.Fault
	if !errors.As(err, &f) || f.Kind != exec.IllegalAddress || f.Address != p+8 {
		t.Errorf("error %v", err)
	}
}

func TestConfigErrors(t *testing.T) {
	a := newArena(t)
	m := a.load(t, ".version 8.0\n.target sm_75\n.address_size 64\n.visible .entry k(.param .u64 p) .maxntid 64 { ret; }\n.visible .entry r() .reqntid 32, 2 { ret; }")
	one := [3]uint32{1, 1, 1}
	for _, c := range []struct {
		name string
		c    exec.Config
		bad  bool
	}{
		{"k", exec.Config{Grid: one, Block: one, Params: make([]byte, 8), Space: a}, false},
		{"k", exec.Config{Grid: one, Block: one, Params: make([]byte, 7), Space: a}, true},
		{"k", exec.Config{Grid: [3]uint32{0, 1, 1}, Block: one, Params: make([]byte, 8), Space: a}, true},
		{"k", exec.Config{Grid: [3]uint32{1, 65536, 1}, Block: one, Params: make([]byte, 8), Space: a}, true},
		{"k", exec.Config{Grid: one, Block: [3]uint32{65, 1, 1}, Params: make([]byte, 8), Space: a}, true},
		{"k", exec.Config{Grid: one, Block: [3]uint32{1 << 16, 1 << 16, 1}, Params: make([]byte, 8), Space: a}, true},
		{"k", exec.Config{Grid: one, Block: one, Params: make([]byte, 8)}, true},
		{"k", exec.Config{Grid: one, Block: one, Params: make([]byte, 8), Space: a, DynShared: 1 << 20}, true},
		{"r", exec.Config{Grid: one, Block: [3]uint32{32, 2, 1}, Space: a}, false},
		{"r", exec.Config{Grid: one, Block: [3]uint32{64, 1, 1}, Space: a}, true},
	} {
		k, _ := m.Kernel(c.name)
		err := k.Launch(context.Background(), c.c)
		var bad *exec.ConfigError
		if c.bad != errors.As(err, &bad) || !c.bad && err != nil {
			t.Errorf("%s %+v: error %v", c.name, c.c, err)
		}
	}
}
