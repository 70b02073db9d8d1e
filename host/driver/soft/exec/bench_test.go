package exec_test

import (
	"testing"

	"golang.org/x/sys/unix"

	"causeway/host/driver/soft/exec"
)

// report runs a launch b.N times and reports lane instructions per second of
// processor time, which other load on the machine does not falsify.
func report(b *testing.B, a *arena, m *exec.Module, name string, c exec.Config) {
	b.Helper()
	var total uint64
	c.Cores = 1
	cpu := cpuTime()
	for b.Loop() {
		var s exec.Stats
		c.Stats = &s
		if err := a.launch(b, m, name, c); err != nil {
			b.Fatal(err)
		}
		total += s.LaneInstructions
	}
	b.ReportMetric(float64(total)/(cpuTime()-cpu)/1e6, "Mlane-instr/cpu-s")
}

func BenchmarkMatmul(b *testing.B) {
	a := newArena(b)
	m := a.file(b, "memory")
	const n = 128
	x, y, o := put(a, ramp(n*n)), put(a, ramp(n*n)), put(a, make([]float32, n*n))
	report(b, a, m, "matmul", exec.Config{Grid: [3]uint32{n / 16, n / 16}, Block: [3]uint32{16, 16}, Params: pack(x, y, o, int32(n))})
}

func BenchmarkVectorAdd(b *testing.B) {
	a := newArena(b)
	m := a.file(b, "memory")
	const n = 1 << 18
	x, y, o := put(a, ramp(n)), put(a, ramp(n)), put(a, make([]float32, n))
	report(b, a, m, "vector_add", exec.Config{Grid: [3]uint32{n / 256}, Block: [3]uint32{256}, Params: pack(x, y, o, int32(n))})
}

func BenchmarkCollatz(b *testing.B) {
	a := newArena(b)
	m := a.file(b, "control")
	const n = 4096
	x := make([]int32, n)
	for i := range x {
		x[i] = int32(i + 1)
	}
	report(b, a, m, "collatz", exec.Config{Grid: [3]uint32{n / 128}, Block: [3]uint32{128}, Params: pack(put(a, x), put(a, x), int32(n))})
}

func BenchmarkReduce(b *testing.B) {
	a := newArena(b)
	m := a.file(b, "warp")
	const n = 1 << 18
	report(b, a, m, "reduce", exec.Config{Grid: [3]uint32{64}, Block: [3]uint32{256}, Params: pack(put(a, make([]int32, n)), int32(n), put(a, []uint64{0}))})
}

func BenchmarkHistogram(b *testing.B) {
	a := newArena(b)
	m := a.file(b, "memory")
	const n = 1 << 18
	report(b, a, m, "histogram", exec.Config{Grid: [3]uint32{32}, Block: [3]uint32{256}, Params: pack(put(a, make([]byte, n)), int32(n), put(a, make([]uint32, 256)))})
}

func BenchmarkRecursion(b *testing.B) {
	a := newArena(b)
	m := a.file(b, "control")
	report(b, a, m, "recursion", exec.Config{Block: [3]uint32{256}, Params: pack(put(a, make([]int32, 256)))})
}

func BenchmarkSingles(b *testing.B) {
	a := newArena(b)
	m := a.file(b, "math")
	const n = 4096
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(i) * 0.01
	}
	report(b, a, m, "singles", exec.Config{Grid: [3]uint32{n / 128}, Block: [3]uint32{128}, Params: pack(put(a, x), put(a, x), put(a, make([]float32, 20*n)), int32(n))})
}

func BenchmarkDoubles(b *testing.B) {
	a := newArena(b)
	m := a.file(b, "math")
	const n = 4096
	x := make([]float64, n)
	for i := range x {
		x[i] = float64(i) * 0.01
	}
	report(b, a, m, "doubles", exec.Config{Grid: [3]uint32{n / 128}, Block: [3]uint32{128}, Params: pack(put(a, x), put(a, x), put(a, make([]float64, 11*n)), int32(n))})
}

// BenchmarkEmpty is the cost of a launch.
func BenchmarkEmpty(b *testing.B) {
	a := newArena(b)
	m := a.load(b, ".version 8.0\n.target sm_75\n.address_size 64\n.visible .entry nothing() { ret; }")
	for b.Loop() {
		a.run(b, m, "nothing", 1, 32, nil)
	}
}

func cpuTime() float64 {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return float64(u.Utime.Nano()+u.Stime.Nano()) / 1e9
}

// ramp is numbers that are neither zero nor equal.
func ramp(n int) []float32 {
	v := make([]float32, n)
	for i := range v {
		v[i] = float32(i%97)*0.37 + 0.1
	}
	return v
}
