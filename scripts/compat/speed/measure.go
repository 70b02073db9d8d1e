package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// program is one way of measuring one file.
type program struct {
	file, binary string
	args         []string
	// How often it is started on each side, by a spawner that lives on; 0: it is a server itself.
	spawn int
}

func (p *program) String() string {
	return strings.Join(append([]string{filepath.Base(p.file)}, p.args...), " ")
}

// compiled says that the file is C or CUDA C++.
func (p *program) compiled() bool { return !strings.HasSuffix(p.file, ".py") }

// load reads the describing lines of the files that match patterns, in the order of names.
func load(patterns ...string) ([]*program, error) {
	var list []*program
	for _, pattern := range patterns {
		files, err := filepath.Glob(pattern)
		if err != nil {
			return nil, err
		}
		for _, f := range files {
			text, err := os.ReadFile(f)
			if err != nil {
				return nil, err
			}
			for line := range strings.Lines(string(text)) {
				_, spec, ok := strings.Cut(line, ": speed: ")
				if !ok || !strings.HasPrefix(line, "#: ") && !strings.HasPrefix(line, "//: ") {
					continue
				}
				p, err := parse(f, strings.Fields(spec))
				if err != nil {
					return nil, fmt.Errorf("%s: %w", f, err)
				}
				list = append(list, p)
			}
		}
	}
	return list, nil
}

func parse(file string, words []string) (*program, error) {
	switch {
	case len(words) > 0 && words[0] == "serve":
		return &program{file: file, args: words[1:]}, nil
	case len(words) > 1 && words[0] == "spawn":
		n, err := strconv.Atoi(words[1])
		if err != nil || n < 1 {
			return nil, fmt.Errorf("spawn how often: %q", words[1])
		}
		return &program{file: file, args: words[2:], spawn: n}, nil
	}
	return nil, fmt.Errorf("no way to measure: %q", strings.Join(words, " "))
}

// sample is one measured value.
type sample struct {
	name, unit, goal string
	value            float64
}

// parseSample reads "NAME VALUE UNIT GOAL".
func parseSample(line string) (sample, bool) {
	f := strings.Fields(line)
	if len(f) != 4 {
		return sample{}, false
	}
	v, err := strconv.ParseFloat(f[1], 64)
	return sample{f[0], f[2], f[3], v}, err == nil
}

// samples of one measure on both sides.
type samples struct {
	sample
	side [2][]float64 // native, causeway
}

// pairs keeps measures in the order they came.
type pairs struct{ list []*samples }

func (p *pairs) add(side int, s sample) {
	i := slices.IndexFunc(p.list, func(m *samples) bool { return m.name == s.name })
	if i < 0 {
		i = len(p.list)
		p.list = append(p.list, &samples{sample: s})
	}
	p.list[i].side[side] = append(p.list[i].side[side], s.value)
}

// lines are the table's; a side without samples shows as "-".
func (p *pairs) lines() []string {
	var out []string
	for _, m := range p.list {
		native, value, ratio := "-", "-", "-"
		if len(m.side[0]) > 0 {
			native = fmt.Sprintf("%.4g", median(m.side[0]))
		}
		if len(m.side[1]) > 0 {
			value = fmt.Sprintf("%.4g", median(m.side[1]))
		}
		if len(m.side[0]) > 0 && len(m.side[1]) > 0 && median(m.side[0]) != 0 {
			ratio = fmt.Sprintf("%.3f", median(m.side[1])/median(m.side[0]))
		}
		out = append(out, strings.Join([]string{m.name, value, m.unit, native, ratio, m.goal}, " "))
	}
	return out
}

func median(v []float64) float64 {
	s := slices.Sorted(slices.Values(v))
	n := len(s)
	if n%2 == 1 {
		return s[n/2]
	}
	return (s[n/2-1] + s[n/2]) / 2
}

// measure runs one program on both sides in turn. What was measured before an error is returned
// with it.
func measure(ctx context.Context, o *options, p *program, tmp string) (*pairs, error) {
	ctx, cancel := context.WithTimeout(ctx, o.limit)
	defer cancel()
	result := &pairs{}
	if p.compiled() {
		if err := build(ctx, p, tmp); err != nil {
			return result, err
		}
	}
	var s [2]*server
	for side := range s {
		var err error
		if s[side], err = startServer(ctx, o, p, side == 1, tmp); err != nil {
			return result, err
		}
		defer s[side].stop()
	}
	for side := range s { // both get ready at the same time
		if !s[side].ready() {
			return result, fmt.Errorf("side %d ended before it was ready", side)
		}
	}
	rounds := o.rounds
	if p.spawn > 0 {
		rounds = p.spawn
	}
	for round := range rounds + 1 { // the first warms both up
		for k := range s {
			side := (k + round) % 2
			got, err := s[side].ask()
			if err != nil {
				return result, fmt.Errorf("side %d: %w", side, err)
			}
			for _, g := range got {
				if round > 0 {
					result.add(side, g)
				}
			}
		}
	}
	return result, nil
}

// server is a program that waits for "go".
type server struct {
	in   io.WriteCloser
	out  *bufio.Scanner
	wait func() error
}

func startServer(ctx context.Context, o *options, p *program, forwarded bool, tmp string) (*server, error) {
	c, err := o.command(ctx, p, forwarded, tmp)
	if err != nil {
		return nil, err
	}
	in, err := c.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := c.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := c.Start(); err != nil {
		return nil, err
	}
	return &server{in, bufio.NewScanner(out), c.Wait}, nil
}

// ready waits for the program's first word.
func (s *server) ready() bool {
	for s.out.Scan() {
		if s.out.Text() == "ready" {
			return true
		}
	}
	return false
}

// ask takes one sample of each measure.
func (s *server) ask() ([]sample, error) {
	if _, err := io.WriteString(s.in, "go\n"); err != nil {
		return nil, err
	}
	var got []sample
	for s.out.Scan() {
		if s.out.Text() == "." {
			return got, nil
		}
		if v, ok := parseSample(s.out.Text()); ok {
			got = append(got, v)
		}
	}
	return got, fmt.Errorf("the program ended: %w", io.ErrUnexpectedEOF)
}

func (s *server) stop() {
	_ = s.in.Close()
	_ = s.wait()
}
