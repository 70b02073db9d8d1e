package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"causeway/host/api"
	"causeway/host/daemon/config"
)

// serveFlags are what `causeway serve` is told besides what causewayd is.
type serveFlags struct {
	listen string
	allow  []string
	pki    string
}

func serveCommand() *cobra.Command {
	var f daemonFlags
	var s serveFlags
	c := &cobra.Command{
		Use:   "serve",
		Short: "Run causewayd as a GPU server for other hosts' VMs",
		Long: `Runs causewayd with a network listener: hosts that have a certificate of the same authority (causeway ca) get vGPUs of this machine for their VMs and
programs, with limits, shares, sandboxed workers, metrics and drains as on a node of their own (docs/REMOTE.md). It is causeway daemon with remote.listen set:
the service causewayd does the same with that key in its configuration, and one of the two runs on a machine.`,
		Example: `  causeway serve
  causeway serve --listen 192.0.2.1:7745 --allow hosta,hostb
  causeway serve --run-dir /tmp/cw --pki ./pki/gpu1 --listen 127.0.0.1:7745 -v`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			given := cmd.Flags().Changed("config")
			load := func() (config.Config, error) { return s.load(&f, given) }
			cfg, err := load()
			if err != nil {
				return err
			}
			return serveDaemon(cfg, load, hasScheduler(cmd), true, newLogger(daemonLevel(f.verbose)))
		},
	}
	f.register(c)
	c.Flags().StringVar(&s.listen, "listen", "", "`ADDRESS:PORT`, in place of the configuration's remote.listen (default \":"+api.RemotePort+"\")")
	c.Flags().StringSliceVar(&s.allow, "allow", nil, "`HOSTS` that may have vGPUs here, in place of the configuration's remote.allow")
	c.Flags().StringVar(&s.pki, "pki", "", "`FOLDER` of ca.pem, host.pem and host-key.pem, in place of those of the configuration's [migration]")
	return c
}

// load reads causewayd's configuration, and has it listen.
func (s *serveFlags) load(f *daemonFlags, given bool) (config.Config, error) {
	cfg, err := f.load(given)
	if err != nil {
		return cfg, err
	}
	if s.listen != "" {
		cfg.Remote.Listen = s.listen
	}
	if cfg.Remote.Listen == "" {
		cfg.Remote.Listen = ":" + api.RemotePort
	}
	if s.allow != nil {
		cfg.Remote.Allow = s.allow
	}
	if s.pki != "" {
		cfg.Migration.In(s.pki)
	}
	if err := cfg.Check(); err != nil {
		return cfg, fmt.Errorf("causeway serve: %w", err)
	}
	return cfg, nil
}
