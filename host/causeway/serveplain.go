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
	c := &cobra.Command{
		Use:   "serve-plain --listen 127.0.0.1:PORT",
		Short: "Serve CUDA programs of this host over plain TCP",
		Long: `Serves CUDA programs that connect over TCP with CAUSEWAY=tcp://HOST:PORT and Causeway's library. Each connection gets a
worker of its own. Nothing is encrypted and nobody is asked who they are, so only loopback addresses are served. For other hosts' VMs and
programs there is causeway serve.`,
		Example: `  causeway serve-plain --listen 127.0.0.1:7070 --gpu auto
  CAUSEWAY=tcp://127.0.0.1:7070 LD_LIBRARY_PATH=/usr/lib/causeway ./vectoradd`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM)
			defer stop()
			return servePlain(ctx, &gpu, listen, lease, cmd.OutOrStdout())
		},
	}
	gpu.register(c)
	c.Flags().StringVar(&listen, "listen", "", "address to listen on; port 0 picks one")
	_ = c.MarkFlagRequired("listen")
	c.Flags().StringVar(&lease, "lease", "", "`FILE` to write for causeway run --relay: connections are a relay's, with TLS and this file's keys alone")
	_ = c.Flags().MarkHidden("lease") // what causeway serve does, without its causewayd, its authority and its leases
	return c
}

func servePlain(ctx context.Context, gpu *gpuFlags, listen, lease string, out interface{ Write([]byte) (int, error) }) error {
	cfg, err := gpu.config()
	if err != nil {
		return err
	}
	if err := fits(ctx, cfg, gpu.gpu); err != nil {
		return err
	}
	addr, err := loopback(listen, lease != "")
	if err != nil {
		return err
	}
	ln, err := net.ListenTCP("tcp", addr)
	if err != nil {
		return fmt.Errorf("cannot listen on %s (%w): choose another port, or 0 for any", listen, err)
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
	accept := func() (fileConn, error) { return ln.AcceptTCP() }
	if lease != "" {
		l, err := newLeased(ln, lease, srv.again, log)
		if err != nil {
			return errors.Join(err, ln.Close())
		}
		defer l.close()
		srv.cfg.TLS, accept = &l.keys, l.accept
	}
	fmt.Fprintf(out, "serving on tcp://%s\n", ln.Addr())
	srv.routineAccept(accept, link.CarrierTCP)
	if ctx.Err() == nil {
		return fmt.Errorf("stopped accepting on %s", ln.Addr())
	}
	srv.stop()
	return nil
}

// loopback resolves an address and refuses what other machines can reach, unless connections are secured.
func loopback(listen string, secured bool) (*net.TCPAddr, error) {
	addr, err := net.ResolveTCPAddr("tcp", listen)
	if err != nil {
		return nil, fmt.Errorf("--listen %q is no address (%w): write it as 127.0.0.1:7070", listen, err)
	}
	if !secured && (addr.IP == nil || !addr.IP.IsLoopback()) {
		return nil, fmt.Errorf("--listen %s can be reached from other machines, and there is no transport security: use 127.0.0.1, or `causeway serve` for other machines", listen)
	}
	return addr, nil
}
