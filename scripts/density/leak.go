package main

import (
	"fmt"
	"sort"
	"time"
)

// Bounds of what may be more afterwards. Threads of Go programs stay, and a heap of live data L
// grows to 4 MiB or 2 L before it is looked at: of the few processes that all rounds go through, a
// leak of 6 KiB in each of 1000 rounds shows.
const (
	moreFDs     = 0
	moreThreads = 4       // per process
	moreMemory  = 2 << 20 // of anonymous memory, per process, on average over device processes
	moreCentral = 6 << 20 // causewayd, scheduler
)

// state is what could leak.
type state struct {
	roles roles
	files []string
}

func (t *test) state() (state, error) {
	r, err := t.measure()
	return state{r, files(t.dir)}, err
}

// unchanged runs what should leave nothing behind, and compares.
func (t *test) unchanged(what string, f func() (times, error)) (times, error) {
	time.Sleep(time.Second)
	a, err := t.state()
	if err != nil {
		return nil, err
	}
	list, err := f()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	// Connections and descriptors go when their other ends do; an answer may still be on its way.
	var b state
	for range 40 {
		time.Sleep(500 * time.Millisecond)
		if b, err = t.state(); err != nil {
			return nil, err
		}
		if !t.grew(what, a, b, false) {
			break
		}
	}
	t.grew(what, a, b, true)
	return list, nil
}

// grew compares two states. aloud: it prints them, and what is out of bounds is a fault.
func (t *test) grew(what string, a, b state, aloud bool) bool {
	var names []string
	for role := range b.roles {
		names = append(names, role)
	}
	sort.Strings(names)
	bad := false
	check := func(ok bool, format string, args ...any) {
		bad = bad || !ok
		if aloud {
			t.bound(ok, what+": "+format, args...)
		}
	}
	for _, role := range names {
		x, y := a.roles.of(role), b.roles.of(role)
		if aloud {
			line("  "+what+": "+role, "processes %d -> %d, descriptors %d -> %d, threads %d -> %d, anonymous %.1f -> %.1f MiB",
				x.n, y.n, x.fds, y.fds, x.threads, y.threads, mib(x.anon), mib(y.anon))
		}
		n := max(x.n, 1)
		more := int64(n) * moreMemory
		if role == "daemon" || role == "scheduler" {
			more = moreCentral
		}
		check(y.n <= x.n, "%d %s processes were %d", y.n, role, x.n)
		check(y.fds <= x.fds+moreFDs, "%s: %d descriptors were %d", role, y.fds, x.fds)
		check(y.threads <= x.threads+n*moreThreads, "%s: %d threads were %d", role, y.threads, x.threads)
		check(y.anon <= x.anon+more, "%s: %.1f MiB of anonymous memory were %.1f", role, mib(y.anon), mib(x.anon))
	}
	old := map[string]bool{}
	for _, f := range a.files {
		old[f] = true
	}
	for _, f := range b.files {
		check(old[f], "left behind: %s", f)
	}
	return bad
}
