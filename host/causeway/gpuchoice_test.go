package main

import (
	"context"
	"errors"
	"slices"
	"testing"

	"causeway/host/worker/link"
)

// gpuList is a machine with two kinds of GPU and the software one.
var gpuList = []gpuLine{
	{Backend: "cuda", Index: 0, Name: "NVIDIA L4", UUID: "GPU-11111111-0000-0000-0000-000000000000", Memory: 24 << 30},
	{Backend: "cuda", Index: 1, Name: "NVIDIA H200", UUID: "GPU-22222222-0000-0000-0000-000000000000", Memory: 141 << 30},
	{Backend: "soft", Name: "Causeway Software GPU", UUID: "GPU-33333333-0000-0000-0000-000000000000", Memory: 4 << 30},
}

func TestNamed(t *testing.T) {
	for name, want := range map[string]link.Config{
		"H200":         {GPU: "cuda", Devices: []int{1}, Visible: []string{gpuList[1].UUID}},
		"nvidia l4":    {GPU: "cuda", Devices: []int{0}, Visible: []string{gpuList[0].UUID}},
		"GPU-2222":     {GPU: "cuda", Devices: []int{1}, Visible: []string{gpuList[1].UUID}},
		"GPU-33333333": {GPU: "soft"},
		"MIG-abc":      {GPU: "cuda", Devices: []int{0}, Visible: []string{"MIG-abc"}},
	} {
		var c link.Config
		if err := named(&c, name, gpuList); err != nil || c.GPU != want.GPU || !slices.Equal(c.Devices, want.Devices) || !slices.Equal(c.Visible, want.Visible) {
			t.Errorf("%s: %+v, %v", name, c, err)
		}
	}
	for _, name := range []string{"A100", "GPU-", "GPU-9", "fast", "Software"} {
		if err := named(&link.Config{}, name, gpuList); !errors.Is(err, errNoGPU) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestSliceOf: whose a MIG slice is, is asked of a driver that sees it, by its name; of other GPUs
// nobody is asked.
func TestSliceOf(t *testing.T) {
	const name = "MIG-GPU-1/7/0"
	asked := 0
	ask := func(_ context.Context, visible []string) ([]gpuLine, error) {
		asked++
		if !slices.Equal(visible, []string{"MIG-abc"}) {
			t.Errorf("asked with %v visible", visible)
		}
		return []gpuLine{{Backend: "soft"}, {Backend: "cuda", Slice: name}}, nil
	}
	for _, visible := range [][]string{nil, {"GPU-1"}} {
		if got, err := sliceOf(t.Context(), link.Config{GPU: "cuda", Visible: visible}, ask); got != "" || err != nil || asked != 0 {
			t.Errorf("of %v: %q, %v", visible, got, err)
		}
	}
	slice := link.Config{GPU: "cuda", Visible: []string{"MIG-abc"}}
	if got, err := sliceOf(t.Context(), slice, ask); got != name || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	none := func(context.Context, []string) ([]gpuLine, error) { return []gpuLine{{Backend: "soft"}}, nil }
	if _, err := sliceOf(t.Context(), slice, none); !errors.Is(err, errNoGPU) {
		t.Errorf("a slice that no driver shows: %v", err)
	}
}

func TestChoose(t *testing.T) {
	soft := gpuList[2:]
	for _, c := range []struct {
		gpu     string
		cfg     link.Config
		list    []gpuLine
		want    string // backend that workers are told
		devices []int
		n       int // GPUs that the vGPU gets
	}{
		{"auto", link.Config{GPU: "auto"}, gpuList, "cuda", nil, 2},
		{"any", link.Config{GPU: "auto"}, gpuList, "cuda", []int{0}, 1},
		{"any", link.Config{GPU: "auto"}, soft, "soft", nil, 1},
		{"soft", link.Config{GPU: "soft"}, gpuList, "soft", nil, 1},
		{"soft:3", link.Config{GPU: "soft:3"}, gpuList, "soft:3", nil, 3},
		{"1", link.Config{GPU: "cuda", Devices: []int{1}}, gpuList, "cuda", []int{1}, 1},
		{"0,1", link.Config{GPU: "cuda", Devices: []int{0, 1}}, gpuList, "cuda", []int{0, 1}, 2},
		{"0,5", link.Config{GPU: "cuda", Devices: []int{0, 5}}, gpuList, "", nil, 0},
		{"7", link.Config{GPU: "cuda", Devices: []int{7}}, gpuList, "", nil, 0},
		{"0", link.Config{GPU: "cuda", Devices: []int{0}}, soft, "", nil, 0},
	} {
		cfg := c.cfg
		g, err := choose(&cfg, c.gpu, c.list)
		if c.want == "" {
			if !errors.Is(err, errNoGPU) {
				t.Errorf("%s: %+v, %v", c.gpu, cfg, err)
			}
			continue
		}
		if err != nil || cfg.GPU != c.want || !slices.Equal(cfg.Devices, c.devices) || offered(cfg, g, c.list) != c.n {
			t.Errorf("%s: %+v, %d GPUs, %v", c.gpu, cfg, offered(cfg, g, c.list), err)
		}
	}
}
