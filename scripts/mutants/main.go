// Command mutants changes the behaviour of the state machines in small, plausible ways, one at a
// time, and says which changes no test of the same package notices.
//
//	go run ./scripts/mutants -seed N [-go 30] [-c 12] [-jobs N] [-cjobs N] [-within 8m] [-report FILE] [-tree] [-list] [-only NAME,...] [-in FILE,...] [-run PATTERN] [-limit 5m]
//
// The draw is a function of the seed and of the last commit: an area of areas.go, all with the same
// chance, then one place in its files, then one change there. What does not compile is left out,
// and the draw goes on. All of it happens in a copy of that commit; with -tree of the files as they
// lie. A mutant is killed if the tests fail, twice and by the same one where that can be told, or
// do not end within the limit, or within four times what they take without it; tests that fail
// without it have no say. Whether a survivor behaves differently at all is for people to say.
//
// With -run only the tests of Go that match have a say: what some new ones notice by themselves.
//
// With -in the draw is from these files alone, wherever their names end so: with a large -go once
// at each place.
//
// With -jobs so many mutants of Go are tried beside each other, with -cjobs so many of C, and both
// kinds beside each other. What has no verdict -within that time is none. With -report each
// survivor is appended to that file, as the change that it is.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// mutant is one change.
type mutant struct {
	name string // of the draw: go7
	area string
	file string
	line int
	change
}

func (m mutant) String() string {
	return fmt.Sprintf("%-6s %-10s %s:%d: %s", m.name, m.area, m.file, m.line, m.what)
}

// verdict is what the tests said.
type verdict int

const (
	killed verdict = iota
	survived
	broken // it does not compile
	unable // the tests say nothing here
)

func (v verdict) String() string {
	return [...]string{"killed", "SURVIVED", "does not compile", "no verdict"}[v]
}

func main() {
	seed := flag.Uint64("seed", 1, "of the draw")
	goes := flag.Int("go", 30, "mutants of Go")
	cs := flag.Int("c", 12, "mutants of C")
	areasOnly := flag.String("areas", "", "draw from these alone, by name")
	in := flag.String("in", "", "draw from these files alone, by how their names end")
	list := flag.Bool("list", false, "only print the first of the draw, also those that do not compile")
	only := flag.String("only", "", "run these of the draw alone, by name")
	limit := flag.Duration("limit", 5*time.Minute, "for the tests of one mutant")
	jobs := flag.Int("jobs", 1, "mutants of Go that are tried at a time")
	cjobs := flag.Int("cjobs", 1, "mutants of C that are tried at a time")
	run := flag.String("run", "", "only these tests of Go have a say, by a pattern as go test takes")
	tree := flag.Bool("tree", false, "of the files as they lie, not of the last commit")
	report := flag.String("report", "", "a file for the survivors, with their changes and the sums")
	within := flag.Duration("within", 0, "for all of them; 0: as long as it takes")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if *within > 0 {
		ctx, stop = context.WithTimeout(ctx, *within)
		defer stop()
	}
	out, err := newReport(*report)
	if err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		os.Exit(1)
	}
	dir, of, err := enterCopy(ctx, *tree)
	if err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		os.Exit(1)
	}
	out.printf("mutants of %s\n", of)
	var bad atomic.Bool
	var wg sync.WaitGroup
	for _, set := range []struct {
		kind    string
		n, jobs int
		areas   []area
		read    func(string, []byte) []site
		tests   func(context.Context, []area, int) (runner, error)
	}{{"go", *goes, *jobs, goAreas, goSites, goRunnerOf(*run)}, {"c", *cs, *cjobs, cAreas, cSites, newCRunner}} {
		if *areasOnly != "" {
			set.areas = slices.DeleteFunc(slices.Clone(set.areas), func(a area) bool { return !names(*areasOnly)[a.name] })
		}
		if set.n == 0 || len(set.areas) == 0 {
			continue
		}
		d, err := newDraw(*seed, set.kind, set.areas, set.read, *in)
		if err == nil && *list {
			err = d.list(ctx, set.n)
		} else if err == nil {
			wg.Go(func() {
				if err := examine(ctx, d, set.n, set.jobs, names(*only), *limit, set.tests, out); err != nil {
					fmt.Fprintln(os.Stderr, "mutants:", err)
					bad.Store(true)
				}
			})
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "mutants:", err)
			bad.Store(true)
		}
	}
	wg.Wait()
	_ = os.RemoveAll(dir)
	if err := out.close(); err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		bad.Store(true)
	}
	if bad.Load() {
		os.Exit(1)
	}
}

