package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

// result is what became of a row.
type result struct {
	row               *row
	native, forwarded outcome
	verdict           verdict
	reason            string
}

// record is what the state file keeps of a row.
type record struct {
	Source            string // digest of the program: results of another text are worth nothing
	Native, Forwarded outcome
	Verdict           verdict
	Reason            string
}

// suite runs rows; results[i] belongs to rows[i] and is written by the one goroutine that runs it.
type suite struct {
	o       *options
	rows    []*row
	results []result
	tmp     string
	start   time.Time
	print   sync.Mutex        // standard error, one line at a time
	state   map[string]record // of earlier runs; written only before and after runAll
}

func newSuite(o *options, rows []*row, state map[string]record) (*suite, error) {
	tmp, err := os.MkdirTemp("", "causeway-compat")
	if err != nil {
		return nil, err
	}
	s := &suite{o: o, rows: rows, results: make([]result, len(rows)), tmp: tmp, start: time.Now(), state: state}
	for i, r := range rows {
		s.results[i] = result{row: r, verdict: notRun, reason: "not reached"}
	}
	return s, nil
}

// readState reads the results of earlier runs; a file that is not there holds none.
func readState(name string) (map[string]record, error) {
	state := map[string]record{}
	if name == "" {
		return state, nil
	}
	text, err := os.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		return state, nil
	}
	if err == nil {
		err = json.Unmarshal(text, &state)
	}
	if err != nil {
		return nil, fmt.Errorf("state of earlier runs: %w", err)
	}
	return state, nil
}

func (s *suite) close() { _ = os.RemoveAll(s.tmp) }

// prepare compiles the small C programs, all at once.
func (s *suite) prepare(ctx context.Context) {
	var wg sync.WaitGroup
	tools, err := findToolchain()
	for _, r := range s.rows {
		if filepath.Ext(r.source) != ".cu" || r.gpus > s.o.gpus {
			continue
		}
		if err != nil {
			r.broken = err.Error()
			continue
		}
		wg.Go(func() {
			if err := tools.build(ctx, r, s.tmp); err != nil {
				r.broken = err.Error()
			}
		})
	}
	wg.Wait()
}

// runAll runs rows side by side, then those that need the GPU for themselves, one by one.
func (s *suite) runAll(ctx context.Context) {
	work := make(chan int)
	var wg sync.WaitGroup
	for range s.o.jobs {
		wg.Go(func() {
			for i := range work {
				s.one(ctx, i)
			}
		})
	}
	for i, r := range s.rows {
		if !r.alone {
			work <- i
		}
	}
	close(work)
	wg.Wait()
	for i, r := range s.rows {
		if r.alone {
			s.one(ctx, i)
		}
	}
	// Rows side by side see each other's memory and time: what is not the same may be so alone.
	for i, r := range s.rows {
		if v := s.results[i].verdict; !r.alone && s.o.jobs > 1 && s.o.again && r.broken == "" && v != same && v != within && v != notRun && v != gapped {
			r.alone, r.fresh = true, true
			s.one(ctx, i)
		}
	}
}

func (s *suite) one(ctx context.Context, i int) {
	r, res := s.rows[i], &s.results[i]
	ran := res.verdict != notRun // a second time
	switch {
	case ctx.Err() != nil:
		return
	case ran && s.o.budget > 0 && time.Since(s.start) > s.o.budget:
		return // the first result stands
	case s.o.budget > 0 && time.Since(s.start) > s.o.budget:
		res.reason = "no time left"
		return
	case r.gpus > s.o.gpus:
		res.reason = fmt.Sprintf("needs %d GPUs", r.gpus)
		return
	case r.broken != "":
		res.reason = r.broken
		res.verdict = fails
		s.progress(res)
		return
	}
	limit := max(s.o.timeout, r.timeout)
	lib := filepath.Join(s.o.dir, "lib")
	native := func() outcome { return execute(ctx, r, nil, lib, s.tmp, limit) }
	forwarded := func() outcome {
		gpu := s.o.gpu
		if r.gpus > 1 || r.gpus == 0 && s.o.gpus > 1 {
			gpu = s.o.multi
		}
		return execute(ctx, r, []string{s.o.causeway, "run", "--gpu", gpu, "--"}, lib, s.tmp, limit)
	}
	known := s.state[r.name].Native
	cached := s.o.reuse && s.state[r.name].Source == r.digest() && !r.fresh && known.Ran && known.Status == 0
	switch {
	case cached:
		res.native, res.forwarded = known, forwarded()
	case r.alone:
		res.native = native()
		res.forwarded = forwarded()
	default:
		var wg sync.WaitGroup
		wg.Go(func() { res.native = native() })
		res.forwarded = forwarded()
		wg.Wait()
	}
	if ctx.Err() != nil {
		res.reason = "interrupted"
		return
	}
	res.verdict, res.reason = judge(r, res.native, res.forwarded)
	if res.verdict == differs && !cached && ctx.Err() == nil {
		if again := native(); again.Status == 0 && agree(r.compare, res.native.Out, again.Out) != "" {
			res.verdict = unrepeatable
			res.reason = "two native runs: " + agree(r.compare, res.native.Out, again.Out)
		}
	}
	s.keep(res)
	s.progress(res)
}

// keep leaves both outputs of a row that is not the same.
func (s *suite) keep(res *result) {
	if s.o.logs == "" || res.verdict == same || res.verdict == within {
		return
	}
	base := filepath.Join(s.o.logs, strings.ReplaceAll(res.row.name, "/", "_"))
	if err := os.MkdirAll(s.o.logs, 0o755); err != nil {
		return
	}
	for suffix, o := range map[string]outcome{".native": res.native, ".causeway": res.forwarded} {
		text := fmt.Sprintf("%s\n--- stderr, status %d\n%s", tail(o.Out), o.Status, tail(o.Err))
		_ = os.WriteFile(base+suffix, []byte(text), 0o644)
	}
}

// tail keeps the last 64 KiB.
func tail(s string) string { return s[max(0, len(s)-64<<10):] }

func (s *suite) progress(res *result) {
	s.print.Lock()
	defer s.print.Unlock()
	fmt.Fprintf(os.Stderr, "[%3.0fs] %-28s %s\n", time.Since(s.start).Seconds(), res.row.name, res.verdict)
}

// digest is that of the file that describes a row.
func (r *row) digest() string {
	text, err := os.ReadFile(r.source)
	if err != nil {
		return ""
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:8])
}

// save completes the state file with what ran now.
func (s *suite) save() error {
	for _, res := range s.results {
		if res.verdict != notRun {
			res.native.Err, res.forwarded.Err = "", ""
			s.state[res.row.name] = record{res.row.digest(), res.native, res.forwarded, res.verdict, res.reason}
		}
	}
	if s.o.state == "" {
		return nil
	}
	text, err := json.MarshalIndent(s.state, "", " ")
	if err != nil {
		return err
	}
	return os.WriteFile(s.o.state, text, 0o644)
}

// known are the results of all rows, of this run or an earlier one.
func (s *suite) known(rows []*row) []result {
	list := make([]result, 0, len(rows))
	for _, r := range rows {
		k, ok := s.state[r.name]
		if !ok || !k.Forwarded.Ran && k.Verdict == "" {
			k = record{Verdict: notRun, Reason: "not run here"}
			if r.gpus > s.o.gpus {
				k.Reason = fmt.Sprintf("needs %d GPUs", r.gpus)
			}
		}
		list = append(list, result{r, k.Native, k.Forwarded, k.Verdict, k.Reason})
	}
	return list
}
