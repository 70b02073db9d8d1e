package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestParseRows(t *testing.T) {
	text := `#!/usr/bin/env bash
#: title: two rows
#: part: 2
#: compare: numbers 1e-3
#: alone: b
#: gap: b: it needs a profiler
#: timeout: 90
#: row: a
#: row: b -q --x
`
	rows, err := parseRows("dir/two.sh", strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	if len(rows) != 2 || rows[0].name != "a" || rows[1].name != "b" || len(rows[1].args) != 2 {
		t.Fatalf("rows are %+v", rows)
	}
	a, b := rows[0], rows[1]
	if a.alone || !b.alone || a.gap != "" || b.gap != "it needs a profiler" || a.compare.rel != 1e-3 || b.timeout != 90*time.Second {
		t.Errorf("a is %+v, b is %+v", a, b)
	}
	for _, bad := range []string{"#: title: x\n#: compare: about", "#: title: x\n#: colour: red", "#: title: x\n#: row:", "#: title: x\n#: gpus: two", "#: nothing"} {
		if _, err := parseRows("bad.py", strings.NewReader(bad)); err == nil {
			t.Errorf("%q is accepted", bad)
		}
	}
	if rows, err := parseRows("lib.py", strings.NewReader("import os\n")); err != nil || rows != nil {
		t.Errorf("a file without description gives %v, %v", rows, err)
	}
}

// TestCommittedRows reads the descriptions that are committed beside this folder.
func TestCommittedRows(t *testing.T) {
	rows, err := loadRows("..")
	if err != nil {
		t.Fatal(err)
	}
	if len(rows) < 60 {
		t.Errorf("%d rows", len(rows))
	}
	for _, r := range rows {
		if r.title == "" || !strings.Contains("123456", r.part) || len(r.part) != 1 {
			t.Errorf("%s: title %q, part %q", r.name, r.title, r.part)
		}
	}
}

func TestJudge(t *testing.T) {
	exact, numbers, status := comparison{kind: "exact"}, comparison{kind: "numbers", rel: 1e-3}, comparison{kind: "status"}
	for name, c := range map[string]struct {
		compare           comparison
		gap               string
		native, forwarded outcome
		want              verdict
	}{
		"equal":             {exact, "", outcome{Out: "x 1\n# t 5\n"}, outcome{Out: "x 1\n# t 6\n"}, same},
		"one digit":         {exact, "", outcome{Out: "x 1.0\n"}, outcome{Out: "x 1.1\n"}, differs},
		"close":             {numbers, "", outcome{Out: "x [1.0000, 2]\n"}, outcome{Out: "x [1.0005, 2]\n"}, within},
		"not close":         {numbers, "", outcome{Out: "x 1.0\n"}, outcome{Out: "x 1.01\n"}, differs},
		"word":              {numbers, "", outcome{Out: "x yes\n"}, outcome{Out: "x no\n"}, differs},
		"nan":               {numbers, "", outcome{Out: "x 1\n"}, outcome{Out: "x nan\n"}, differs},
		"less":              {exact, "", outcome{Out: "x\ny\n"}, outcome{Out: "x\n"}, differs},
		"more":              {exact, "", outcome{Out: "x\n"}, outcome{Out: "x\ny\n"}, differs},
		"crash":             {exact, "", outcome{Out: "x\n"}, outcome{Status: 139}, fails},
		"crash with reason": {exact, "why", outcome{Out: "x\n"}, outcome{Status: 139}, gapped},
		"native too":        {exact, "", outcome{Status: 1}, outcome{Status: 1}, nativeFails},
		"native alone":      {exact, "", outcome{Status: 1}, outcome{Out: "x\n"}, nativeFails},
		"both, unlike":      {exact, "", outcome{Status: 1}, outcome{Status: 139}, fails},
		"skipped":           {exact, "", outcome{Status: 77}, outcome{Status: 77}, notRun},
		"status only":       {status, "", outcome{Out: "a\n"}, outcome{Out: "b\n"}, within},
	} {
		if got, why := judge(&row{compare: c.compare, gap: c.gap}, c.native, c.forwarded); got != c.want {
			t.Errorf("%s: %s (%s), want %s", name, got, why, c.want)
		}
	}
}

func TestReason(t *testing.T) {
	err := "causeway: session open by unix\ncauseway: cuFoo is not supported: x\ncauseway: cuFoo is not supported: x\nError: no foo\ncauseway: late\n"
	_, why := judge(&row{}, outcome{}, outcome{Status: 1, Err: err})
	if why != "status 1: Error: no foo [cuFoo is not supported: x; late]" {
		t.Error(why)
	}
}

func TestExecute(t *testing.T) {
	dir := t.TempDir()
	sh := func(name, text string) *row {
		p := filepath.Join(dir, name+".sh")
		if err := os.WriteFile(p, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return &row{name: name, program: p}
	}
	if o := execute(context.Background(), sh("ok", "echo out; echo err >&2; exit 3"), nil, dir, dir, time.Minute); o.Status != 3 || o.Out != "out\n" || o.Err != "err\n" {
		t.Errorf("exit: %+v", o)
	}
	if o := execute(context.Background(), sh("kill", "kill -SEGV $$"), nil, dir, dir, time.Minute); o.Status != 139 {
		t.Errorf("signal: %+v", o)
	}
	start := time.Now()
	if o := execute(context.Background(), sh("late", "sleep 60 & wait"), nil, dir, dir, 100*time.Millisecond); o.Status != 124 || time.Since(start) > 10*time.Second {
		t.Errorf("late: %+v after %v", o, time.Since(start))
	}
	if o := execute(context.Background(), &row{program: "/nowhere"}, nil, dir, dir, time.Minute); o.Status != 127 {
		t.Errorf("absent: %+v", o)
	}
}

func TestReport(t *testing.T) {
	r := []result{
		{row: &row{name: "a", part: "1", title: "A"}, native: outcome{Ran: true}, forwarded: outcome{Ran: true}, verdict: same},
		{row: &row{name: "b", part: "4", title: "B"}, verdict: notRun, reason: "needs 2 GPUs"},
	}
	if good, line := summary(r); !good || line != "compat: 2 rows: 1 same, 1 not run" {
		t.Errorf("%v %q", good, line)
	}
	if good, _ := summary(r[1:]); good {
		t.Error("nothing ran, and that is called good")
	}
	r[0].verdict = fails
	if good, _ := summary(r); good {
		t.Error("a failure is called good")
	}
	p := []result{{row: &row{name: "jax_a"}, verdict: fails}, {row: &row{name: "jax_b"}, verdict: same}, {row: &row{name: "jax_c"}, verdict: notRun}}
	if text := besidePeers(p); !strings.Contains(text, "| 1 of 2 |") || !strings.Contains(text, "| not run |") {
		t.Error(text)
	}
	if text := markdown(r, []string{"GPU: x"}); !strings.Contains(text, "## PyTorch") || !strings.Contains(text, "| b | B | - | - | not run | needs 2 GPUs |") {
		t.Error(text)
	}
}
