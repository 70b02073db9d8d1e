package spawn

import (
	"os"
	"testing"
	"time"
)

func TestCPUTime(t *testing.T) {
	for stat, want := range map[string]time.Duration{
		"1 (a) S 2 3 4 5 6 7 8 9 10 11 12 13 14 15":        25 * tick,
		"1 (a) b) 9 (c) S 2 3 4 5 6 7 8 9 10 11 100 0 0 0": 100 * tick,
		"":                                      0,
		"1 (a":                                  0,
		"1 (a) S 2":                             0,
		"1 (a) S 2 3 4 5 6 7 8 9 10 11 x 13 14": 0,
	} {
		if got := parseCPU([]byte(stat)); got != want {
			t.Errorf("%q: %v, want %v", stat, got, want)
		}
	}
	d := cpuTime(os.Getpid())
	for d == 0 { // however long a busy machine gives it none
		d = cpuTime(os.Getpid()) // takes some
	}
	if d <= 0 || d > time.Hour {
		t.Errorf("this process has taken %v", d)
	}
	if d := cpuTime(1 << 30); d != 0 {
		t.Errorf("no process has taken %v", d)
	}
}

// FuzzParseCPU: no name of a program makes another number of it.
func FuzzParseCPU(f *testing.F) {
	f.Add("sh")
	f.Add(") S 1 1 1 1 1 1 1 1 1 1 999 999 ")
	f.Fuzz(func(t *testing.T, name string) {
		if d := parseCPU([]byte("1 (" + name + ") S 2 3 4 5 6 7 8 9 10 11 12 13 14 15")); d != 25*tick {
			t.Errorf("%q: %v", name, d)
		}
	})
}
