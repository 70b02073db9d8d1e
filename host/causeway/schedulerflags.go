package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/spf13/cobra"

	"causeway/host/api"
	"causeway/host/limit"
	"causeway/host/schedule"
	"causeway/host/worker/link"
)

// schedulerFlags say which part of a GPU's time the programs of one run get. Without any there is
// no limit, and nothing is measured.
type schedulerFlags struct {
	scheduler, key string
	share          *limit.Share
	cap            *limit.Cap
}

func (f *schedulerFlags) register(c *cobra.Command) {
	c.Flags().StringVar(&f.scheduler, "scheduler", "", "socket of causeway scheduler, which shares GPU time (default: none)")
	c.Flags().StringVar(&f.key, "vm", "", "the scheduler's name for this run (default: run/PID)")
	shareFlag(c, &f.share, "; wants --scheduler")
	capFlag(c, &f.cap, "")
}

// limits are those named.
func (f *schedulerFlags) limits() api.Limits {
	return (&api.Change{Share: f.share, Cap: f.cap}).On(api.Limits{Share: limit.DefaultShare})
}

// join has the flags hold at a scheduler, nil if they ask for nothing. The GPU in cfg is settled
// then.
func (f *schedulerFlags) join(ctx context.Context, cfg *link.Config, gpu string, log *slog.Logger) (*schedule.Membership, error) {
	l := f.limits()
	if f.scheduler == "" && l.Cap == 0 {
		return nil, unshared(l)
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
	return joinScheduler(ctx, f.scheduler, f.key, chosen, l, log)
}

// unshared says what is wrong with a share where nobody shares.
func unshared(l api.Limits) error {
	if l.Share == limit.DefaultShare {
		return nil
	}
	return fmt.Errorf("--share %d would not hold: it is relative to others', and no scheduler is named: add --scheduler SOCKET (`causeway scheduler` runs one), or leave it out", l.Share)
}

// schedulerPatience is how long limits wait for a scheduler whose socket is there and who does not
// answer: causewayd starts another for one that ended.
const schedulerPatience = 5 * time.Second

// joinScheduler joins a scheduler; without one, a cap is held by a scheduler in this process.
// Limits that would not hold are an error; without such, a scheduler that is not there yet is
// waited for while programs run.
func joinScheduler(ctx context.Context, scheduler, key string, gpu gpuLine, l api.Limits, log *slog.Logger) (*schedule.Membership, error) {
	who := schedule.Member{GPU: gpu.UUID, Key: key, Weight: l.Share, Cap: l.Cap, Soft: gpu.Backend == "soft"}
	switch {
	case scheduler != "":
		s := schedule.Join(scheduler, who, log)
		switch named := l.Cap != 0 || l.Share != limit.DefaultShare; {
		case s.Connected(), named && comesBack(ctx, s, scheduler):
		case named:
			s.Close()
			return nil, fmt.Errorf("share %d and cap %v would not hold: no scheduler answers at %s: start it (`causeway scheduler --socket %[3]s`), or leave --share and --cap out", l.Share, limit.Cap(l.Cap), scheduler)
		default:
			log.Warn("no scheduler: the GPU's time is not shared until there is one", "socket", scheduler)
		}
		return s, nil
	case l.Share != limit.DefaultShare:
		return nil, unshared(l)
	case l.Cap > 0:
		return schedule.Alone(who, log), nil
	}
	return nil, nil
}

// comesBack waits for a scheduler that was there, and reports whether it, or the next, is.
func comesBack(ctx context.Context, s *schedule.Membership, socket string) bool {
	if _, err := os.Stat(socket); err != nil {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, schedulerPatience)
	defer cancel()
	return s.Await(ctx)
}
