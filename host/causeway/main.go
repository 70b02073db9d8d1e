package main

import (
	"errors"
	"fmt"
	"log/slog"
	"os"

	"github.com/spf13/cobra"

	"causeway/host/ratelog"
)

// version is set by the build: -ldflags "-X main.version=...".
var version = "dev"

func main() {
	nested()
	err := root().Execute()
	var exit exitStatus
	switch {
	case err == nil:
	case errors.As(err, &exit):
		exit.now()
	default:
		fmt.Fprintln(os.Stderr, "causeway:", err)
		os.Exit(exitCode(err))
	}
}

func root() *cobra.Command {
	c := &cobra.Command{
		Use:   "causeway",
		Short: "GPUs for virtual machines, without passing a device through",
		Long: `Causeway gives KVM guests NVIDIA GPUs without passing a device through. CUDA programs load Causeway's libcuda.so.1;
every driver call crosses a ring in shared memory to a worker on the host, which runs it on a real GPU, or on a
software GPU where there is none.`,
		Example: `  causeway run -- ./vectoradd
  causeway device --socket /run/causeway/vm1.sock --gpu auto --profile quarter
  causeway attach vm1 --profile quarter
  causeway gpus`,
		SilenceErrors: true,
		SilenceUsage:  true,
		Version:       version,
	}
	c.AddCommand(
		runCommand(),
		deviceCommand(),
		attachCommand(),
		detachCommand(),
		hookCommand(),
		daemonCommand(),
		serveCommand(), servePlainCommand(),
		slurmCommand(),
		schedulerCommand(),
		gpusCommand(),
		psCommand(),
		topCommand(),
		logsCommand(),
		inspectCommand(),
		doctorCommand(),
		limitsCommand(),
		moveCommand(), suspendCommand(), resumeCommand(),
		migrateCommand(), caCommand(), certifyCommand(), vfCommand(),
		profilesCommand(),
		createCommand(),
		deleteCommand(),
		rebuildCommand(),
		workerCommand(), keeperCommand(),
		inventoryCommand(),
		versionCommand(),
		manCommand(),
	)
	arrange(c)
	return c
}

// logger writes to stderr: errors and warnings always, information when asked.
func logger(verbose bool) *slog.Logger { return newLogger(level(verbose)) }

func newLogger(l slog.Level) *slog.Logger {
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: l}))
}

// bounded is log for a process that guests can have say things: burst lines at once, then so many a
// second.
func bounded(log *slog.Logger, burst int, rate float64) *slog.Logger {
	return slog.New(ratelog.New(log.Handler(), burst, rate))
}

func level(verbose bool) slog.Level {
	if verbose {
		return slog.LevelInfo
	}
	return slog.LevelWarn
}

func versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  cobra.NoArgs,
		Run:   func(cmd *cobra.Command, _ []string) { fmt.Fprintln(cmd.OutOrStdout(), "causeway", version) },
	}
}
