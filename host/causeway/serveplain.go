package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os/signal"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"causeway/host/worker/link"
	"causeway/host/worker/spawn"
)

func servePlainCommand() *cobra.Command {
	var gpu gpuFlags
	var listen, lease string
	var networks []string
	c := &cobra.Command{
		Use:   "serve-plain --listen 127.0.0.1:PORT",
		Short: "Serve CUDA programs of this host over plain TCP",
		Long: `Serves CUDA programs that connect over TCP with CAUSEWAY=tcp://HOST:PORT and Causeway's library. Each connection gets a
worker of its own. Nothing is encrypted and nobody is asked who they are, so only loopback addresses are served. For other hosts' VMs and
programs there is causeway serve.

In a network of trusted machines alone --trusted-network has its addresses served in the place of loopback's: whoever is in it, or can pretend
to be, can use the GPUs, and who is on the way can read and change what programs send and get.`,
		Example: `  causeway serve-plain --listen 127.0.0.1:7070 --gpu auto
  CAUSEWAY=tcp://127.0.0.1:7070 LD_LIBRARY_PATH=/usr/lib/causeway ./vectoradd
  causeway serve-plain --listen 192.0.2.1:7070 --trusted-network 192.0.2.0/24`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM)
			defer stop()
			return servePlain(ctx, &gpu, listen, lease, networks, cmd.OutOrStdout())
		},
	}
	gpu.register(c)
	c.Flags().StringVar(&listen, "listen", "", "address to listen on; port 0 picks one")
	_ = c.MarkFlagRequired("listen")
	c.Flags().StringVar(&lease, "lease", "", "`FILE` to write for causeway run --relay: connections are a relay's, with TLS and this file's keys alone")
	c.Flags().StringArrayVar(&networks, "trusted-network", nil, "`NETWORK`, as in 192.0.2.0/24, whose addresses are listened on and served without transport security, and no others; may repeat (default: loopback)")
	c.MarkFlagsMutuallyExclusive("lease", "trusted-network")
	// What causeway serve does, without its causewayd, its authority and its leases.
	_ = c.Flags().MarkHidden("lease")
	return c
}

func servePlain(ctx context.Context, gpu *gpuFlags, listen, lease string, networks []string, out interface{ Write([]byte) (int, error) }) error {
	cfg, err := gpu.config()
	if err != nil {
		return err
	}
	if err := fits(ctx, cfg, gpu.gpu); err != nil {
		return err
	}
	nets, err := parseTrusted(networks)
	if err != nil {
		return err
	}
	where := nets.address
	if lease != "" {
		where = resolve // secured
	}
	addr, err := where(listen)
	if err != nil {
		return err
	}
	ln, err := net.ListenTCP("tcp", addr)
	if err != nil {
		way := "choose another port, or 0 for any"
		if errors.Is(err, unix.EADDRNOTAVAIL) {
			way = "this host has no such address: `ip address` lists those that it has"
		}
		return fmt.Errorf("cannot listen on %s (%w): %s", listen, err, way)
	}
	context.AfterFunc(ctx, func() { _ = ln.Close() })
	log := logger(gpu.verbose)
	space, err := gpu.sandbox.space(cfg, log)
	if err != nil {
		return errors.Join(err, ln.Close())
	}
	defer space.Close()
	srv := newServer(&spawn.Spawner{NoNewPrivs: true, Sandbox: space}, cfg, log)
	srv.keepWarm(gpu.warm, false)
	accept := func() (fileConn, error) { return nets.accept(ln, log) }
	if lease != "" {
		l, err := newLeased(ln, lease, srv.again, log)
		if err != nil {
			return errors.Join(err, ln.Close())
		}
		defer l.close()
		srv.cfg.TLS, accept = &l.keys, l.accept
	}
	if len(networks) > 0 {
		log.Warn("nothing is encrypted and nobody is asked who they are: whoever is in these networks can use the GPUs, and read and change what goes over them", "trusted", networks)
	}
	fmt.Fprintf(out, "serving on tcp://%s\n", ln.Addr())
	srv.routineAccept(accept, link.CarrierTCP)
	if ctx.Err() == nil {
		return fmt.Errorf("stopped accepting on %s", ln.Addr())
	}
	srv.stop()
	return nil
}
