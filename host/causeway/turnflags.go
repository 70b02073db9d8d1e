package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"

	"github.com/spf13/cobra"

	"causeway/host/daemon/api"
	"causeway/host/schedule"
	"causeway/host/worker/link"
)

// turnFlags say which part of a GPU's time the programs of one run get. Without any there is no limit, and nothing is measured.
type turnFlags struct {
	scheduler, key string
	weight, cap    uint32
}

func (f *turnFlags) register(c *cobra.Command) {
	c.Flags().StringVar(&f.scheduler, "scheduler", "", "socket of causeway scheduler, which shares GPU time (default: none)")
	c.Flags().StringVar(&f.key, "vm", "", "the scheduler's name for this run (default: run/PID)")
	c.Flags().Uint32Var(&f.weight, "weight", api.DefaultWeight, "share of GPU time when several want it, relative to others'")
	c.Flags().Uint32Var(&f.cap, "cap", 0, "most per cent of GPU time; 0: no cap")
}

// seat takes a seat for the flags, nil if they ask for nothing. The GPU in cfg is settled then.
func (f *turnFlags) seat(ctx context.Context, cfg *link.Config, gpu string, log *slog.Logger) (*schedule.Seat, error) {
	if l := (api.Limits{Weight: f.weight, Cap: f.cap}); l.Check() != nil {
		return nil, l.Check()
	}
	if f.scheduler == "" && f.cap == 0 {
		return nil, nil
	}
	list, err := askGPUs(ctx, cfg.Visible)
	if err != nil {
		return nil, err
	}
	chosen, err := choose(cfg, gpu, list)
	if err != nil {
		return nil, err
	}
	if f.key == "" {
		f.key = fmt.Sprintf("run/%d", os.Getpid())
	}
	return takeSeat(f.scheduler, schedule.Membership{GPU: chosen.UUID, Key: f.key, Weight: f.weight, Cap: f.cap, Soft: chosen.Backend == "soft"}, log), nil
}

// takeSeat joins a scheduler; without one, a cap is held by a scheduler in this process.
func takeSeat(scheduler string, who schedule.Membership, log *slog.Logger) *schedule.Seat {
	switch {
	case scheduler != "":
		return schedule.Join(scheduler, who, log)
	case who.Cap > 0:
		return schedule.Alone(who, log)
	}
	return nil
}
