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
	"k8s.io/apimachinery/pkg/util/uuid"

	"causeway/host/fleet/controller"
	"causeway/host/fleet/events"
	"causeway/remote/mtls"
)

func controllerCommand(a *access) *cobra.Command {
	var o controller.Options
	var verbose bool
	var listen string
	c := &cobra.Command{
		Use:   "controller --config FILE",
		Short: "Offer GPUs of hosts over the network (a service: host/fleet/deploy/causeway-fleet.yaml)",
		Long: `Asks each GPU host of its configuration for a heartbeat, tells Kubernetes of the GPUs that those hosts offer over the network, and has a host keep
room for a claim before the claim's pod is bound. A claim that is gone, or allocated elsewhere, has nothing there from that moment on. Of several
controllers one leads; any may be stopped at any time. It runs with the rights of host/fleet/deploy/causeway-fleet.yaml.

FILE names the hosts, and by which labels the nodes are known that reach them and run causeway-dra:

  nodes: {causeway.dev/fabric: f1}
  hosts:
  - {name: gpu1}                                  # the name in its certificate, and in remote.servers of nodes' causewayds
  - {name: gpu2, address: "gpu2.example.net:7745"}
  - {name: node7, local: true}                    # the Node of that name: its own pods have its GPUs, too, one way at a time

It is read again every few seconds. A host with ` + "`leaving: true`" + ` gets no new claims; when the log says that nobody has a lease of it any more it may be taken out.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.Config == "" {
				return fmt.Errorf("which GPU hosts are there? Give --config FILE (`causeway-fleet controller --help` shows one)")
			}
			if o.Every < time.Second || o.Patience < 2*o.Every {
				return fmt.Errorf("--interval %v, --patience %v: use 1s or more, and a patience of twice that", o.Every, o.Patience)
			}
			level := slog.LevelInfo
			if verbose {
				level = slog.LevelDebug
			}
			o.Log = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level}))
			cl, namespace, err := a.connect()
			if err != nil {
				return err
			}
			if a.namespace == "" && os.Getenv("POD_NAMESPACE") != "" {
				namespace = os.Getenv("POD_NAMESPACE")
			}
			host, _ := os.Hostname()
			ctx := cmd.Context()
			recorder, end := events.Recorder(ctx, cl.client, corev1.EventSource{Component: "causeway-fleet"})
			defer end()
			o.Events = recorder
			o.Client, o.Namespace, o.Identity = cl.client, namespace, host+"_"+string(uuid.NewUUID())
			if listen == "" {
				return controller.Run(ctx, o)
			}
			return serveController(ctx, listen, o)
		},
	}
	fl := c.Flags()
	fl.StringVar(&o.Config, "config", "", "`FILE` that names the GPU hosts")
	o.Files = mtls.Files{}
	fl.StringVar(&o.Files.CA, "ca", "/etc/causeway/pki/ca.pem", "`FILE` of the authority of hosts' certificates")
	fl.StringVar(&o.Files.Certificate, "certificate", "/etc/causeway/pki/host.pem", "`FILE` of this controller's certificate, whose name GPU hosts have in remote.fleet")
	fl.StringVar(&o.Files.Key, "key", "/etc/causeway/pki/host-key.pem", "`FILE` of its key")
	fl.DurationVar(&o.Every, "interval", 5*time.Second, "how often a host is asked for its heartbeat")
	fl.DurationVar(&o.Patience, "patience", 30*time.Second, "how long a host may not answer before it gets no new claims")
	fl.BoolVar(&o.MayCome, "may-come", false, "FILE and the certificate need not be there yet; until then the fleet has no hosts")
	fl.StringVar(&listen, "listen", "", "`ADDRESS` on which /metrics, /healthz and /readyz are served, as in :9445 (default: nowhere)")
	fl.BoolVarP(&verbose, "verbose", "v", false, "say more of what happens")
	return c
}

// serveController runs a controller that answers for itself; one whose answers cannot be served
// does not begin.
func serveController(ctx context.Context, listen string, o controller.Options) error {
	o.Metrics, o.Health = controller.NewMetrics(), controller.NewHealth()
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", o.Metrics.Handler())
	o.Health.Register(mux)
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	done := make(chan error, 1)
	go func() {
		defer stop()
		done <- serve(ctx, &http.Server{Addr: listen, Handler: mux})
	}()
	err := controller.Run(ctx, o)
	stop()
	return errors.Join(err, <-done)
}
