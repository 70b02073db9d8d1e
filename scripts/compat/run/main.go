package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"
)

type options struct {
	causeway, dir, tests, expected string
	gpu, multi                     string
	only, skip, parts              string
	jobs, gpus                     int
	timeout, budget                time.Duration
	markdown, logs, state          string
	withAlone, list, reuse, todo   bool
	again                          bool
}

func main() {
	exe, err := os.Executable()
	if err != nil {
		exe = os.Args[0]
	}
	build := filepath.Dir(filepath.Dir(exe))
	root := filepath.Dir(build)
	var o options
	flag.StringVar(&o.causeway, "causeway", filepath.Join(build, "bin/causeway"), "the causeway binary")
	flag.StringVar(&o.dir, "dir", filepath.Join(root, "scripts/compat"), "folder of the programs")
	flag.StringVar(&o.tests, "tests", "", "folders of built CUDA test programs, comma-separated (default: all under build/tests)")
	flag.StringVar(&o.expected, "expected", filepath.Join(root, "guest/tests/expected"), "only programs with a text here are run")
	flag.StringVar(&o.gpu, "gpu", "0", "GPU to forward to")
	flag.StringVar(&o.multi, "multi-gpu", "0,1", "GPUs for rows that need two")
	flag.IntVar(&o.gpus, "gpus", 1, "GPUs of this machine; rows that need more are not run")
	flag.StringVar(&o.only, "only", "", "run rows whose name matches this regular expression")
	flag.StringVar(&o.skip, "skip", "", "leave out rows whose name matches")
	flag.StringVar(&o.parts, "parts", "123456", "the groups of the table to run")
	flag.IntVar(&o.jobs, "jobs", max(1, runtime.NumCPU()/2), "rows at the same time")
	flag.DurationVar(&o.timeout, "timeout", 60*time.Second, "limit of one run that says nothing else")
	flag.DurationVar(&o.budget, "budget", 0, "start no row after this long (0: no limit)")
	flag.StringVar(&o.markdown, "markdown", "", "write the table to this file")
	flag.StringVar(&o.logs, "logs", "", "leave outputs of rows that are not the same here")
	flag.StringVar(&o.state, "state", "", "file of results: the table in --markdown shows those of earlier runs too")
	flag.BoolVar(&o.reuse, "reuse-native", false, "take native outcomes from the state file where it has them")
	flag.BoolVar(&o.todo, "todo", false, "run only rows that the state file does not have as same or within tolerance")
	flag.BoolVar(&o.withAlone, "alone", true, "run the rows that need the whole GPU, after the others")
	flag.BoolVar(&o.again, "again", true, "run rows that differ or fail once more, with nothing beside them")
	flag.BoolVar(&o.list, "list", false, "list the rows and end")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	good, err := run(ctx, &o, build)
	if err != nil {
		fmt.Fprintln(os.Stderr, "compat:", err)
		os.Exit(2)
	}
	if !good {
		os.Exit(1)
	}
}

// load reads all rows; those of it that are asked for come second.
func load(o *options, build string) (rows, chosen []*row, err error) {
	rows, err = loadRows(o.dir)
	if err != nil {
		return nil, nil, err
	}
	var dirs []string
	if o.tests != "" {
		dirs = strings.Split(o.tests, ",")
	} else {
		dirs, _ = filepath.Glob(filepath.Join(build, "tests/*-*"))
	}
	rows = append(rows, testRows(dirs, o.expected)...)
	only, err := regexp.Compile(o.only)
	if err != nil {
		return nil, nil, fmt.Errorf("--only: %w", err)
	}
	skip, err := regexp.Compile(o.skip)
	if err != nil {
		return nil, nil, fmt.Errorf("--skip: %w", err)
	}
	for _, r := range rows {
		if strings.Contains(o.parts, r.part) && only.MatchString(r.name) && (o.skip == "" || !skip.MatchString(r.name)) && (o.withAlone || !r.alone) {
			chosen = append(chosen, r)
		}
	}
	return rows, chosen, nil
}

func run(ctx context.Context, o *options, build string) (bool, error) {
	all, rows, err := load(o, build)
	if err != nil {
		return false, err
	}
	if len(rows) == 0 {
		return false, fmt.Errorf("no row matches")
	}
	if o.list {
		for _, r := range rows {
			fmt.Printf("%s  %-28s %s\n", r.part, r.name, r.title)
		}
		return true, nil
	}
	for _, p := range []*string{&o.causeway, &o.dir} { // programs run in other folders
		if *p, err = filepath.Abs(*p); err != nil {
			return false, err
		}
	}
	for _, r := range rows {
		if r.program, err = filepath.Abs(r.program); err != nil {
			return false, err
		}
	}
	state, err := readState(o.state)
	if err != nil {
		return false, err
	}
	if o.todo {
		rows = slices.DeleteFunc(rows, func(r *row) bool {
			k := state[r.name]
			return k.Source == r.digest() && (k.Verdict == same || k.Verdict == within)
		})
	}
	s, err := newSuite(o, rows, state)
	if err != nil {
		return false, err
	}
	defer s.close()
	s.prepare(ctx)
	s.runAll(ctx)
	fmt.Print(table(s.results))
	if err := s.save(); err != nil {
		return false, err
	}
	good, line := summary(s.results)
	fmt.Println(line)
	if o.markdown != "" {
		if err := os.WriteFile(o.markdown, []byte(markdown(s.known(all), versions())), 0o644); err != nil {
			return false, err
		}
	}
	return good, nil
}
