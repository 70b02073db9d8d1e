package main

import (
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"

	"causeway/host/driver"
	"causeway/host/driver/cuda"
	"causeway/host/driver/soft"
)

// findBackend returns a backend by name: "soft", "cuda", or "auto" for a real GPU if this machine
// has one, else the software GPU. This file is the one place that knows which backends this program
// is built with.
func findBackend(name string) (driver.Backend, error) {
	if n, ok := softCount(name); ok {
		return soft.NewMany(n), nil
	}
	switch name {
	case "soft":
		return newSoft()
	case "cuda":
		return openCUDA()
	case "auto":
		real, err := openCUDA()
		if err == nil {
			return real, nil
		}
		slog.Info("no real GPU: using the software GPU", "reason", err)
		return newSoft()
	}
	return nil, fmt.Errorf("unknown GPU %q: use auto, soft or GPU numbers", name)
}

// openCUDA loads the machine's driver without starting it: a worker starts it with its guest's
// environment, which the driver reads only once.
func openCUDA() (driver.Backend, error) {
	b, err := cuda.New()
	if err != nil {
		return nil, err
	}
	if !cuda.Present() {
		return nil, errors.New("libcuda.so.1 is installed but this machine shows no NVIDIA GPU: check `nvidia-smi`, or use --gpu soft")
	}
	return b, nil
}

// newCUDA starts the machine's driver in this process; it fails if there is none or if it has no
// device.
func newCUDA() (driver.Backend, error) {
	b, err := openCUDA()
	if err != nil {
		return nil, err
	}
	devs, err := b.Devices()
	if err != nil {
		return nil, fmt.Errorf("the NVIDIA driver offers no GPU (%w)", err)
	}
	if len(devs) == 0 {
		return nil, errors.New("the NVIDIA driver offers no GPU: check `nvidia-smi`, or use --gpu soft")
	}
	return b, nil
}

// isSoft reports whether a GPU by this name is a software GPU.
func isSoft(name string) bool {
	_, several := softCount(name)
	return several || name == "soft"
}

// maxSoft is how many software GPUs a host has at most.
const maxSoft = soft.MaxDevices

// softOrdinal reads soft/N, which means the software GPU of that number.
func softOrdinal(name string) (int, bool) {
	rest, ok := strings.CutPrefix(name, "soft/")
	if !ok {
		return 0, name == "soft"
	}
	n, err := strconv.Atoi(rest)
	return n, err == nil && n >= 0 && n < maxSoft
}

// softCount reads soft:N, which means N software GPUs.
func softCount(name string) (int, bool) {
	rest, ok := strings.CutPrefix(name, "soft:")
	if !ok {
		return 0, false
	}
	n, err := strconv.Atoi(rest)
	return n, err == nil && n >= 1 && n <= soft.MaxDevices
}

func newSoft() (driver.Backend, error) { return soft.New(), nil }
