package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"causeway/host/api"
	"causeway/host/worker/link"
	"causeway/host/worker/spawn"
	wire "causeway/remote"
)

func runCommand() *cobra.Command {
	var gpu gpuFlags
	var sched schedulerFlags
	var lib, remote, relay string
	c := &cobra.Command{
		Use:   "run [flags] -- program [arguments]",
		Short: "Run a program on this host with its CUDA calls going through Causeway",
		Long: `Runs a program on this host whose CUDA calls go through Causeway's library, a ring in shared memory and a worker process:
the whole path that a VM takes, without the VM. Each process that uses CUDA gets a worker of its own.
The program has this terminal, stdin, stdout and stderr; its exit status, or the signal that ended it, is that of causeway run. It is
125 if causeway run itself fails, 126 if the program cannot be invoked, 127 if there is none.
If causeway run is killed (SIGKILL), the program is killed too, and the workers end.
A worker waits ready for the first process that uses a real GPU; with --warm 1, or more, as many wait for each next one too.`,
		Example: `  causeway run -- ./vectoradd 1000000
  causeway run --gpu soft --memory 1GiB -- python3 train.py
  causeway run --gpu 0 --warm 1 -- ./many-short-programs.sh
  causeway run --gpu 0 -v -- ./matmul`,
		Args: func(cmd *cobra.Command, args []string) error { return runFailed(cobra.MinimumNArgs(1)(cmd, args)) },
		RunE: func(cmd *cobra.Command, args []string) error {
			once := !cmd.Flags().Changed("warm")
			if cmd.Flags().Changed("remote") {
				if remote == "" { // a script's variable that is not set, say
					return runFailed(errors.New("--remote names no vGPU: `causeway create VM --remote SERVER` makes one on a GPU server; without --remote the GPU is this host's"))
				}
				if err := notFar(cmd); err != nil {
					return runFailed(err)
				}
				var err error
				if relay, err = leaseOf(remote); err != nil {
					return runFailed(err)
				}
			}
			return runFailed(run(cmd.Context(), &gpu, &sched, lib, relay, once, args))
		},
	}
	c.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return runFailed(err) })
	c.Flags().SetInterspersed(false)
	gpu.register(c)
	sched.register(c)
	c.Flags().StringVar(&remote, "remote", "", "`VM[/NAME]` of a vGPU on a GPU server (causeway create --remote), which the program is to use in place of a GPU of this host")
	c.Flags().StringVar(&relay, "relay", "", "`FILE` of a lease, as causeway serve-plain --lease writes")
	_ = c.Flags().MarkHidden("relay")
	c.MarkFlagsMutuallyExclusive("remote", "relay")
	c.Flags().StringVar(&lib, "lib", "", "folder that holds Causeway's libcuda.so.1 (default: ../lib/causeway or ../lib beside this program)")
	return c
}

// notFar refuses flags about a GPU of this host where the program's is a server's.
func notFar(c *cobra.Command) (err error) {
	ways := map[string]string{
		"gpu": "it has the GPU that the vGPU lies on", "memory": "`causeway limits VM --memory` sets the vGPU's", "share": "`causeway limits VM --share` sets the vGPU's",
		"cap": "`causeway limits VM --cap` sets the vGPU's", "scheduler": "its time is shared at the server", "vm": "its time is shared at the server",
		"migratable": "`causeway create --migratable` asks the server for it", "gpu-direct": "it is the server's to say (remote.gpu_direct there)",
	}
	c.Flags().Visit(func(f *pflag.Flag) {
		if way, ok := ways[f.Name]; ok && err == nil {
			err = fmt.Errorf("--%s with --remote: the program's GPU is on another host: %s", f.Name, way)
		}
	})
	return err
}

// leaseOf is the file of a vGPU's lease.
func leaseOf(remote string) (string, error) {
	vm, name := api.ParseKey(remote)
	file := (&api.Spec{VM: vm, Name: name}).LeasePath(runDir())
	if _, err := os.Stat(file); errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("there is no vGPU %s on a GPU server: `causeway ps -a` lists those that there are, `causeway create %s --remote SERVER` makes one (looked for in %s, which %s names)", remote, vm, runDir(), runDirVar)
	}
	return file, nil
}

// linger is how long run waits, after the program, for workers to see the end of their process.
const linger = 500 * time.Millisecond

// runFailed gives failures of run itself their status. A program's own end, and why one did not
// start, have theirs.
func runFailed(err error) error {
	if err == nil || errors.As(err, new(exitStatus)) || errors.As(err, new(*statusError)) {
		return err
	}
	return &statusError{exitRunFailed, err}
}