// enterCopy makes a copy of the last commit, or of the tree as it lies where there is none or that
// is asked for, beside what has been built and vendored, and has this process be in it. It says
// what it took.
func enterCopy(ctx context.Context, tree bool) (dir, of string, err error) {
	at, pack, of := ".", `tar -C "$0" -c --exclude=./build --exclude=./vendor --exclude=./.git .`, "the files as they lie"
	if said, err := exec.CommandContext(ctx, "git", "rev-parse", "--show-toplevel", "HEAD^{tree}", "HEAD").Output(); err == nil && !tree {
		lines := strings.Split(strings.TrimSpace(string(said)), "\n")
		at, pack, of = lines[0], `git -C "$0" archive HEAD`, "commit "+lines[len(lines)-1]
	}
	if at, err = filepath.Abs(at); err != nil {
		return "", "", err
	}
	if dir, err = os.MkdirTemp("", "mutants-"); err != nil {
		return "", "", err
	}
	if said, err := exec.CommandContext(ctx, "sh", "-c", pack+` | tar -x -C "$1"`, at, dir).CombinedOutput(); err != nil {
		return "", "", fmt.Errorf("copy of %s: %w: %s", of, err, said)
	}
	for _, d := range []string{"build", "vendor"} {
		if _, e := os.Stat(filepath.Join(at, d)); e == nil {
			err = errors.Join(err, os.Symlink(filepath.Join(at, d), filepath.Join(dir, d)))
		}
	}
	return dir, of, errors.Join(err, os.Chdir(dir))
}

func names(list string) map[string]bool {
	if list == "" {
		return nil
	}
	m := map[string]bool{}
	for n := range strings.SplitSeq(list, ",") {
		m[n] = true
	}
	return m
}

// runner runs the tests of a mutant's package.
type runner interface {
	// run gives the tests so long; building them takes what it takes.
	run(ctx context.Context, m mutant, limit time.Duration) (v verdict, by string, err error)
	close()
}

// examine tries n mutants of the draw, or those of the names, jobs at a time. That the time is over
// before all are tried is no error.
func examine(ctx context.Context, d *draw, n, jobs int, only map[string]bool, limit time.Duration,
	tests func(context.Context, []area, int) (runner, error), out *report) error {
	r, err := tests(ctx, d.areas, jobs)
	if err != nil {
		return err
	}
	defer r.close()
	e := &examination{draw: d, left: n, only: only, counts: map[string][2]int{}, out: out}
	var wg sync.WaitGroup
	errs := make([]error, jobs)
	for i := range jobs {
		wg.Go(func() {
			for m, ok := e.next(); ok && ctx.Err() == nil && errs[i] == nil; m, ok = e.next() {
				began := time.Now()
				v, by, err := r.run(ctx, m, limit)
				if errs[i] = err; err == nil && ctx.Err() == nil {
					e.judge(m, v, time.Since(began), by)
				}
			}
		})
	}
	wg.Wait()
	e.sum()
	if err = errors.Join(errs...); err == nil && !errors.Is(ctx.Err(), context.DeadlineExceeded) {
		err = ctx.Err()
	}
	return err
}

// examination is what has been tried so far.
type examination struct {
	mu     sync.Mutex
	draw   *draw
	left   int             // to be tried
	only   map[string]bool // of the draw alone, if not nil
	counts map[string][2]int
	late   int // killed by tests that did not end
	out    *report
}

