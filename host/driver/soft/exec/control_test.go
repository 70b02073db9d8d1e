package exec_test

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"testing"
	"time"

	"causeway/host/driver/soft/exec"
)

func TestRecursion(t *testing.T) {
	a := newArena(t)
	m := a.file(t, "control")
	o := put(a, make([]int32, 64))
	a.run(t, m, "recursion", 1, 64, pack(o))
	var fib [16]int32
	fib[1] = 1
	for i := 2; i < 16; i++ {
		fib[i] = fib[i-1] + fib[i-2]
	}
	check(t, "fib", get[int32](a, o, 64), func(i int) int32 { return fib[i%16] })
}

func TestIndirectCalls(t *testing.T) {
	a := newArena(t)
	m := a.file(t, "control")
	o := put(a, make([]int32, 50))
	a.run(t, m, "function_pointers", 1, 50, pack(o))
	check(t, "pointer", get[int32](a, o, 50), func(i int) int32 { return [...]int32{int32(i + 7), int32(i - 7), int32(i * 7)}[i%3] })
	a.run(t, m, "virtual_calls", 1, 50, pack(o))
	check(t, "virtual", get[int32](a, o, 50), func(i int) int32 {
		if i&1 != 0 {
			return int32(i + 100)
		}
		return int32(i * i)
	})
}

func TestSwitch(t *testing.T) {
	a := newArena(t)
	m := a.file(t, "control")
	o := put(a, make([]int32, 96))
	a.run(t, m, "switch_table", 1, 96, pack(o))
	check(t, "switch", get[int32](a, o, 96), func(n int) int32 {
		i := int32(n)
		return [...]int32{11, i * 3, 77, i, -1, i * i, 5, i ^ 3, 1000, 1000, 1000}[i%11]
	})
}

func TestEarlyExitAtBarriers(t *testing.T) {
	a := newArena(t)
	m := a.file(t, "control")
	o := put(a, make([]int32, 96))
	a.run(t, m, "early_exit", 1, 96, pack(o, int32(70)))
	check(t, "sum", get[int32](a, o, 96), func(i int) int32 {
		s := int32(0)
		for k := range 8 {
			if i >= 70-4*k {
				break
			}
			s += int32(k)
		}
		return s
	})
}

func TestForwardProgress(t *testing.T) {
	a := newArena(t)
	m := a.file(t, "control")
	lock, count := put(a, []int32{0}), put(a, []int32{0})
	a.run(t, m, "spin_lock", 3, 96, pack(lock, count))
	if got := get[int32](a, count, 1)[0]; got != 3*96 {
		t.Errorf("%d entries of the critical section, want %d", got, 3*96)
	}
	turn := put(a, []int32{0})
	a.run(t, m, "hand_over", 6, 64, pack(turn))
	if got := get[int32](a, turn, 1)[0]; got != 12 {
		t.Errorf("turn is %d, want 12", got)
	}
}

func TestDivergentLoops(t *testing.T) {
	a := newArena(t)
	m := a.file(t, "control")
	const n = 1000
	x := make([]int32, n)
	for i := range x {
		x[i] = int32(i + 1)
	}
	o := put(a, make([]int32, n))
	a.run(t, m, "collatz", 8, 128, pack(put(a, x), o, int32(n)))
	check(t, "steps", get[int32](a, o, n), func(i int) int32 {
		s, v := int32(0), int32(i+1)
		for v != 1 {
			if v&1 != 0 {
				v = 3*v + 1
			} else {
				v /= 2
			}
			if s++; s > 500 {
				break
			}
			if v%7 == 3 {
				continue
			}
			s += v & 1
		}
		return s
	})
}

func TestBarrierReductions(t *testing.T) {
	a := newArena(t)
	m := a.file(t, "control")
	o := put(a, make([]int32, 100))
	a.run(t, m, "barrier_reductions", 1, 100, pack(o))
	check(t, "red", get[int32](a, o, 100), func(int) int32 { return 34*4 + 2 + 1 })
}

func TestAssert(t *testing.T) {
	a := newArena(t)
	m := a.file(t, "control")
	err := a.launch(t, m, "assertion", exec.Config{Block: [3]uint32{64}, Params: pack(int32(40))})
	var f *exec.Fault
	if !errors.As(err, &f) || f.Kind != exec.Assert || f.Thread[0] != 40 || !strings.Contains(f.Msg, "Assertion `threadIdx.x != k` failed") {
		t.Errorf("error %v", err)
	}
	a.run(t, m, "assertion", 1, 64, pack(int32(64)))
}

func TestStackOverflow(t *testing.T) {
	a := newArena(t)
	m := a.file(t, "control")
	err := a.launch(t, m, "overflow", exec.Config{Params: pack(put(a, []int32{5})), StackBytes: 4096})
	var f *exec.Fault
	if !errors.As(err, &f) || f.Kind != exec.StackOverflow {
		t.Errorf("error %v", err)
	}
}

func TestCancel(t *testing.T) {
	before := runtime.NumGoroutine()
	a := newArena(t)
	m := a.file(t, "control")
	k, _ := m.Kernel("forever")
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Millisecond)
	defer cancel()
	start := time.Now()
	err := k.Launch(ctx, exec.Config{Grid: [3]uint32{4, 1, 1}, Block: [3]uint32{64, 1, 1}, Params: pack(put(a, []int32{0})), Space: a})
	var f *exec.Fault
	if !errors.As(err, &f) || f.Kind != exec.Cancelled || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error %v", err)
	}
	if d := time.Since(start); d > time.Minute {
		t.Errorf("stopped after %v", d)
	}
	for late := time.Now().Add(time.Minute); runtime.NumGoroutine() > before && time.Now().Before(late); {
		time.Sleep(time.Millisecond)
	}
	if n := runtime.NumGoroutine(); n > before {
		t.Errorf("%d goroutines left over", n-before)
	}
}

func TestPrintf(t *testing.T) {
	a := newArena(t)
	m := a.file(t, "control")
	var out strings.Builder
	err := a.launch(t, m, "prints", exec.Config{Params: pack(int32(42)), Printf: func(b []byte) { out.Write(b) }})
	if err != nil {
		t.Fatal(err)
	}
	want := "42|   42|42   |00042|+42|42|2a|0X2A|52|42|42000000294|18446744073709551615|A|str|     right|left  |1.500000|3.14|1.234568e+04|0.0001|(nil)|%\n"
	if out.String() != want {
		t.Errorf("printed %q\nwant    %q", out.String(), want)
	}
}
