package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"

	"causeway/host/fleet/events"
	"causeway/host/fleet/web"
)

// webFlags are those of the command.
type webFlags struct {
	listen string
	every  time.Duration
	events bool
}

func webCommand(a *access) *cobra.Command {
	var f webFlags
	c := &cobra.Command{
		Use:   "web",
		Short: "Serve a page that shows the fleet, and its metrics",
		Long: `Serves on one address, read-only:

  /            hosts, their GPUs, claims with their vGPUs and why one waits, leases of GPUs of other hosts, and VMs that are being moved; live
  /fleet.json  the same for programs, as "causeway-fleet ls --format json" prints it
  /metrics     for Prometheus
  /readyz      whether the fleet has been read

It watches the API server with the rights of who starts it: node and pod names, claims and their events of all namespaces are seen by whoever reaches the address.
It asks nobody who he is, so it listens on this machine alone unless told otherwise: put what asks before it, or use "kubectl port-forward".`,
		Example: "  causeway-fleet web\n  kubectl -n causeway port-forward service/causeway-web 8080:80",
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return f.run(cmd.Context(), a) },
	}
	c.Flags().StringVar(&f.listen, "listen", "127.0.0.1:8080", "`ADDRESS` to serve on")
	c.Flags().BoolVar(&f.events, "events", false, "tell pods by events that they name a claim which their namespace has not, as nobody else does (takes the right to make events)")
	c.Flags().DurationVar(&f.every, "interval", 3*time.Second, "how often the page is made anew, 1s or more")
	return c
}

func (f *webFlags) run(ctx context.Context, a *access) error {
	if f.every < time.Second {
		return fmt.Errorf("--interval %v: use 1s or more", f.every)
	}
	if a.namespace != "" {
		return errors.New("the page shows all namespaces: leave --namespace out")
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	cl, _, err := a.connect()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	w, err := watch(ctx, cl.client)
	if err != nil {
		return err
	}
	source := &web.Source{Read: w.read, Every: f.every, Log: log}
	done := make(chan struct{})
	go func() { source.Run(ctx); close(done) }()
	defer func() { cancel(); <-done }()
	if f.events {
		recorder, end := events.Recorder(ctx, cl.client, corev1.EventSource{Component: "causeway-fleet"})
		m, ended := &missing{Cluster: w, events: recorder, log: log}, make(chan struct{})
		go func() { m.run(ctx); end(); close(ended) }()
		defer func() { cancel(); <-ended }()
	}
	mux := http.NewServeMux()
	if err := (&web.Page{Source: source, Version: version}).Register(mux); err != nil {
		return err
	}
	mux.Handle("GET /metrics", web.Metrics(source, version))
	mux.HandleFunc("GET /readyz", func(to http.ResponseWriter, _ *http.Request) {
		if seen := source.Seen(); seen.Fleet == nil {
			http.Error(to, fmt.Sprint("the fleet is not read yet: ", seen.Err), http.StatusServiceUnavailable)
		}
	})
	log.Info("causeway-fleet serves the page", "version", version, "listen", f.listen)
	return serve(ctx, &http.Server{Addr: f.listen, Handler: mux})
}
