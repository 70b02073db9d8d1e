package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"

	"causeway/host/driver/cuda"
	"causeway/host/limit"
	"causeway/host/worker/link"
	"causeway/host/worker/spawn"
)

var errNoGPU = errors.New("this machine has no such GPU: `causeway gpus` lists what there is, --gpu soft is always there")

// errNoCUDA is errNoGPU where there is none at all.
var errNoCUDA = errors.New("this machine shows no NVIDIA GPU: check `nvidia-smi`, or use --gpu soft")

// isAuto: a real GPU if there is one.
func isAuto(gpu string) bool { return gpu == "auto" || gpu == "any" || gpu == "" }

// isOrdinals reports whether a --gpu is a list of numbers.
func isOrdinals(gpu string) bool {
	return gpu != "" && strings.Trim(gpu, "0123456789, ") == ""
}

// parseOrdinals reads 0 or 0,1.
func parseOrdinals(gpu string) (list []int, err error) {
	for s := range strings.SplitSeq(gpu, ",") {
		n, err := strconv.Atoi(strings.TrimSpace(s))
		if err != nil || n < 0 || slices.Contains(list, n) {
			return nil, fmt.Errorf("--gpu %q is no list of different GPU numbers: `causeway gpus` lists them", gpu)
		}
		list = append(list, n)
	}
	return list, nil
}

// named finds the GPU that a UUID, of a GPU or a MIG slice, or a part of a model's name means, and
// has cfg offer it.
func named(cfg *link.Config, gpu string, list []gpuLine) error {
	if strings.HasPrefix(gpu, "MIG-") {
		// The driver shows the slice alone, as its first device, to a process whose environment
		// names it.
		cfg.GPU, cfg.Devices, cfg.Visible = "cuda", []int{0}, []string{gpu}
		return nil
	}
	fits := func(g gpuLine) bool {
		return g.Backend == "cuda" && strings.Contains(strings.ToLower(g.Name), strings.ToLower(gpu))
	}
	if strings.HasPrefix(gpu, "GPU-") {
		fits = func(g gpuLine) bool { return len(gpu) > len("GPU-") && strings.HasPrefix(g.UUID, gpu) }
	}
	i := slices.IndexFunc(list, fits)
	if i < 0 {
		return fmt.Errorf("--gpu %q is not any, soft, soft:2, all, a list of GPU numbers, a UUID or a part of a name: %w", gpu, errNoGPU)
	}
	g := list[i]
	if cfg.GPU = g.Backend; g.Backend == "cuda" {
		cfg.Devices, cfg.Visible = []int{g.Index}, []string{g.UUID}
	}
	return nil
}

// sliceOf is the name of the MIG slice that cfg offers which says whose it is, as NVML knows it:
// workers get no other GPU's nodes then. "" where cfg offers none, or NVML does not tell. A driver
// shows a slice to nobody but those who name it, so it is asked for by name.
func sliceOf(ctx context.Context, cfg link.Config, ask func(ctx context.Context, visible []string) ([]gpuLine, error)) (string, error) {
	if len(cfg.Visible) == 0 || !strings.HasPrefix(cfg.Visible[0], "MIG-") {
		return "", nil
	}
	list, err := ask(ctx, cfg.Visible)
	if err != nil {
		return "", err
	}
	i := slices.IndexFunc(list, func(g gpuLine) bool { return g.Backend == "cuda" })
	if i < 0 {
		return "", errNoGPU
	}
	return list[i].Slice, nil
}

// choose settles which GPU the VM gets: any is one, auto and all are what is there.
func choose(cfg *link.Config, gpu string, list []gpuLine) (gpuLine, error) {
	for _, g := range list {
		wanted := cfg.GPU == "auto" || cfg.GPU == g.Backend || isSoft(cfg.GPU) && g.Backend == "soft"
		if wanted && g.Backend == "cuda" && len(cfg.Devices) > 0 {
			wanted = g.Index == cfg.Devices[0]
		}
		if !wanted {
			continue
		}
		if g.Backend == "soft" && len(cfg.Devices) == 1 {
			// One of several, of which the first is listed.
			return softLine(cfg.Devices[0])
		}
		if !isSoft(cfg.GPU) {
			cfg.GPU = g.Backend
		}
		if gpu == "any" && g.Backend == "cuda" {
			cfg.Devices, cfg.Visible = []int{g.Index}, []string{g.UUID}
		}
		if !slices.ContainsFunc(cfg.Devices, func(n int) bool {
			return !slices.ContainsFunc(list, func(o gpuLine) bool { return o.Backend == g.Backend && o.Index == n })
		}) {
			return g, nil
		}
	}
	return gpuLine{}, errNoGPU
}

// offered is how many GPUs a vGPU gets.
func offered(cfg link.Config, chosen gpuLine, list []gpuLine) int {
	if cfg.Devices != nil {
		return len(cfg.Devices)
	}
	if n, ok := softCount(cfg.GPU); ok {
		return n
	}
	n := 0
	for _, g := range list {
		if g.Backend == chosen.Backend {
			n++
		}
	}
	return n
}

// fits says what is wrong with a memory limit on the GPU that cfg means. Without a limit nobody is
// asked.
func fits(ctx context.Context, cfg link.Config, gpu string) error {
	if cfg.MemoryLimit == 0 {
		return nil
	}
	list, err := askGPUs(ctx, cfg.Visible)
	if err != nil {
		return err
	}
	chosen, err := choose(&cfg, gpu, list)
	if err != nil {
		return err
	}
	return chosen.limits(0).Fits(limit.Memory(cfg.MemoryLimit), offered(cfg, chosen, list))
}

// askGPUs lists this machine's GPUs. A child process asks the drivers, so that none is ever loaded
// here. visible, if not empty, is what it may see.
func askGPUs(ctx context.Context, visible []string) ([]gpuLine, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "/proc/self/exe", "gpus", "--json", "--local")
	cmd.Stderr = os.Stderr
	cmd.Env = envFor(visible)
	b, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("ask for this machine's GPUs: %w", err)
	}
	var list []gpuLine
	if err := json.Unmarshal(b, &list); err != nil {
		return nil, fmt.Errorf("ask for this machine's GPUs: %w", err)
	}
	return list, nil
}

// visibleEnv restricts what a driver shows (CUDA programming guide, environment variables).
const visibleEnv = "CUDA_VISIBLE_DEVICES"

// envFor is the environment of a child that reads the drivers.
func envFor(visible []string) []string {
	env := spawn.HostEnv()
	if len(visible) > 0 && strings.HasPrefix(visible[0], "MIG-") {
		env = append(env, visibleEnv+"="+strings.Join(visible, ","))
	}
	return env
}

// present says what is wrong if there is no real GPU.
func present(gpu string) error {
	if !cuda.Present() {
		return fmt.Errorf("--gpu %s: %w", gpu, errNoCUDA)
	}
	return nil
}
