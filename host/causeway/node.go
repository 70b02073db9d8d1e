package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"causeway/host/api"
	"causeway/host/report"
)

// answerLimit bounds one question to causewayd or to a device process: a stuck one must not hold
// the others' account back.
const answerLimit = 3 * time.Second

// runDirVar names the environment variable for --run-dir.
const runDirVar = "CAUSEWAY_RUN_DIR"

// nodeFlags say which node's processes a command asks, and how it prints.
type nodeFlags struct {
	run  string
	json bool
}

func (f *nodeFlags) register(c *cobra.Command) {
	f.registerRun(c)
	c.Flags().BoolVar(&f.json, "json", false, "print JSON")
}

func (f *nodeFlags) registerRun(c *cobra.Command) {
	c.Flags().StringVar(&f.run, "run-dir", runDir(), "`FOLDER` of causewayd's and the vGPUs' sockets, also $"+runDirVar)
}

// runDir is where a node's sockets are unless a flag says otherwise.
func runDir() string { return cmp.Or(os.Getenv(runDirVar), api.RunDir) }

func (f *nodeFlags) client() *api.Client { return api.NewDaemonClient(f.run) }

// read asks causewayd, or the device processes if there is none.
func (f *nodeFlags) read(ctx context.Context) (*report.Reading, error) {
	c := f.client()
	defer c.Close()
	r, err := readDaemon(ctx, c)
	if errors.Is(err, api.ErrNotRunning) {
		r, err = readDevices(ctx, f.run), nil
	}
	if err != nil {
		return nil, err
	}
	r.Time = time.Now()
	r.Sort()
	return r, nil
}

func readDaemon(ctx context.Context, c *api.Client) (*report.Reading, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*answerLimit)
	defer cancel()
	var r report.Reading
	v, err := c.Version(ctx)
	if err != nil {
		return nil, err
	}
	r.Daemon = &v
	if r.GPUs, err = c.GPUs(ctx); err != nil {
		return nil, err
	}
	r.VGPUs, err = c.VGPUs(ctx)
	return &r, err
}

// readDevices asks each device process whose control socket is below the run directory.
func readDevices(ctx context.Context, run string) *report.Reading {
	var r report.Reading
	// The pattern is well formed unless run is not: then nothing is found.
	found, _ := filepath.Glob(filepath.Join(run, "*", "*.ctl"))
	vgpus := make([]api.VGPU, len(found))
	errs := make([]error, len(found))
	var all sync.WaitGroup
	for i, socket := range found {
		all.Go(func() { vgpus[i], errs[i] = readDevice(ctx, socket) })
	}
	all.Wait()
	for i, v := range vgpus {
		r.VGPUs = append(r.VGPUs, v)
		if errs[i] != nil && v.State != api.Lost {
			r.Notes = append(r.Notes, fmt.Sprintf("%s does not answer: %v", v.Spec.Key(), errs[i]))
		}
		addGPU(&r, v.Status)
	}
	return &r
}

func readDevice(ctx context.Context, socket string) (api.VGPU, error) {
	ctx, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()
	v := api.VGPU{Control: socket, Socket: strings.TrimSuffix(socket, ".ctl") + ".sock", State: api.Waiting}
	v.Spec.VM, v.Spec.Name = filepath.Base(filepath.Dir(socket)), strings.TrimSuffix(filepath.Base(socket), ".ctl")
	c := api.NewClient(socket)
	defer c.Close()
	s, err := c.Status(ctx)
	if err != nil {
		if errors.Is(err, api.ErrNotRunning) {
			v.State, v.Why = api.Lost, "nobody serves "+socket
		}
		return v, err
	}
	v.Status, v.PID, v.Started, v.GPU, v.Spec.Limits, v.Spec.GPU = &s, s.PID, s.Started, s.UUID, s.Limits, s.UUID
	if s.Connected {
		v.State = api.Connected
	}
	return v, nil
}

// addGPU has a reading without causewayd know the GPUs that its vGPUs use.
func addGPU(r *report.Reading, s *api.Status) {
	if s == nil || s.UUID == "" {
		return
	}
	i := slices.IndexFunc(r.GPUs, func(g api.GPU) bool { return g.ID == s.UUID })
	if i < 0 {
		i = len(r.GPUs)
		r.GPUs = append(r.GPUs, api.GPU{ID: s.UUID, Index: -1, Name: s.GPU, Utilization: -1, NUMA: -1})
	}
	r.GPUs[i].Used += s.Memory
	r.GPUs[i].Promised += s.Limits.Memory
}

// one reads the vGPUs that a command's argument names: at least one.
func (f *nodeFlags) find(ctx context.Context, key string) (*report.Reading, []api.VGPU, error) {
	r, err := f.read(ctx)
	if err != nil {
		return nil, nil, err
	}
	found := r.Find(key)
	if len(found) == 0 {
		return nil, nil, noVGPU(key)
	}
	return r, found, nil
}

func noVGPU(key string) error {
	return &api.Error{Status: 404, Text: "no vGPU " + key, Remedy: "`causeway ps` lists them"}
}

// findOne is find for commands that take exactly one vGPU.
func (f *nodeFlags) findOne(ctx context.Context, key string) (*report.Reading, *api.VGPU, error) {
	r, found, err := f.find(ctx, key)
	if err != nil {
		return nil, nil, err
	}
	if len(found) > 1 {
		var keys []string
		for _, v := range found {
			keys = append(keys, v.Spec.Key())
		}
		return nil, nil, fmt.Errorf("%s has several vGPUs: say which: %s", key, strings.Join(keys, ", "))
	}
	return r, &found[0], nil
}

// printJSON writes what people may pipe on, indented.
func printJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(v)
}
