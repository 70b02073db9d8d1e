package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"causeway/host/api"
	"causeway/host/device"
	"causeway/host/worker/link"
	"causeway/host/worker/spawn"
)

func moveCommand() *cobra.Command {
	var node nodeFlags
	var wish api.Relocation
	var pid int
	c := &cobra.Command{
		Use:   "move VM[/NAME] {--gpu GPU | --remote NAME}",
		Short: "Move a VM's CUDA programs to another GPU of this host, or to another GPU server, while they run",
		Long: `Moves a vGPU to another GPU of this host. The VM stays where it is and runs on; its CUDA programs keep their memory, at the same addresses, and
their objects, and see a pause: memory is copied in rounds while they run, and what they have written since once more while they stand. Limits go along, and
programs that the VM starts from now on use the other GPU. If anything is in the way the vGPU stays where it is, and the error says what.

It can be moved if
  - the other GPU is of the same model, with the same driver, and is whole: no MIG slice. With --other-model it may be another one, for programs whose
    code is there as PTX, which the driver compiles again: what has machine code alone is named;
  - there is room for the vGPU's limit of memory, and for what its programs use;
  - every program can: "causeway inspect" says at any time which cannot, and why. On a real GPU sessions move only with "migratable", see
    docs/MIGRATION.md.

With --remote a vGPU whose GPU is on a GPU server (causeway create --remote) goes to another server, with all of its programs or, if anything is in the
way, none. First each is rehearsed there: what it is made of is made once, and one of which something would come out another is named. What they have at the
GPU goes from server to server by this host: memory ahead, in rounds while they run, and what they have written since while they stand. With --throttle programs are held back that change memory as fast as it goes. It can go if
  - the other server is among those of this host ("causeway gpus --all"), has room for the vGPU's limits, and a GPU of the same model, with the same
    driver. On a real GPU sessions go only if the lease is migratable ("causeway create --remote NAME --migratable"; else by the server's configuration);
  - no VM with such programs is being migrated, and each of them can: none is stopped, none an RDMA end itself, or started by "causeway run --remote".

What a program asked its GPU before, as its UUID or bus address, it does not ask again; it sees the old ones until it ends.`,
		Example: `  causeway gpus                        # numbers and room
  causeway move vm1 --gpu 1
  causeway move vm1/gpu0 --gpu GPU-5d3f
  causeway move vm1 --gpu soft/1       # from one software GPU to another
  causeway move vm1 --remote gpu2      # from one GPU server to another
  causeway move --pid 4711 --gpu 1     # a program under "causeway run"`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case pid != 0 && len(args) > 0, pid == 0 && len(args) == 0:
				return errors.New("name a VM, or with --pid the process of a `causeway run`")
			case wish.Throttle && wish.Remote == "":
				return errors.New("--throttle is for --remote: on their way to a GPU of this host programs are not held back")
			case pid != 0 && wish.Remote != "":
				return errors.New("--remote moves a VM's programs: those of a `causeway run` stay at their GPU server")
			case pid != 0:
				text, err := askRun(pid, "move "+wish.GPU)
				if err == nil {
					_, err = fmt.Fprintln(cmd.OutOrStdout(), text)
				}
				return err
			}
			return node.move(cmd, args[0], wish)
		},
		ValidArgsFunction: node.complete,
	}
	node.register(c)
	c.Flags().StringVar(&wish.GPU, "gpu", "", "`GPU` to move to: a number as `causeway gpus` shows it, a UUID or the beginning of one, or soft/1 for the second software GPU")
	c.Flags().BoolVar(&wish.OtherModel, "other-model", false, "permit another model of GPU, for programs whose code is there as PTX")
	c.Flags().IntVar(&pid, "pid", 0, "move the sessions of a causeway run by its process id, `PID`")
	c.Flags().StringVar(&wish.Remote, "remote", "", "GPU server to move to, `NAME` as `causeway gpus --all` shows it")
	c.Flags().BoolVar(&wish.Throttle, "throttle", false, "with --remote: hold programs back that change GPU memory as fast as it is sent, 20 % of the time and then more, until they have moved or stay")
	c.MarkFlagsOneRequired("gpu", "remote")
	c.MarkFlagsMutuallyExclusive("gpu", "remote")
	_ = c.RegisterFlagCompletionFunc("gpu", node.completeGPUFlag)
	return c
}

// move has one vGPU moved, by causewayd if it runs, else by its device process.
func (f *nodeFlags) move(cmd *cobra.Command, key string, wish api.Relocation) error {
	r, v, err := f.findOne(cmd.Context(), key)
	if err != nil {
		return err
	}
	if wish.Remote != "" && r.Daemon == nil {
		return errors.New("causewayd does not run, which asks GPU servers for leases: start it")
	}
	ctx, cancel := context.WithCancel(cmd.Context())
	defer cancel()
	shown := make(chan struct{})
	go func() {
		defer close(shown)
		f.showMove(ctx, cmd, v)
	}()
	var did api.Relocated
	if r.Daemon != nil {
		c := f.client()
		defer c.Close()
		did, err = c.Move(cmd.Context(), v.Spec.VM, v.Spec.Name, wish)
	} else {
		c := api.NewDeviceClient(v.Control)
		defer c.Close()
		err = c.Do(cmd.Context(), http.MethodPost, "/v1/move", wish, &did)
	}
	cancel()
	<-shown
	if err != nil {
		return fmt.Errorf("%s stays where it is: %w", v.Spec.Key(), err)
	}
	if f.json {
		return printJSON(cmd.OutOrStdout(), did)
	}
	where := did.GPU + " (" + did.UUID + ")"
	if wish.Remote != "" {
		where = "the GPU server " + wish.Remote
	}
	if _, err = fmt.Fprintf(cmd.OutOrStdout(), "%s is on %s now: %d programs moved in %v%s\n", v.Spec.Key(), where, did.Sessions, time.Duration(did.Nanos).Round(time.Millisecond), stoodOf(&did)); err != nil {
		return err
	}
	if did.Lost > 0 {
		return fmt.Errorf("%d programs of %s were lost on the way: `causeway logs %s` says why", did.Lost, v.Spec.Key(), v.Spec.Key())
	}
	return nil
}

