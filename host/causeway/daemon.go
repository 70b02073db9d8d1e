package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"os/signal"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"causeway/host/api"
	"causeway/host/daemon"
	"causeway/host/daemon/config"
	"causeway/host/daemon/process"
	"causeway/host/daemon/systemd"
)

// daemonFlags are what `causeway daemon` is told.
type daemonFlags struct {
	config  string
	run     string
	check   bool
	example bool
	verbose bool
}

func daemonCommand() *cobra.Command {
	var f daemonFlags
	c := &cobra.Command{
		Use:   "daemon",
		Short: "Run causewayd, which gives this host's VMs their virtual GPUs",
		Long: `Runs causewayd, one per host: it starts a device process for each virtual GPU that libvirt's hook, "causeway attach" or anybody
else asks for, places it on a GPU, holds limits, and tells how all of them are, at RUN/causewayd.sock.

What it starts outlives it: stop it, restart it, replace the program, and neither VMs nor their programs notice. The next one finds
again what runs. SIGTERM ends it, SIGHUP has it read its configuration again.

The configuration is one TOML file; none at the usual place means the defaults. --example prints it with every key and what it means,
--check says whether a file is right and prints what holds.`,
		Example: `  causeway daemon --example > /etc/causeway/causewayd.toml
  causeway daemon --check
  causeway daemon --run-dir /tmp/cw --verbose      # by hand, beside the host's own
  systemctl start causewayd`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if f.example {
				_, err := cmd.OutOrStdout().Write(config.Example())
				return err
			}
			given := cmd.Flags().Changed("config")
			load := func() (config.Config, error) { return f.load(given) }
			cfg, err := load()
			if err != nil {
				return err
			}
			if f.check {
				return printConfig(cmd.OutOrStdout(), &cfg)
			}
			return serveDaemon(cfg, load, hasScheduler(cmd), false, newLogger(daemonLevel(f.verbose)))
		},
	}
	f.register(c)
	c.Flags().BoolVar(&f.check, "check", false, "check the configuration, print what holds, and end")
	c.Flags().BoolVar(&f.example, "example", false, "print the documented configuration, and end")
	return c
}

// register is what all have that run causewayd.
func (f *daemonFlags) register(c *cobra.Command) {
	c.Flags().StringVar(&f.config, "config", api.ConfigFile, "configuration file")
	c.Flags().StringVar(&f.run, "run-dir", "", "run directory, in place of the configuration's run_dir; state and logs go below it")
	c.Flags().BoolVarP(&f.verbose, "verbose", "v", false, "say also what requests fail")
}

// hasScheduler reports whether this program can be one.
func hasScheduler(cmd *cobra.Command) bool {
	c, _, err := cmd.Root().Find([]string{"scheduler"})
	return err == nil && c != cmd.Root()
}

// daemonLevel: a daemon says what it does.
func daemonLevel(verbose bool) slog.Level {
	if verbose {
		return slog.LevelDebug
	}
	return slog.LevelInfo
}

// load reads the configuration. given: the file must be there.
func (f *daemonFlags) load(given bool) (config.Config, error) {
	cfg, err := config.Load(f.config)
	if errors.Is(err, fs.ErrNotExist) && !given {
		cfg, err = config.Default(), nil
	}
	if err != nil {
		return cfg, fmt.Errorf("configuration: %w", err)
	}
	if f.run != "" {
		cfg.Below(f.run)
		if err := cfg.Check(); err != nil {
			return cfg, fmt.Errorf("--run-dir: %w", err)
		}
	}
	return cfg, nil
}

func printConfig(w io.Writer, cfg *config.Config) error {
	b, err := cfg.Text()
	if err != nil {
		return err
	}
	_, err = w.Write(b)
	return err
}

// serveDaemon runs causewayd. ports: without one of the configuration's it ends.
func serveDaemon(cfg config.Config, load func() (config.Config, error), scheduler, ports bool, log *slog.Logger) error {
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM)
	defer stop()
	if err := process.CloseOnExec(); err != nil {
		return fmt.Errorf("keep descriptors to ourselves: %w", err)
	}
	program, err := os.Executable()
	if err != nil {
		return err
	}
	m, err := newMachine(&cfg)
	if err != nil {
		return err
	}
	defer m.Close()
	freeEnded(ctx, cfg.RunDir, "", log)
	o := daemon.Options{Config: cfg, Program: program, Scheduler: scheduler, Version: version, Machine: m, AllPorts: ports, Log: log}
	if systemd.Booted() {
		o.Scopes, o.Journal = &systemd.Scopes{}, &systemd.Journal{}
	}
	return daemon.Main(ctx, o, load)
}
