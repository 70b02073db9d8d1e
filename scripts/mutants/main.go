// Command mutants changes the behaviour of the state machines in small, plausible ways, one at a time, and says which changes no test of the same
// package notices.
//
//	go run ./scripts/mutants -seed N [-go 30] [-c 12] [-list] [-only NAME,...] [-limit 5m]
//
// The draw is a function of the seed and of the last commit: an area of areas.go, all with the same chance, then one place in its files, then one
// change there. What does not compile is left out, and the draw goes on. All of it happens in a copy of that commit. A mutant is killed if the tests
// fail, twice and by the same one where that can be told, or do not end within the limit; tests that fail without it have no say. Whether a survivor behaves differently at all is for people to say.
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
	"syscall"
	"time"
)

// mutant is one change.
type mutant struct {
	name string // of the draw: go7
	area string
	file string
	line int
	what string
	text []byte // the whole file
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
	list := flag.Bool("list", false, "only print the first of the draw, also those that do not compile")
	only := flag.String("only", "", "run these of the draw alone, by name")
	limit := flag.Duration("limit", 5*time.Minute, "for the tests of one mutant")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	dir, err := enterCopy(ctx)
	if err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		os.Exit(1)
	}
	bad := false
	for _, set := range []struct {
		kind  string
		n     int
		areas []area
		read  func(string, []byte) []site
		tests func() (runner, error)
	}{{"go", *goes, goAreas, goSites, newGoRunner}, {"c", *cs, cAreas, cSites, newCRunner}} {
		if set.n == 0 {
			continue
		}
		if *areasOnly != "" {
			set.areas = slices.DeleteFunc(slices.Clone(set.areas), func(a area) bool { return !names(*areasOnly)[a.name] })
		}
		if len(set.areas) == 0 {
			continue
		}
		d, err := newDraw(*seed, set.kind, set.areas, set.read)
		if err == nil {
			err = examine(ctx, d, set.n, *list, names(*only), *limit, set.tests)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "mutants:", err)
			bad = true
		}
	}
	_ = os.RemoveAll(dir)
	if bad {
		os.Exit(1)
	}
}

// enterCopy makes a copy of the last commit, beside what has been built, and has this process be in it.
func enterCopy(ctx context.Context) (dir string, err error) {
	root, err := exec.CommandContext(ctx, "git", "rev-parse", "--show-toplevel").Output()
	if err != nil {
		return "", fmt.Errorf("the repository's root: %w", err)
	}
	at := strings.TrimSpace(string(root))
	if dir, err = os.MkdirTemp("", "mutants-"); err != nil {
		return "", err
	}
	unpack := exec.CommandContext(ctx, "sh", "-c", `git -C "$0" archive HEAD | tar -x -C "$1"`, at, dir)
	if said, err := unpack.CombinedOutput(); err != nil {
		return "", fmt.Errorf("copy of the last commit: %w: %s", err, said)
	}
	return dir, errors.Join(os.Symlink(filepath.Join(at, "build"), filepath.Join(dir, "build")), os.Chdir(dir))
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

func examine(ctx context.Context, d *draw, n int, list bool, only map[string]bool, limit time.Duration, tests func() (runner, error)) error {
	var r runner
	if !list {
		var err error
		if r, err = tests(); err != nil {
			return err
		}
		defer r.close()
	}
	counts := map[string][2]int{}
	for done := 0; done < n && ctx.Err() == nil; {
		m, ok := d.next()
		if !ok {
			break
		}
		where := fmt.Sprintf("%-6s %-10s %s:%d: %s", m.name, m.area, m.file, m.line, m.what)
		if list {
			fmt.Println(where)
			done++
			continue
		}
		if only != nil && !only[m.name] {
			if len(only) == 0 {
				break
			}
			continue
		}
		delete(only, m.name)
		began := time.Now()
		v, by, err := r.run(ctx, m, limit)
		if err = errors.Join(err, ctx.Err()); err != nil {
			return err
		}
		fmt.Printf("%-16v %s  (%v) %s\n", v, where, time.Since(began).Round(time.Second), by)
		if v == broken || v == unable {
			continue
		}
		done++
		c := counts[m.area]
		if c[1]++; v == killed {
			c[0]++
		}
		counts[m.area] = c
	}
	if list {
		return ctx.Err()
	}
	k, all := 0, 0
	for _, a := range d.areas {
		if c := counts[a.name]; c[1] > 0 {
			fmt.Printf("%-10s %d of %d killed\n", a.name, c[0], c[1])
			k, all = k+c[0], all+c[1]
		}
	}
	fmt.Printf("%d of %d killed\n", k, all)
	return ctx.Err()
}

// draw draws mutants, none of them twice.
type draw struct {
	kind  string
	areas []area
	sites [][]site // of each area
	rng   *rand.Rand
	n     int
}

func newDraw(seed uint64, kind string, areas []area, read func(string, []byte) []site) (*draw, error) {
	d := &draw{kind: kind, areas: areas, rng: rand.New(rand.NewPCG(seed, uint64(len(kind))))}
	for _, a := range areas {
		var sites []site
		files, err := a.files()
		if err != nil {
			return nil, err
		}
		for _, f := range files {
			text, err := os.ReadFile(f)
			if err != nil {
				return nil, err
			}
			sites = append(sites, read(f, text)...)
		}
		if len(sites) == 0 {
			return nil, fmt.Errorf("nothing to change in %s", a.name)
		}
		d.sites = append(d.sites, sites)
	}
	return d, nil
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
		change := s.changes[d.rng.IntN(len(s.changes))]
		d.sites[at] = append(list[:i:i], list[i+1:]...)
		d.n++
		return mutant{fmt.Sprintf("%s%d", d.kind, d.n), d.areas[at].name, s.file, s.line, change.what, change.text()}, true
	}
	return mutant{}, false
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
