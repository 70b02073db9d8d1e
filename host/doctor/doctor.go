package doctor

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"
)

// State is how a check ended.
type State string

// States.
const (
	OK      State = "ok"
	Warning State = "warning" // something works less well, or a layer of protection is missing
	Failed  State = "failed"  // vGPUs will not work
)

// Result is what a check found.
type Result struct {
	Check string `json:"check"`
	State State  `json:"state"`
	Found string `json:"found"`
	Do    string `json:"do,omitempty"` // what to do, a sentence with its command
}

// check is one of All.
type check struct {
	name string
	run  func(context.Context, *Machine) Result
	vms  bool // it looks at what VMs alone need
}

func ok(format string, args ...any) Result {
	return Result{State: OK, Found: fmt.Sprintf(format, args...)}
}

func warning(do, format string, args ...any) Result {
	return Result{State: Warning, Found: fmt.Sprintf(format, args...), Do: do}
}

func failed(do, format string, args ...any) Result {
	return Result{State: Failed, Found: fmt.Sprintf(format, args...), Do: do}
}

// limit bounds one check.
const limit = 30 * time.Second

// Examine runs every check. Results are in the order of the table.
func Examine(ctx context.Context, m *Machine) []Result {
	results := make([]Result, len(checks))
	var all sync.WaitGroup
	for i, c := range checks {
		all.Go(func() {
			within, cancel := context.WithTimeout(ctx, limit)
			defer cancel()
			r := c.run(within, m)
			if c.vms {
				r = m.forVMs(ctx, r)
			}
			r.Check = c.name
			results[i] = r
		})
	}
	all.Wait()
	return results
}

// Worst is the worst state among results.
func Worst(results []Result) State {
	for _, s := range []State{Failed, Warning} {
		if slices.ContainsFunc(results, func(r Result) bool { return r.State == s }) {
			return s
		}
	}
	return OK
}

// Write prints results for people. all: also those that are ok.
func Write(w io.Writer, results []Result, all bool) error {
	n := map[State]int{}
	for _, r := range results {
		if n[r.State]++; r.State == OK && !all {
			continue
		}
		if _, err := fmt.Fprintf(w, "%-8s %-16s %s\n", r.State, r.Check, strings.ReplaceAll(r.Found, "\n", "; ")); err != nil {
			return err
		}
		if r.Do != "" {
			if _, err := fmt.Fprintf(w, "%25s > %s\n", "", r.Do); err != nil {
				return err
			}
		}
	}
	_, err := fmt.Fprintf(w, "%d checks: %d ok, %d warnings, %d failed\n", len(results), n[OK], n[Warning], n[Failed])
	return err
}
