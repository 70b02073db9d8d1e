package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"causeway/host/device"
	"causeway/host/worker/link"
	"causeway/host/worker/spawn"
	"causeway/vhostuser"
)

func deviceCommand() *cobra.Command {
	var gpu gpuFlags
	var socket, lib string
	c := &cobra.Command{
		Use:   "device --socket PATH",
		Short: "Give a VM a virtual GPU",
		Long: `Gives one VM a virtual GPU: serves a vhost-user socket, to which QEMU connects a vhost-user-fs device. The guest mounts it
with its own virtiofs driver, and finds there the libraries that CUDA programs load.
It runs until it is interrupted; a VM that is attached then loses its GPU for good. The lines for QEMU and libvirt are printed.
SIGUSR2 moves all sessions to fresh worker processes, which their programs do not notice.`,
		Example: `  causeway device --socket /run/causeway/vm1.sock --gpu auto --memory 4GiB
  # in the guest:
  mount -t virtiofs gpu0 /run/causeway
  LD_LIBRARY_PATH=/run/causeway/lib ./vectoradd
  /run/causeway/bin/setup     # once, as root: makes it permanent`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM)
			defer stop()
			return serveDevice(ctx, &gpu, socket, lib, cmd.OutOrStdout())
		},
	}
	gpu.register(c)
	c.Flags().StringVar(&socket, "socket", "", "path of the vhost-user socket; one that nobody serves any more is replaced")
	c.Flags().StringVar(&lib, "lib", "", "folder that holds Causeway's libcuda.so.1 (default: ../lib beside this program)")
	_ = c.MarkFlagRequired("socket")
	return c
}

func serveDevice(ctx context.Context, gpu *gpuFlags, socket, lib string, out io.Writer) error {
	cfg, err := gpu.config()
	if err != nil {
		return err
	}
	if lib, err = findLib(lib); err != nil {
		return err
	}
	if socket, err = filepath.Abs(socket); err != nil {
		return err
	}
	log := logger(gpu.verbose)
	chosen, err := choose(ctx, &cfg)
	if err != nil {
		return err
	}
	spawner := &spawn.Spawner{NoNewPrivs: true}
	var pool *spawn.Pool
	if gpu.warm > 0 && chosen.Backend != "soft" { // the software GPU starts at once
		pool = &spawn.Pool{Spawner: spawner, Config: cfg, Size: gpu.warm, Log: log}
		defer pool.Close()
	}
	machine := inventoryClient(cfg)
	defer machine.Close()
	dev, err := device.New(device.Options{
		Tree:    device.Tree{Lib: lib, Version: version, GPU: chosen.Name, Memory: cfg.MemoryLimit},
		Worker:  cfg,
		Spawner: spawner,
		Pool:    pool,
		Machine: machine.Read,
		Log:     log,
	})
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(socket), 0o755); err != nil {
		return fmt.Errorf("folder of the socket: %w", err)
	}
	ln, err := vhostuser.Listen(socket)
	if err != nil {
		return err
	}
	ln.SetUnlinkOnClose(true)
	debug.SetGCPercent(50) // one device per VM: memory counts, and garbage is rare
	kind := "a real GPU"
	if chosen.Backend == "soft" {
		kind = "the software GPU: no real one was found or asked for"
	}
	fmt.Fprintf(out, "virtual GPU for one VM: %s (%s)\n\n", chosen.Name, kind)
	printAttach(out, socket)
	if pool != nil {
		pool.Fill()
	}
	go routineRebuild(ctx, dev, log)
	return dev.Serve(ctx, ln)
}

// routineRebuild moves all sessions to fresh workers at each SIGUSR2, for tests and for those who replace the program.
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

// choose settles which GPU the VM gets. A child process asks the drivers, so that none is ever loaded here.
func choose(ctx context.Context, cfg *link.Config) (gpuLine, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "/proc/self/exe", "gpus", "--local", "--json")
	cmd.Stderr = os.Stderr
	b, err := cmd.Output()
	if err != nil {
		return gpuLine{}, fmt.Errorf("ask for this machine's GPUs: %w", err)
	}
	var list []gpuLine
	if err := json.Unmarshal(b, &list); err != nil {
		return gpuLine{}, fmt.Errorf("ask for this machine's GPUs: %w", err)
	}
	for _, g := range list {
		wanted := cfg.GPU == "auto" || cfg.GPU == g.Backend
		if wanted && g.Backend == "cuda" && len(cfg.Devices) > 0 {
			wanted = g.Index == cfg.Devices[0]
		}
		if wanted {
			cfg.GPU = g.Backend
			return g, nil
		}
	}
	return gpuLine{}, fmt.Errorf("this machine has no such GPU: `causeway gpus` lists what there is, --gpu soft is always there")
}

// attachTag is the mount tag in what printAttach prints. Any other does as well.
const attachTag = "gpu0"

// printAttach says how to attach the device. Guest memory must be shared, and the queue long enough for READs of 1 MiB.
func printAttach(w io.Writer, socket string) {
	fmt.Fprintf(w, `QEMU arguments (the memory's size is the VM's):
  -object memory-backend-memfd,id=mem,size=4G,share=on -machine q35,memory-backend=mem
  -chardev socket,id=gpu0,path=%[1]s
  -device vhost-user-fs-pci,chardev=gpu0,tag=%[2]s,queue-size=1024

libvirt domain XML:
  <memoryBacking><source type='memfd'/><access mode='shared'/></memoryBacking>
  <filesystem type='mount'>
    <driver type='virtiofs' queue='1024'/>
    <source socket='%[1]s'/>
    <target dir='%[2]s'/>
  </filesystem>

In the guest:
  mkdir -p /run/causeway && mount -t virtiofs %[2]s /run/causeway
  LD_LIBRARY_PATH=/run/causeway/lib ./program        # or once: /run/causeway/bin/setup
`, socket, attachTag)
}
