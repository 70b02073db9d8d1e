package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestMain lets this binary be the spawner that TestMeasure starts.
func TestMain(m *testing.M) {
	if len(os.Args) > 2 && os.Args[1] == "spawner" {
		if err := spawner(os.Stdin, os.Stdout, os.Args[2:]); err != nil {
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// TestMeasure runs a server and a spawned program of the same protocol, with a shell in place of
// causeway.
func TestMeasure(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string, mode os.FileMode) {
		p := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
	}
	write("causeway", "#!/bin/sh\nwhile [ \"$1\" != -- ]; do shift; done\nshift\nexport FORWARDED=1\nexec \"$@\"\n", 0o755)
	write("speed/serve.py", `#: speed: serve
import os, sys
print("ready", flush=True)
n = 0
for line in sys.stdin:
    n += 1
    print("a", (2 if "FORWARDED" in os.environ else 4) + (100 if n == 1 else 0), "us", "<=1.0")
    print("noise and more noise than four words")
    print(".", flush=True)
`, 0o644)
	write("speed/once.py", "#: speed: spawn 2\nprint('inner 5 s <=1.0')\n", 0o644)
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	o := &options{self: exe, causeway: filepath.Join(dir, "causeway"), dir: dir, gpu: "0", rounds: 3, limit: time.Minute}
	list, err := load(programsOf(dir)...)
	if err != nil || len(list) != 2 {
		t.Fatalf("%v, %v", list, err)
	}
	for _, p := range list {
		got, err := measure(context.Background(), o, p, t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		text := strings.Join(got.lines(), "\n")
		want := "a 2 us 4 0.500 <=1.0"
		if p.spawn > 0 {
			want = "inner 5 s 5 1.000 <=1.0"
		}
		if !strings.Contains(text, want) {
			t.Errorf("%s: %s", p, text)
		}
	}
	write("speed/serve.py", "#: speed: serve\nprint('ready', flush=True)\n", 0o644)
	if _, err := measure(context.Background(), o, list[1], t.TempDir()); err == nil {
		t.Error("a server that ends at once is no error")
	}
}

func TestCommittedPrograms(t *testing.T) {
	list, err := load(programsOf("..")...)
	if err != nil || len(list) < 12 {
		t.Fatalf("%d programs, %v", len(list), err)
	}
}

func TestMarkdown(t *testing.T) {
	p := &pairs{}
	p.add(0, sample{"graph_80_replay", "us", "<=1.01", 200})
	p.add(1, sample{"graph_80_replay", "us", "<=1.01", 100})
	if text := markdown([]*pairs{p}); !strings.Contains(text, "| graph_80_replay | 100 | us | 200 | 0.500 | <=1.01 | Lupine: 221 against 175 us |") {
		t.Error(text)
	}
}

func TestMedian(t *testing.T) {
	if median([]float64{3, 1, 2}) != 2 || median([]float64{4, 1, 2, 3}) != 2.5 {
		t.Error("median")
	}
}
