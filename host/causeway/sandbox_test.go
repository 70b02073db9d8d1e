package main

import (
	"slices"
	"testing"

	"causeway/host/worker/link"
)

// TestNodesOfWorkers: workers get the nodes of the GPU that a vGPU has, whether or not it moves; a
// user's own programs that may move get all of the user's, and those on a slice the slice's.
func TestNodesOfWorkers(t *testing.T) {
	const gpu, slice, of = "GPU-1", "MIG-2", "MIG-GPU-1/3/0"
	for what, c := range map[string]struct {
		f    sandboxFlag
		cfg  link.Config
		want []string
	}{
		"a vGPU":            {sandboxFlag{}, link.Config{Visible: []string{gpu}}, []string{gpu}},
		"one that may move": {sandboxFlag{}, link.Config{Visible: []string{gpu}, Migratable: true}, []string{gpu}},
		"one that may move, where GPUs are linked": {sandboxFlag{linked: true}, link.Config{Visible: []string{gpu}, Migratable: true}, nil},
		"one that stays there":                     {sandboxFlag{linked: true}, link.Config{Visible: []string{gpu}}, []string{gpu}},
		"a user's program":                         {sandboxFlag{own: true}, link.Config{Visible: []string{gpu}}, []string{gpu}},
		"one of a user that may move":              {sandboxFlag{own: true}, link.Config{Visible: []string{gpu}, Migratable: true}, nil},
		"that on a slice":                          {sandboxFlag{own: true}, link.Config{Visible: []string{slice}, Migratable: true}, []string{slice}},
		"that on a slice whose GPU we know":        {sandboxFlag{own: true, slice: of}, link.Config{Visible: []string{slice}, Migratable: true}, []string{of}},
	} {
		if got := c.f.shown(c.cfg); !slices.Equal(got, c.want) || (got == nil) != (c.want == nil) {
			t.Errorf("%s: the nodes of %v, want %v", what, got, c.want)
		}
	}
}