// run: once says that a worker waits for the program's first process only, as most programs have
// one. relay is the file of a lease; "": none.
func run(ctx context.Context, gpu *gpuFlags, sched *schedulerFlags, lib, relay string, once bool, args []string) error {
	lib, err := findLib(lib)
	if err != nil {
		return err
	}
	program, err := findProgram(args[0], filepath.Join(lib, programs))
	if err != nil {
		return err
	}
	cfg, err := gpu.config()
	if err != nil {
		return err
	}
	if ctx == nil {
		ctx = context.Background()
	}
	if relay != "" {
		if _, err := relayTo(relay, &cfg); err != nil {
			return err
		}
	} else if err := cmp.Or(gpu.checkHostMemory(), fits(ctx, cfg, gpu.gpu)); err != nil {
		return err
	}
	cfg.Tied, cfg.ReachWorker = true, true // program and worker are one user's
	log := logger(gpu.verbose)
	folder, err := newRunFolder()
	if err != nil {
		return err
	}
	defer folder.Close()
	dir := folder.path
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	gpu.sandbox.own = true
	space, err := gpu.sandbox.space(cfg, log)
	if err != nil {
		return err
	}
	defer space.Close()
	membership, err := sched.join(ctx, &cfg, gpu.gpu, log)
	if err != nil {
		return err
	}
	defer membership.Close()
	srv := newServer(&spawn.Spawner{Sandbox: space, OneArena: cfg.Base != 0}, cfg, log)
	srv.membership, srv.gpu = membership, gpu.gpu
	if link.Fits(wire.Hello{Flags: link.EnvFlags(os.Environ())}, len(cfg.Devices)) {
		srv.keepWarm(gpu.warm, once) // starts while the program does
	}
	defer srv.pool.Close()
	if err := srv.listen(ctx, filepath.Join(dir, "session")); err != nil {
		return err
	}
	if relay == "" { // whose use would be told of GPUs of this host
		if err := srv.listenNVML(ctx, filepath.Join(dir, "nvml")); err != nil {
			return err
		}
	}
	if err := srv.listenControl(ctx, filepath.Join(dir, "control")); err != nil {
		return err
	}
	log.Info("session socket is ready", "socket", filepath.Join(dir, "session"), "gpu", gpu.gpu, "lib", lib)
	status := runProgram(program, args, childEnv(os.Environ(), "unix:"+filepath.Join(dir, "session"), lib))
	cancel()
	srv.pool.Close()
	srv.wait(linger)
	srv.leave()
	return status
}

// findLib returns the absolute folder of the guest library. Unless it is named, that is
// lib/causeway beside the program's folder, where packages put it, or lib, where `make build` does.
// The first comes first: /usr/lib/libcuda.so.1 would be another's.
func findLib(lib string) (string, error) {
	dirs := []string{lib}
	if lib == "" {
		exe, err := os.Executable()
		if err != nil {
			return "", fmt.Errorf("find this program's folder: %w", err)
		}
		prefix := filepath.Join(filepath.Dir(filepath.Dir(exe)), "lib")
		dirs = []string{filepath.Join(prefix, "causeway"), prefix}
	}
	for i, dir := range dirs {
		abs, err := filepath.Abs(dir)
		if err != nil {
			return "", err
		}
		dirs[i] = abs
		if _, err := os.Stat(filepath.Join(abs, "libcuda.so.1")); err == nil {
			return abs, nil
		}
	}
	return "", fmt.Errorf("there is no libcuda.so.1 in %s: build it by `make build`, or name its folder with --lib", strings.Join(dirs, " or "))
}

// programs is the folder in that of the guest library with what people expect beside it:
// nvidia-smi. It comes last in PATH.
const programs = "bin"

// childEnv points a program at a session socket, at the guest library and at the programs beside
// that.
func childEnv(env []string, target, lib string) []string {
	path := lib
	out := make([]string, 0, len(env)+2)
	for _, kv := range env {
		name, value, _ := strings.Cut(kv, "=")
		switch name {
		case "CAUSEWAY":
		case "LD_LIBRARY_PATH":
			if value != "" {
				path = lib + ":" + value
			}
		case "PATH":
			if value != "" {
				kv += ":" + filepath.Join(lib, programs)
			}
			out = append(out, kv)
		default:
			out = append(out, kv)
		}
	}
	return append(out, "CAUSEWAY="+target, "LD_LIBRARY_PATH="+path)
}

// findProgram finds a program as execvp(3) does, and after that in a folder of our own.
func findProgram(name, ours string) (string, error) {
	path, err := exec.LookPath(name)
	if errors.Is(err, exec.ErrNotFound) {
		if own, err := exec.LookPath(filepath.Join(ours, name)); err == nil {
			return own, nil
		}
	}
	switch {
	case err == nil:
		return path, nil
	case errors.Is(err, exec.ErrNotFound):
		return "", &statusError{exitNotFound, fmt.Errorf("no program %q in PATH: give its path, as in ./%s", name, name)}
	case errors.Is(err, fs.ErrNotExist):
		return "", &statusError{exitNotFound, fmt.Errorf("there is no %s", name)}
	}
	return "", &statusError{exitNoInvoke, fmt.Errorf("cannot run %s: %w", name, err)}
}

// runProgram runs args to its end. The result is nil, an exitStatus, or why it could not start.
func runProgram(path string, args, env []string) error {
	cmd := exec.Command(path, args[1:]...)
	cmd.Args[0] = args[0]
	cmd.Env = env
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	// The kernel sends the signal when the thread that started the program ends: it is this
	// goroutine's until the program has ended.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	stop := forwardSignals()
	if err := cmd.Start(); err != nil {
		stop(nil)
		return &statusError{exitNoInvoke, fmt.Errorf("cannot run %s: %w", args[0], err)}
	}
	stop(cmd.Process)
	err := cmd.Wait()
	stop(nil)
	var exit *exec.ExitError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &exit):
		return statusOf(exit)
	}
	slog.Error("wait for the program", "error", err)
	return fmt.Errorf("wait for %s: %w", args[0], err)
}
