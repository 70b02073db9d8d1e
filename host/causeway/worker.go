package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"causeway/host/sandbox"
	"causeway/host/worker"
	"causeway/host/worker/spawn"
)

func workerCommand() *cobra.Command {
	return &cobra.Command{
		Use:    "worker",
		Short:  "Execute the calls of one CUDA process (started by run, serve and device)",
		Args:   cobra.NoArgs,
		Hidden: true,
		RunE: func(*cobra.Command, []string) error {
			resume := os.Getenv(worker.ResumeEnv)
			_ = os.Unsetenv(worker.ResumeEnv)
			if kind, err := unix.GetsockoptInt(spawn.LinkFD, unix.SOL_SOCKET, unix.SO_TYPE); resume == "" && (err != nil || kind != unix.SOCK_SEQPACKET) {
				return errors.New("`causeway worker` is started by run, serve and device, not by users")
			}
			unix.CloseOnExec(spawn.LinkFD)
			stopProfiles, err := profiles()
			if err != nil {
				return err
			}
			_ = sandbox.RaiseOOM(os.Getpid(), sandbox.WorkerOOM) // the parent does it, too
			// What stops the parent reaches the worker over its link, in order.
			signal.Ignore(unix.SIGHUP, unix.SIGINT)
			policy, err := enterSandbox(logger(false), resume != "")
			if err != nil {
				return err
			}
			p := &worker.Process{Backend: takenOver(findBackend), Resume: resume, Seal: func() error { return sandbox.Seal(policy) }, Confined: policy.Enforces(), Logger: func(l slog.Level) *slog.Logger {
				log := bounded(newLogger(l), 100, 1)
				slog.SetDefault(log) // backends log there
				return log
			}}
			if err := errors.Join(p.Main(context.Background(), spawn.LinkFD), stopProfiles()); err != nil {
				return fmt.Errorf("worker %d: %w", os.Getpid(), err)
			}
			return nil
		},
	}
}
