package main

import (
	"fmt"
	"log/slog"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"causeway/host/driver/cuda"
	"causeway/host/sandbox"
	"causeway/host/worker/link"
	"causeway/host/worker/spawn"
)

// sandboxFlag says how workers are confined.
type sandboxFlag struct{ mode string }

func (f *sandboxFlag) register(c *cobra.Command) {
	c.Flags().StringVar(&f.mode, "sandbox", string(sandbox.On), "confine workers: on (as far as this host can), strict (all of it, or refuse to start), audit (say what strict would deny), off")
}

// space is what workers with a configuration start in. Close it when no more are to start.
func (f *sandboxFlag) space(cfg link.Config, log *slog.Logger) (*sandbox.Space, error) {
	mode, err := sandbox.ParseMode(f.mode)
	if err != nil {
		return nil, fmt.Errorf("--sandbox: %w", err)
	}
	real := !isSoft(cfg.GPU) && cuda.Present()
	p := sandbox.NewPolicy(mode, real, cfg.Visible, spawn.HostEnv())
	return sandbox.New(p, log)
}

// enterSandbox confines this process, a worker, as its parent asks.
func enterSandbox(log *slog.Logger) (*sandbox.Policy, error) {
	p, err := sandbox.FromEnv()
	if err != nil || p == nil {
		return nil, err
	}
	r, err := sandbox.Enter(p, log)
	if err != nil {
		return nil, err
	}
	if p.Mode != sandbox.Off {
		log.Debug("sandbox", "pid", os.Getpid(), "has", strings.Join(r.Has, ", "), "lacks", strings.Join(r.Lacks, "; "))
	}
	return p, nil
}
