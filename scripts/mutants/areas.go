package main

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
)

// area is files whose state machines belong together.
type area struct {
	name     string
	patterns []string
	tests    []string // of C: the folders, below guest/libcuda, of the tests that are run
}

// goAreas and cAreas are what mutants are drawn from.
var (
	goAreas = []area{
		{name: "lending", patterns: []string{"host/device/loan.go", "host/device/extent.go", "host/worker/virtiofs.go", "host/daemon/leases.go", "host/daemon/heirs.go", "host/daemon/upstream.go", "host/daemon/serverclient.go"}},
		{name: "parking", patterns: []string{"host/worker/park.go", "host/device/park.go", "remote/relay/park.go", "host/worker/room.go", "host/device/room.go", "host/device/suspend.go"}},
		{name: "rebuild", patterns: []string{"host/worker/rebuild.go", "host/worker/record*.go", "host/worker/snapshot.go", "host/worker/rehearsal.go", "host/worker/blob*.go"}},
		{name: "gates", patterns: []string{"host/worker/gate.go", "host/worker/reply.go", "host/schedule/gate/*.go", "host/schedule/policy/*.go", "host/schedule/memory/*.go"}},
		{name: "queues", patterns: []string{"virtio/*.go", "vhostuser/vring.go", "vhostuser/devicestate.go", "vhostuser/dirtylog.go"}},
		{name: "rings", patterns: []string{"remote/shm/*.go", "remote/tcp/ring.go", "remote/tcp/memory.go", "host/worker/loop.go"}},
		{name: "daemon", patterns: []string{"host/daemon/room.go", "host/daemon/vgpus.go", "host/daemon/record.go", "host/daemon/ensure.go", "host/daemon/limits.go", "host/daemon/scan.go", "host/daemon/swap/*.go"}},
		{name: "streams", patterns: []string{"remote/resume/*.go", "remote/relay/*.go", "remote/tcp/wide.go"}},
	}
	cAreas = []area{
		{"session", []string{"guest/libcuda/session/*.c"}, []string{"session/tests", "session/tests/alone"}},
		{"managed", []string{"guest/libcuda/memory/resident.c", "guest/libcuda/memory/touch.c"}, []string{"memory/tests/alone"}},
	}
)

// files are an area's, sorted, without tests and what is generated.
func (a area) files() ([]string, error) {
	var list []string
	for _, p := range a.patterns {
		found, err := filepath.Glob(filepath.FromSlash(p))
		if err != nil {
			return nil, err
		}
		if len(found) == 0 {
			return nil, fmt.Errorf("%s: no file %s: run it at the repository's root", a.name, p)
		}
		for _, f := range found {
			if !strings.HasSuffix(f, "_test.go") && !strings.HasSuffix(f, "doc.go") && !strings.Contains(f, "_gen.") {
				list = append(list, f)
			}
		}
	}
	slices.Sort(list)
	return slices.Compact(list), nil
}
