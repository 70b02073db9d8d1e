package main

import (
	"errors"
	"strings"
	"testing"

	"causeway/host/device"
	"causeway/host/driver"
	"causeway/host/worker/link"
)

// TestJudgeMove: what keeps sessions from another GPU is said before anything is asked of it.
func TestJudgeMove(t *testing.T) {
	h200 := gpuLine{Backend: "cuda", Index: 0, Name: "NVIDIA H200", UUID: "GPU-0", Driver: "580.1", Compute: 90, MIG: "off"}
	same := h200
	same.Index, same.UUID = 1, "GPU-1"
	with := func(change func(*gpuLine)) gpuLine {
		g := same
		change(&g)
		return g
	}
	for what, c := range map[string]struct {
		to    gpuLine
		other bool
		words string // empty: it can be moved
	}{
		"the same model":          {same, false, ""},
		"itself":                  {h200, false, "already"},
		"another model":           {with(func(g *gpuLine) { g.Name = "NVIDIA L40S"; g.Compute = 89 }), false, "NVIDIA L40S, compute capability 8.9"},
		"another model, wanted":   {with(func(g *gpuLine) { g.Name = "NVIDIA L40S"; g.Compute = 89 }), true, ""},
		"another driver":          {with(func(g *gpuLine) { g.Driver = "590.2" }), true, "580.1 here, 590.2 there"},
		"a software GPU":          {with(func(g *gpuLine) { g.Backend = "soft" }), true, "is no NVIDIA GPU"},
		"one cut into slices":     {with(func(g *gpuLine) { g.MIG = "on" }), true, "MIG"},
		"one that reaches memory": {with(func(g *gpuLine) { g.Reach = driver.ReachHMM }), true, "NVIDIA H200"},
	} {
		err := judgeMove(&h200, &c.to, c.other)
		if c.words == "" && err != nil || c.words != "" && (!errors.Is(err, device.ErrElsewhere) || !strings.Contains(err.Error(), c.words)) {
			t.Errorf("%s: %v, want %q", what, err, c.words)
		}
	}
}

// TestOtherGPU: names of software GPUs, and what has several.
func TestOtherGPU(t *testing.T) {
	one, err := softLine(1)
	if err != nil {
		t.Fatal(err)
	}
	here, err := softLine(0)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		cfg   link.Config
		name  string
		words string
	}{
		{link.Config{GPU: "soft"}, "1", ""},
		{link.Config{GPU: "soft"}, "soft/1", ""},
		{link.Config{GPU: "soft:8", Devices: []int{7}}, one.UUID, ""},
		{link.Config{GPU: "soft"}, "soft/8", "soft/7"},
		{link.Config{GPU: "soft"}, "8", "soft/7"},
		{link.Config{GPU: "soft"}, "-1", "soft/7"},
		{link.Config{GPU: "soft"}, "GPU-1234", "soft/7"},
		{link.Config{GPU: "soft"}, "cuda", "their kind"},
		{link.Config{GPU: "soft:2"}, "1", "it has 2 GPUs"},
	} {
		cfg, line, err := otherGPU(t.Context(), c.cfg, &here, c.name)
		switch {
		case c.words != "":
			if err == nil || !strings.Contains(err.Error(), c.words) {
				t.Errorf("%s: %v, want %q", c.name, err, c.words)
			}
		case err != nil || line.UUID != one.UUID || cfg.GPU != "soft:2" || len(cfg.Devices) != 1 || cfg.Devices[0] != 1:
			t.Errorf("%s: %+v, %+v, %v", c.name, cfg, line, err)
		}
	}
}
