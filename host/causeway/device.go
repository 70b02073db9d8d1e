package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"causeway/host/api"
	"causeway/host/daemon/process"
	"causeway/host/device"
	"causeway/host/driver"
	"causeway/host/limit"
	"causeway/host/report"
	"causeway/host/sandbox"
	"causeway/host/worker/link"
	"causeway/host/worker/spawn"
)

// deviceFlags are what a device is besides its GPU.
type deviceFlags struct {
	gpu                        gpuFlags
	socket, control, lib       string
	vm, name, owner, scheduler string
	profile, suspendTo         string
	lease, relay               string
	swap, programs, held       bool
	share                      *limit.Share
	cap                        *limit.Cap
	sessions                   *limit.Sessions
	userSessions               *limit.UserSessions
	group                      groupFlags
}

func deviceCommand() *cobra.Command {
	var f deviceFlags
	c := &cobra.Command{
		Use:   "device --socket PATH",
		Short: "Give a VM a virtual GPU",
		Long: `Gives one VM a virtual GPU: serves a vhost-user socket, to which QEMU connects a vhost-user-fs device. The guest mounts it
with its own virtiofs driver, and finds there the libraries that CUDA programs load.
The VM is the unit of trust: an attacker who takes over one of its workers reaches all of its memory (docs/SECURITY.md), and no other VM's.
It runs until it is interrupted; a VM that is attached then loses its GPU for good. The lines for QEMU and libvirt are printed.
SIGUSR2 moves all sessions to fresh worker processes, which their programs do not notice.
With --control it tells how it is, and takes other limits, over HTTP on a Unix socket, as causewayd does.`,
		Example: `  causeway device --socket /run/causeway/vm1.sock --gpu auto --profile quarter
  causeway device --socket /run/causeway/vm1/gpu0.sock --control /run/causeway/vm1/gpu0.ctl --gpu H200 --memory 16GiB --owner libvirt-qemu:kvm
  # in the guest:
  mount -t virtiofs gpu0 /run/causeway
  LD_LIBRARY_PATH=/run/causeway/lib ./vectoradd
  /run/causeway/bin/setup     # once, as root: makes it permanent`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM)
			defer stop()
			if f.held {
				if err := process.AwaitBegin(ctx); err != nil {
					return err
				}
			}
			return serveDevice(ctx, &f, cmd.OutOrStdout())
		},
	}
	f.gpu.register(c)
	fl := c.Flags()
	fl.StringVar(&f.socket, "socket", "", "path of the vhost-user socket; one that nobody serves any more is replaced")
	fl.StringVar(&f.control, "control", "", "path of the socket that tells how the device is, and takes limits (default: none)")
	fl.StringVar(&f.lib, "lib", "", "folder that holds Causeway's libcuda.so.1 (default: ../lib/causeway or ../lib beside this program)")
	fl.StringVar(&f.vm, "vm", "", "the VM's name, for logs and the scheduler")
	fl.StringVar(&f.name, "name", "gpu0", "the virtual GPU's name within its VM")
	fl.StringVar(&f.owner, "owner", "", "USER or USER:GROUP who may open the vhost-user socket (default: this user)")
	fl.StringVar(&f.scheduler, "scheduler", "", "socket of causeway scheduler, which shares GPU time (default: none)")
	fl.StringVar(&f.suspendTo, "suspend-to", "", "`FOLDER` for files that hold suspended programs (default: the host's memory does)")
	fl.BoolVar(&f.swap, "swap", false, "programs wait for room on the GPU, which causewayd gives (placement.overcommit)")
	fl.BoolVar(&f.programs, "programs", false, "the socket takes CUDA programs of this host, in containers for instance, and no VM")
	fl.Var(profileFlag{&f.profile}, "profile", "limits by `NAME`: full, half, quarter or eighth of the GPU; those named beside it go before")
	completeWords(c, "profile", slices.Sorted(maps.Keys(limit.Profiles()))...)
	shareFlag(c, &f.share, "; wants --scheduler")
	capFlag(c, &f.cap, "")
	sessionsFlag(c, &f.sessions, fmt.Sprintf(" (default %d)", device.DefaultSessions))
	userSessionsFlag(c, &f.userSessions, " (default half)")
	fl.StringVar(&f.lease, "lease", "", "`FILE` of a lease that another host has of this virtual GPU: the socket takes its programs' connections from causewayd, and no VM")
	fl.StringVar(&f.relay, "relay", "", "`FILE` of a lease that this host has on a GPU server, where the virtual GPU's programs then run")
	fl.BoolVar(&f.held, "held", false, "begin when who started it says so")
	for _, internal := range []string{"lease", "relay", "held"} {
		_ = fl.MarkHidden(internal) // causewayd's
	}
	f.group.register(c)
	_ = c.MarkFlagRequired("socket")
	return c
}

