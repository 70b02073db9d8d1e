package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
)

// report is a file for people who write the tests that are missing; none if nobody asked for it.
// All of it may be called from several goroutines.
type report struct {
	mu   sync.Mutex
	file *os.File // nil: none
	err  error
}

func newReport(path string) (*report, error) {
	if path == "" {
		return &report{}, nil
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	return &report{file: f}, err
}

func (r *report) close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.file == nil {
		return nil
	}
	return errors.Join(r.err, r.file.Close())
}

// printf says something to who watches, and in the file.
func (r *report) printf(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	fmt.Printf(format, args...)
	if r.file != nil {
		_, err := fmt.Fprintf(r.file, format, args...)
		r.err = errors.Join(r.err, err)
	}
}

// survivor appends a mutant that nobody noticed, so that git apply takes it.
func (r *report) survivor(m mutant) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.file != nil {
		_, err := fmt.Fprintf(r.file, "%v\n", m)
		r.err = errors.Join(r.err, err, writeDiff(r.file, m.file, m.change))
	}
}

// around is how many lines of what stays a diff has on each side.
const around = 3

// writeDiff writes a change as a unified diff of one hunk.
func writeDiff(w io.Writer, file string, c change) error {
	from := bytes.LastIndexByte(c.whole[:c.from], '\n') + 1
	to := len(c.whole)
	if n := bytes.IndexByte(c.whole[c.to:], '\n'); n >= 0 {
		to = c.to + n + 1
	}
	now := string(c.whole[from:c.from]) + c.by + string(c.whole[c.to:to])
	before, behind := bytes.SplitAfter(c.whole[:from], []byte("\n")), bytes.SplitAfter(c.whole[to:], []byte("\n"))
	// Each ends with a newline, and what is behind it is empty.
	before, behind = before[:len(before)-1], behind[:len(behind)-1]
	line := len(before) + 1
	before, behind = before[max(0, len(before)-around):], behind[:min(around, len(behind))]
	was, is := bytes.SplitAfter(c.whole[from:to], []byte("\n")), bytes.SplitAfter([]byte(now), []byte("\n"))
	was, is = was[:len(was)-1], is[:len(is)-1]
	var b bytes.Buffer
	stays := len(before) + len(behind)
	fmt.Fprintf(&b, "--- a/%s\n+++ b/%s\n@@ -%d,%d +%d,%d @@\n", file, file, line-len(before), stays+len(was), line-len(before), stays+len(is))
	for _, part := range []struct {
		mark  string
		lines [][]byte
	}{{" ", before}, {"-", was}, {"+", is}, {" ", behind}} {
		for _, l := range part.lines {
			b.WriteString(part.mark + string(l))
		}
	}
	_, err := w.Write(b.Bytes())
	return err
}