// next draws one that is to be tried.
func (e *examination) next() (mutant, bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for e.left > 0 && (e.only == nil || len(e.only) > 0) {
		m, ok := e.draw.next()
		if !ok {
			break
		}
		if e.only == nil || e.only[m.name] {
			delete(e.only, m.name)
			e.left--
			return m, true
		}
	}
	return mutant{}, false
}

// judge prints a verdict and counts it. What has none leaves its place to another.
func (e *examination) judge(m mutant, v verdict, took time.Duration, by string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	fmt.Printf("%-16v %v  (%v) %s\n", v, m, took.Round(time.Second), by)
	if v == survived {
		e.out.survivor(m)
	}
	if strings.HasSuffix(by, unended) {
		e.late++
	}
	if v == broken || v == unable {
		e.left++
		return
	}
	c := e.counts[m.area]
	if c[1]++; v == killed {
		c[0]++
	}
	e.counts[m.area] = c
}

func (e *examination) sum() {
	k, all := 0, 0
	for _, a := range e.draw.areas {
		if c := e.counts[a.name]; c[1] > 0 {
			e.out.printf("%-10s %d of %d killed\n", a.name, c[0], c[1])
			k, all = k+c[0], all+c[1]
		}
	}
	e.out.printf("%s: %d of %d killed, %d of them by tests that did not end\n", e.draw.kind, k, all, e.late)
}

// draw draws mutants, none of them twice.
type draw struct {
	kind  string
	areas []area
	sites [][]site // of each area
	rng   *rand.Rand
	n     int
}

func newDraw(seed uint64, kind string, areas []area, read func(string, []byte) []site, in string) (*draw, error) {
	d := &draw{kind: kind, areas: areas, rng: rand.New(rand.NewPCG(seed, uint64(len(kind))))}
	all, taken := 0, map[string]bool{}
	for _, a := range areas {
		var sites []site
		files, err := a.files()
		if err != nil {
			return nil, err
		}
		files = slices.DeleteFunc(files, func(f string) bool { return !among(in, f) })
		for _, f := range files {
			if taken[f] { // by an area before this one
				continue
			}
			taken[f] = true
			text, err := os.ReadFile(f)
			if err != nil {
				return nil, err
			}
			sites = append(sites, read(f, text)...)
		}
		if len(sites) == 0 && in == "" {
			return nil, fmt.Errorf("nothing to change in %s", a.name)
		}
		all += len(sites)
		d.sites = append(d.sites, sites)
	}
	if all == 0 {
		return nil, fmt.Errorf("nothing to change in %s", in)
	}
	return d, nil
}

// among reports whether a file's name ends as one of a list, or there is no list.
func among(list, file string) bool {
	return list == "" || slices.ContainsFunc(strings.Split(list, ","), func(end string) bool { return strings.HasSuffix("/"+file, "/"+end) })
}

func (d *draw) next() (mutant, bool) {
	left := 0
	for _, s := range d.sites {
		left += len(s)
	}
	for left > 0 {
		at := d.rng.IntN(len(d.areas))
		list := d.sites[at]
		if len(list) == 0 {
			continue
		}
		i := d.rng.IntN(len(list))
		s := list[i]
		c := s.changes[d.rng.IntN(len(s.changes))]
		d.sites[at] = append(list[:i:i], list[i+1:]...)
		d.n++
		return mutant{fmt.Sprintf("%s%d", d.kind, d.n), d.areas[at].name, s.file, s.line, c}, true
	}
	return mutant{}, false
}

// list prints the first n.
func (d *draw) list(ctx context.Context, n int) error {
	for range n {
		if m, ok := d.next(); ok {
			fmt.Println(m)
		}
	}
	return ctx.Err()
}

// site is a place in a file that can be changed, in one way or another.
type site struct {
	file    string
	line    int
	changes []change
}

// change replaces the bytes [from, to) of a file.
type change struct {
	what     string
	whole    []byte
	from, to int
	by       string
}

func (c change) text() []byte {
	return append(append(append([]byte(nil), c.whole[:c.from]...), c.by...), c.whole[c.to:]...)
}