// limits are those that the flags ask for.
func (f *deviceFlags) limits(g limit.GPU, n int) (api.Limits, error) {
	c := api.Change{Profile: f.profile, Memory: f.gpu.memory, Share: f.share, Cap: f.cap, Sessions: f.sessions, HostMemory: f.gpu.host, UserSessions: f.userSessions}
	if f.profile != "" {
		p, ok := limit.Profiles()[f.profile]
		var err error
		switch {
		case !ok:
			return api.Limits{}, fmt.Errorf("--profile %s: use %s", f.profile, strings.Join(slices.Sorted(maps.Keys(limit.Profiles())), ", "))
		case n > 1:
			return api.Limits{}, fmt.Errorf("--profile %s is a part of one GPU, not of %d: name one, or use --memory", f.profile, n)
		}
		if c, err = c.With(p, g); err != nil {
			return api.Limits{}, err
		}
	}
	l := c.On(api.Limits{Share: limit.DefaultShare, Sessions: device.DefaultSessions})
	return l, g.Fits(limit.Memory(l.Memory), n)
}

func serveDevice(ctx context.Context, f *deviceFlags, out io.Writer) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	cfg, err := f.gpu.config()
	if err != nil {
		return err
	}
	if cfg.Base != 0 && f.vm != "" {
		cfg.Base = link.BaseOf(f.atHome())
	}
	if f.relay == "" { // else its programs run on another host
		if err := f.gpu.checkHostMemory(); err != nil {
			return err
		}
	}
	keys, err := f.leased()
	if err != nil {
		return err
	}
	lib, vm := "", keys == nil && !f.programs
	if vm {
		if lib, err = findLib(f.lib); err != nil {
			return err
		}
	}
	log := bounded(logger(f.gpu.verbose), 2000, 10)
	if f.vm != "" {
		log = log.With("vm", f.vm, "vgpu", f.name)
	}
	chosen, list, err := f.whichGPU(ctx, &cfg)
	if err != nil {
		return err
	}
	if chosen.Reach != driver.ReachNone && !cfg.ReachWorker {
		return &driver.ReachError{Device: chosen.Name, Reach: chosen.Reach}
	}
	f.gpu.sandbox.slice = chosen.Slice
	size, n := chosen.limits(f.gpu.warm), offered(cfg, chosen, list)
	limits, err := f.limits(size, n)
	if err != nil {
		return err
	}
	if cfg.MemoryLimit = limits.Memory; limits.Memory == 0 {
		log.Warn("no limit of memory: this vGPU may take all that the GPU has; --memory or --profile sets one")
	}
	ln, ctl, err := f.listen()
	if err != nil {
		return err
	}
	defer ln.Close()
	nvml, err := f.listenNVML()
	if err != nil {
		return err
	}
	var keeper *device.Keeper
	if vm {
		// Before this process is confined, goes first when memory runs out, and joins its control
		// group.
		keeper, err = startKeeper(log)
		if err != nil {
			return err
		}
	}
	if err := sandbox.RaiseOOM(os.Getpid(), sandbox.DeviceOOM); err != nil {
		log.Warn("nothing says that this process should go before others when memory runs out", "error", err)
	}
	group, err := f.group.join(log)
	if err != nil {
		return err
	}
	defer leave(group, log)
	space, err := f.gpu.sandbox.space(cfg, log)
	if err != nil {
		return err
	}
	defer space.Close()
	others := &neighbours{f: f, log: log}
	defer others.close()
	if err := others.prepare(cfg, &chosen, list); err != nil {
		return err
	}
	if err := f.gpu.sandbox.confine(cfg, log); err != nil {
		return err
	}
	spawner := &spawn.Spawner{NoNewPrivs: true, Sandbox: space, OneArena: cfg.Base != 0}
	others.home = spawner
	at := others.place(cfg, &chosen)
	audit := 5 * time.Second
	if chosen.Backend != "cuda" {
		audit = 0 // nobody else knows what it uses
	}
	dev, err := device.New(device.Options{
		Tree:        device.Tree{Lib: lib, Version: version, GPU: chosen.Name, Direct: cfg.Relay != nil && cfg.Direct},
		Worker:      cfg,
		Spawner:     spawner,
		Pool:        at.Pool,
		Machine:     at.Machine,
		Limits:      limits,
		UUID:        chosen.UUID,
		Audit:       audit,
		Scheduler:   at.Scheduler,
		CheckMemory: func(m limit.Memory) error { return size.Fits(m, n) },
		SuspendTo:   f.suspendTo,
		Swap:        f.swap,
		Leave:       at.Leave,
		Elsewhere:   others.finder(&cfg),
		FarMachine:  farGPU,
		Keeper:      keeper,
		Leased:      keys != nil,
		Programs:    f.programs,
		Reached:     reached(),
		// What many sessions left, which the collector gives back in its own time.
		Idle: debug.FreeOSMemory,
		Log:  log,
	})
	if err != nil {
		return err
	}
	debug.SetGCPercent(50) // one device per VM: memory counts, and garbage is rare
	kind := "a real GPU"
	switch {
	case chosen.Backend == "soft":
		kind = "the software GPU: no real one was found or asked for"
	case cfg.Relay != nil:
		kind = "on the GPU server " + cfg.Relay.Server
	}
	if vm {
		fmt.Fprintf(out, "virtual GPU for one VM: %s (%s)\n\n", chosen.Name, kind)
		if err := printAttach(out, f.socket, f.name); err != nil {
			return err
		}
	}
	defer dev.Leave()
	if at.Pool != nil {
		at.Pool.Fill()
	}
	go routineRebuild(ctx, dev, log)
	if ctl != nil {
		var wg sync.WaitGroup
		defer wg.Wait()
		defer stop()
		wg.Go(func() {
			if err := dev.ServeControl(ctx, ctl, stop); err != nil {
				log.Error("nobody can ask this device any more", "error", err)
			}
		})
	}
	switch {
	case keys != nil:
		return dev.ServeLease(ctx, ln, *keys)
	case f.programs:
		return dev.ServePrograms(ctx, ln, nvml)
	}
	return dev.Serve(ctx, ln)
}

