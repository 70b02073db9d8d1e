package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/signal"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"causeway/host/api"
	"causeway/host/libvirt"
	"causeway/host/limit"
	"causeway/host/qmp"
)

// migrateFlags of `causeway migrate`.
type migrateFlags struct {
	node      nodeFlags
	config    string
	bandwidth *limit.Memory
	pause     time.Duration
	connect   string
	to        string
	uri       string
	qmp       string
	only      bool
	conns     int
	throttle  bool
	stopLimit bool // --max-pause was given
}

// errStays is in the errors of a migration that has come to nothing: the VM goes on here.
var errStays = errors.New("the VM goes on here")

func migrateCommand() *cobra.Command {
	var f migrateFlags
	c := &cobra.Command{
		Use:   "migrate VM HOST",
		Short: "Move a running VM to another host, its GPU memory ahead of it",
		Long: `Moves a VM to another host while its CUDA programs run. First their GPU memory is sent to the other host's causewayd (HOST or HOST:PORT,
migration.listen there) in rounds, each of what changed since the last, until what is left can be sent within --max-pause or becomes no less. Then libvirt
moves the VM, and its state has only the memory that changed since. Both hosts need a certificate of the same authority: see causeway certify.

Before anything is sent it says what keeps the VM here, if something does. Ctrl-C calls it off at any time: the VM goes on here. If GPU memory cannot go ahead
nothing is moved; "virsh migrate" moves the VM all the same, with all of it sent while the VM stands.

A QEMU without libvirt is moved by its monitor, --qmp, to where one waits for it (-incoming), --uri. With --memory-only nothing is moved: memory goes ahead and is
kept up to date until the VM has left by other means, or Ctrl-C.`,
		Example: `  causeway migrate vm1 hostb
  causeway migrate vm1 hostb --bandwidth 500MiB --max-pause 200ms
  causeway migrate vm1 hostb --qmp /run/vm1.qmp --uri tcp:hostb:4444
  causeway migrate vm1 hostb --memory-only     # and move the VM by other means`,
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			f.stopLimit = cmd.Flags().Changed("max-pause")
			ctx, stop := signal.NotifyContext(cmd.Context(), unix.SIGINT, unix.SIGTERM)
			defer stop()
			return f.run(ctx, cmd, args[0], args[1])
		},
	}
	f.node.registerRun(c)
	c.Flags().StringVar(&f.config, "config", api.ConfigFile, "causewayd's configuration `FILE`, which says where this host's certificate is")
	c.Flags().Var(optional[limit.Memory, *limit.Memory]{&f.bandwidth, "SIZE"}, "bandwidth", "most bytes a second for GPU memory, and again for the VM's own, as in 500MiB (default: no limit)")
	c.Flags().IntVar(&f.conns, "connections", api.DefaultConnections, "over how many connections GPU memory goes")
	c.Flags().BoolVar(&f.throttle, "throttle", false, "hold programs back that change GPU memory as fast as it is sent, 20 % of the time and then more, until the VM has moved or stays")
	c.Flags().DurationVar(&f.pause, "max-pause", 300*time.Millisecond, "how long the VM may stand for memory that is left; given, and not reached, nothing is moved")
	c.Flags().StringVar(&f.connect, "connect", "", "this host's libvirt `URI`")
	c.Flags().StringVar(&f.to, "to", "", "the other host's libvirt `URI` (default qemu+ssh://HOST/system)")
	c.Flags().StringVar(&f.uri, "uri", "", "`URI` where QEMU there waits for the VM's memory: libvirt's as in tcp://hostb, with --qmp as in tcp:hostb:4444")
	c.Flags().StringVar(&f.qmp, "qmp", "", "QMP `SOCKET` of a QEMU that runs without libvirt")
	c.Flags().BoolVar(&f.only, "memory-only", false, "send GPU memory ahead, and leave the VM to others")
	c.MarkFlagsMutuallyExclusive("qmp", "memory-only", "to")
	c.MarkFlagsMutuallyExclusive("qmp", "connect")
	return c
}

// mover moves a VM.
type mover interface {
	// here reports whether the VM is this host's; an error: it cannot be told, or is gone.
	here() (bool, error)
	// move returns when the VM runs there, or, with an error, here. The end of ctx calls it off.
	move(ctx context.Context, say func(string)) error
	io.Closer
}

