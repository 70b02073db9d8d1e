package device

import (
	"testing"
	"time"

	"causeway/host/inventory"
)

// TestWorked: what the driver says of a vGPU's processes is taken since the audit before, of
// several GPUs of the busiest, and others' is not.
func TestWorked(t *testing.T) {
	const s = time.Second
	type table = map[int]time.Duration
	var c card
	for _, step := range []struct {
		what    string
		pids    []int
		worked  []table
		sampled []bool
		want    time.Duration
		each    table
		unknown bool
	}{
		{"a driver that tells nothing", []int{1}, nil, nil, 0, table{}, true},
		{"a slice", []int{1}, []table{nil}, []bool{false}, 0, table{}, true},
		{"first", []int{1, 2}, []table{{1: 3 * s, 2: s, 9: 50 * s}}, []bool{true}, 4 * s, table{1: 3 * s, 2: s}, false},
		{"nothing new", []int{1, 2}, []table{{1: 3 * s, 2: s, 9: 60 * s}}, []bool{true}, 0, table{1: 0, 2: 0}, false},
		{"more", []int{1, 2}, []table{{1: 5 * s, 2: s}}, []bool{true}, 2 * s, table{1: 2 * s, 2: 0}, false},
		{"the child that adds up is another", []int{1}, []table{{1: s}}, []bool{true}, s, table{1: s}, false},
		{"two GPUs", []int{1, 3}, []table{{1: 2 * s}, {1: s, 3: 4 * s}}, []bool{true, true}, 5 * s, table{1: 2 * s, 3: 4 * s}, false},
		{"one of them tells", []int{1, 3}, []table{{1: 3 * s}, {1: 9 * s}}, []bool{true, false}, s, table{1: s}, false},
	} {
		used, each, ok := c.worked(&inventory.Reading{Worked: step.worked, Sampled: step.sampled}, step.pids)
		if used != step.want || ok == step.unknown {
			t.Errorf("%s: %v, known %v, want %v", step.what, used, ok, step.want)
		}
		for pid, n := range step.each {
			if each[pid] != n {
				t.Errorf("%s: process %d has %v, want %v", step.what, pid, each[pid], n)
			}
		}
	}
}