func startKeeper(log *slog.Logger) (*device.Keeper, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("this program's file: %w", err)
	}
	return device.StartKeeper([]string{self, "keeper"}, log)
}

// key names the virtual GPU to the scheduler.
func (f *deviceFlags) key() string {
	if f.vm == "" {
		return fmt.Sprintf("device/%d", os.Getpid())
	}
	return f.vm + "/" + f.name
}

// listen opens the two sockets. The second is nil if it is not wanted.
func (f *deviceFlags) listen() (ln, ctl *net.UnixListener, err error) {
	if f.socket, err = filepath.Abs(f.socket); err != nil {
		return nil, nil, err
	}
	if f.suspendTo != "" {
		if f.suspendTo, err = filepath.Abs(f.suspendTo); err != nil {
			return nil, nil, err
		}
	}
	mode, owner := os.FileMode(0o600), (*device.Owner)(nil)
	if f.owner != "" {
		o, err := device.ParseOwner(f.owner)
		if err != nil {
			return nil, nil, fmt.Errorf("--owner: %w", err)
		}
		mode, owner = 0o660, &o
	}
	if f.programs {
		ln, err = device.ListenPrograms(f.socket)
	} else {
		ln, err = device.Listen(f.socket, mode, owner)
	}
	if err != nil || f.control == "" {
		return ln, nil, err
	}
	control, err := filepath.Abs(f.control)
	if err == nil {
		ctl, err = device.Listen(control, 0o600, nil)
	}
	if err != nil {
		_ = ln.Close()
		return nil, nil, err
	}
	return ln, ctl, nil
}

// listenNVML opens the socket for programs' nvidia-smi beside theirs; nil: it is a VM's, which has
// a file for that. Of a GPU server's GPU it tells what the lease says.
func (f *deviceFlags) listenNVML() (*net.UnixListener, error) {
	if !f.programs {
		return nil, nil
	}
	return device.ListenNVML(filepath.Join(filepath.Dir(f.socket), api.ProgramsNVML))
}

// routineRebuild moves all sessions to fresh workers at each SIGUSR2, for tests and for those who
// replace the program.
func routineRebuild(ctx context.Context, dev *device.Device, log *slog.Logger) {
	ch := make(chan os.Signal, 1)
	signal.Notify(ch, unix.SIGUSR2)
	defer signal.Stop(ch)
	for {
		select {
		case <-ctx.Done():
			return
		case <-ch:
			n, err := dev.Rebuild(ctx)
			if err != nil {
				log.Error("sessions did not move", "error", err)
			}
			log.Info("sessions moved to fresh workers", "sessions", n)
		}
	}
}

// printAttach says how to attach the device. No metadata: libvirt's hook would ask causewayd for
// another.
func printAttach(w io.Writer, socket, name string) error {
	a := report.AttachTo(&api.VGPU{Spec: api.Spec{Name: name}, Socket: socket})
	a.Metadata = ""
	return report.WriteAttach(w, a)
}