func (f *migrateFlags) run(ctx context.Context, cmd *cobra.Command, vm, host string) error {
	out := newProgress(cmd.OutOrStdout())
	m, err := f.mover(ctx, vm, host)
	if err != nil {
		return err
	}
	defer m.Close()
	a, err := f.ahead(ctx, vm, host)
	if err != nil {
		return fmt.Errorf("%w: %w", err, errStays)
	}
	defer a.close()
	handing, done := context.WithCancel(ctx)
	var again sync.WaitGroup
	again.Go(func() { a.routineHanded(handing, host) })
	defer again.Wait() // before they are taken back
	defer done()
	if err := a.ready(ctx, out); err != nil {
		return stays(m, err)
	}
	if err := f.short(a); err != nil {
		return fmt.Errorf("%w: %w", err, errStays)
	}
	go a.warn(out)
	begin := time.Now()
	if err := m.move(ctx, out.now); err != nil {
		return stays(m, a.why(ctx, err))
	}
	a.left = true
	out.line(fmt.Sprintf("%s: moved to %s in %.1f s, %s of GPU memory before it%s", vm, host, time.Since(begin).Seconds(), size(a.total()), a.saved()))
	return nil
}

// short says why the VM must not stand for what is left.
func (f *migrateFlags) short(a *ahead) error {
	if !f.stopLimit {
		return nil
	}
	for _, g := range a.gpus {
		if c := g.last; c.Stuck && c.Took > f.pause {
			return fmt.Errorf("%s changes its GPU memory as fast as it is sent: %s in each round of %.1f s, more than --max-pause %v allows", g.vgpu.Spec.Key(), size(c.Sent), c.Took.Seconds(), f.pause)
		}
	}
	return nil
}

func (f *migrateFlags) mover(ctx context.Context, vm, host string) (mover, error) {
	switch {
	case f.only:
		return stayer{}, nil
	case f.qmp != "":
		if f.uri == "" {
			return nil, errors.New("--qmp needs --uri: where QEMU on the other host waits (its -incoming)")
		}
		m, err := qmp.Dial(f.qmp, qmpLimit)
		if err != nil {
			return nil, err
		}
		if err := m.Here(); err != nil {
			_ = m.Close()
			return nil, fmt.Errorf("%s: %w", vm, err)
		}
		return &qemuMover{m, qmp.Migration{URI: f.uri, Bandwidth: f.rate(), Downtime: f.pause}}, nil
	}
	d, err := libvirt.OpenMovable(ctx, f.connect, vm)
	if errors.Is(err, libvirt.ErrNoLibvirt) {
		err = becomeLibvirt()
	}
	if err != nil {
		return nil, err
	}
	to := f.to
	if to == "" {
		name, _, _ := strings.Cut(host, ":")
		to = "qemu+ssh://" + name + "/system"
	}
	return &libvirtMover{d, libvirt.Migration{To: to, URI: f.uri, Bandwidth: f.rate(), Downtime: f.pause}}, nil
}

func (f *migrateFlags) rate() uint64 {
	if f.bandwidth == nil {
		return 0
	}
	return uint64(*f.bandwidth)
}

// ahead begins to send the GPU memory of a VM.
func (f *migrateFlags) ahead(ctx context.Context, vm, host string) (*ahead, error) {
	if f.conns < 1 || f.conns > api.MostConnections {
		return nil, fmt.Errorf("--connections: 1 to %d", api.MostConnections)
	}
	settings := daemonFlags{config: f.config}
	cfg, err := settings.load(f.config != api.ConfigFile)
	if err != nil {
		return nil, err
	}
	_, found, err := f.node.find(ctx, vm)
	if err != nil {
		return nil, err
	}
	return sendAhead(ctx, f.node.client(), host, cfg.Migration.Files(), found, api.Copying{Bandwidth: f.rate(), Pause: f.pause, Connections: f.conns, Throttle: f.throttle})
}

// stayer moves nothing.
type stayer struct{}

func (stayer) here() (bool, error) { return true, nil }

func (stayer) move(ctx context.Context, say func(string)) error {
	say("GPU memory is kept up to date on the other host: move the VM now, or end this by Ctrl-C")
	<-ctx.Done()
	return nil
}

func (stayer) Close() error { return nil }

type libvirtMover struct {
	libvirt.Movable
	how libvirt.Migration
}

func (m *libvirtMover) here() (bool, error) {
	places, err := m.Places()
	if err == nil && places&libvirt.Live == 0 {
		err = libvirt.ErrNotRunning
	}
	return err == nil, err
}

func (m *libvirtMover) move(ctx context.Context, say func(string)) error {
	return m.Migrate(ctx, m.how, func(j libvirt.Job) { say(fmt.Sprintf("the VM's own memory: %s of %s", size(j.Done), size(j.Total))) })
}

type qemuMover struct {
	*qmp.Machine
	how qmp.Migration
}

func (m *qemuMover) here() (bool, error) {
	err := m.Here()
	if errors.Is(err, qmp.ErrNotHere) {
		return false, nil
	}
	return err == nil, err
}

func (m *qemuMover) move(ctx context.Context, say func(string)) error {
	return m.Migrate(ctx, m.how, func(done, total uint64) { say(fmt.Sprintf("the VM's own memory: %s of %s", size(done), size(total))) })
}