// stoodOf says what went ahead of a move to another GPU server, and how long programs stood.
func stoodOf(did *api.Relocated) string {
	if did.Stood == 0 || did.Sessions == 0 {
		return ""
	}
	ahead := ""
	if did.Rounds > 0 {
		ahead = fmt.Sprintf(", %s having gone ahead (rounds: %d)", size(did.Ahead), did.Rounds)
	}
	if did.Held > 0 {
		ahead += fmt.Sprintf(" while they were held back for up to %d %% of the time", did.Held)
	}
	return fmt.Sprintf(", of which they stood for %v at most%s", time.Duration(did.Stood).Round(time.Millisecond), ahead)
}

// moveLook is how often a move's progress is looked at.
const moveLook = 500 * time.Millisecond

// showMove says how far a move is until ctx ends, to people alone.
func (f *nodeFlags) showMove(ctx context.Context, cmd *cobra.Command, v *api.VGPU) {
	c := api.NewDeviceClient(v.Control)
	defer c.Close()
	said := api.Progress{}
	for t := time.NewTicker(moveLook); ; {
		select {
		case <-ctx.Done():
			t.Stop()
			return
		case <-t.C:
		}
		st, err := c.Status(ctx)
		if err != nil || st.Relocation == nil || *st.Relocation == said || f.json {
			continue
		}
		before := said
		said = *st.Relocation
		fmt.Fprintln(cmd.ErrOrStderr(), movedSoFar(v.Spec.Key(), before, said))
	}
}

// movedSoFar is how far a move is, behind what was said of it before.
func movedSoFar(key string, before, p api.Progress) string {
	if r := p.Last; p.Rounds > before.Rounds {
		rate, held := "", ""
		if s := r.Took.Seconds(); s > 0 {
			rate = fmt.Sprintf(" (%s/s)", size(uint64(float64(r.Sent)/s)))
		}
		if p.Throttled > 0 {
			held = fmt.Sprintf("; its programs' GPU work is held back for %d %% of the time", p.Throttled)
		}
		return fmt.Sprintf("%s: round %d: %s changed of %s, in %.2f s%s%s", key, p.Rounds, size(r.Sent), size(r.Looked), r.Took.Seconds(), rate, held)
	}
	if p.Rehearsing {
		return fmt.Sprintf("%s: rehearsing: %d of %d programs have been made at the other GPU server", key, p.Done, p.Of)
	}
	return fmt.Sprintf("%s: %d of %d programs are taken care of", key, p.Done, p.Of)
}

// relocate moves the sessions of a run to another GPU. With an error those that had moved are back,
// or the error says that they are not.
func (s *server) relocate(ctx context.Context, gpu string) (string, error) {
	list, err := askGPUs(ctx, s.cfg.Visible)
	if err != nil {
		return "", err
	}
	s.mu.Lock()
	was := s.cfg
	s.mu.Unlock()
	from := was
	here, err := choose(&from, cmp.Or(s.gpu, "auto"), list)
	if err != nil {
		return "", err
	}
	to, line, err := otherGPU(ctx, from, &here, gpu)
	if err != nil {
		return "", err
	}
	if err := judgeMove(&here, &line, false); err != nil {
		return "", err
	}
	if s.membership != nil {
		return "", fmt.Errorf("%w: its GPU time is limited, by a scheduler of the GPU that it is on", device.ErrElsewhere)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cfg = to
	n, err := s.moveLocked(ctx, to)
	if err == nil {
		s.pool.Close() // its spares are on the other GPU
		return fmt.Sprintf("%d sessions moved to GPU %s (%s)", n, line.number(), line.UUID), nil
	}
	s.cfg = was
	if _, back := s.moveLocked(ctx, was); back != nil {
		err = fmt.Errorf("%w; and not all came back: %w", err, back)
	}
	return "", err
}

// moveLocked has every session that is not there already go on with a fresh worker on the GPU of a
// configuration.
func (s *server) moveLocked(ctx context.Context, to link.Config) (int, error) {
	n := 0
	for p, cfg := range maps.Clone(s.workers) {
		if sameGPU(cfg, to) {
			continue
		}
		cfg.GPU, cfg.Devices, cfg.Visible, cfg.Elsewhere = to.GPU, to.Devices, to.Visible, true
		if err := s.rebuildOneLocked(ctx, p, cfg); err != nil {
			return n, fmt.Errorf("worker %d: %w", p.PID(), err)
		}
		n++
	}
	return n, nil
}

func sameGPU(a, b link.Config) bool {
	return a.GPU == b.GPU && slices.Equal(a.Devices, b.Devices) && slices.Equal(a.Visible, b.Visible)
}

// rebuildOneLocked moves a session to a fresh worker.
func (s *server) rebuildOneLocked(ctx context.Context, p *spawn.Process, cfg link.Config) error {
	next, err := s.spawner.Rebuild(ctx, p, cfg)
	if err != nil {
		return err
	}
	scheduled := s.scheduled[p]
	delete(s.workers, p) // it is about to end, and has nothing to move any more
	delete(s.scheduled, p)
	cfg.Elsewhere = false // next time it may stay
	s.addLocked(next, cfg, scheduled)
	return nil
}
