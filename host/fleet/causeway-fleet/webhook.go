package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"causeway/host/fleet/kubevirt"
	"causeway/host/fleet/webhook"
)

// webhookFlags are those of the command.
type webhookFlags struct {
	listen, metrics, certificate, key string
	service, secret, config           string
	clientCA                          string
	clientNames                       []string
}

func webhookCommand(a *access) *cobra.Command {
	var f webhookFlags
	c := &cobra.Command{
		Use:   "webhook",
		Short: "Serve the admission webhook that gives KubeVirt's VMs vGPUs",
		Long: `Answers the API server's questions about two kinds of objects:

  ` + kubevirt.PodsPath + `        pods of KubeVirt's VMs that have the label ` + kubevirt.Label + `: the virtiofsd of the filesystems gpu0 and on goes, and QEMU's container gets the claim
  ` + kubevirt.MigrationsPath + `  migrations: a VM whose programs have sessions with a GPU stays where it is

It keeps its own certificate, in a Secret that all replicas share, and has the API server trust it; or it uses --certificate and --key, which are read again when
they change. It answers the API server alone, which shows the last part of a path that is in its configuration and nowhere else, or a certificate of --client-ca. host/fleet/deploy has the Deployment, the rights that it takes, and the configurations by which the API server calls it: docs/KUBERNETES.md.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd.Context(), a) },
	}
	fl := c.Flags()
	fl.StringVar(&f.listen, "listen", ":9443", "`ADDRESS` to serve on, with TLS")
	fl.StringVar(&f.metrics, "metrics", ":9444", "`ADDRESS` for /metrics, without TLS; empty: none")
	fl.StringVar(&f.service, "service", "causeway-webhook", "`NAME` of the Service before it, in the namespace of -n")
	fl.StringVar(&f.secret, "secret", "causeway-webhook-tls", "`NAME` of the Secret with the certificate, there")
	fl.StringVar(&f.config, "configuration", "causeway-kubevirt", "`NAME` of the MutatingWebhookConfiguration and the ValidatingWebhookConfiguration")
	fl.StringVar(&f.certificate, "certificate", "", "`FILE` with a certificate that somebody else keeps, and has the API server trust")
	fl.StringVar(&f.key, "key", "", "`FILE` with its key")
	fl.StringVar(&f.clientCA, "client-ca", "", "`FILE` with the authority of the API server's client certificate, without which nobody is answered; empty: none is asked for")
	fl.StringSliceVar(&f.clientNames, "client-name", nil, "`NAME` in that certificate; may be given several times")
	c.MarkFlagsRequiredTogether("certificate", "key")
	c.MarkFlagsRequiredTogether("client-ca", "client-name")
	return c
}

func (f *webhookFlags) run(ctx context.Context, a *access) error {
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	cl, namespace, err := a.connect()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	clients, err := f.clients()
	if err != nil {
		cancel()
		return err
	}
	certificate, token, wait, err := f.certified(ctx, cl, namespace, log)
	defer func() { cancel(); wait() }()
	if err != nil {
		return err
	}
	counts := webhook.NewCounts(func() float64 {
		if c, err := certificate(nil); err == nil {
			return float64(c.Leaf.NotAfter.Unix())
		}
		return 0
	})
	questions := http.NewServeMux()
	(&kubevirt.Webhook{Cluster: launchers{cl}, Log: log, Answered: counts.Answered}).Register(questions)
	mux := http.NewServeMux()
	mux.Handle("/", webhook.NewGuard(webhook.Guard{Token: token, Clients: clients, Names: f.clientNames, Refused: counts.Unauthenticated, Next: questions}))
	mux.HandleFunc("GET /readyz", func(to http.ResponseWriter, _ *http.Request) {
		if token != nil && token() == "" {
			http.Error(to, "it has no certificate yet", http.StatusServiceUnavailable)
		}
	})
	log.Info("causeway-fleet serves the webhook", "version", version, "listen", f.listen)
	servers := []*http.Server{{Addr: f.listen, Handler: mux, TLSConfig: webhook.TLS(certificate, clients)}}
	if f.metrics != "" {
		shown := http.NewServeMux()
		shown.Handle("GET /metrics", counts.Handler())
		servers = append(servers, &http.Server{Addr: f.metrics, Handler: shown})
	}
	return serveAll(ctx, servers)
}

// clients is whose certificates the API server shows one of; nil: of nobody's.
func (f *webhookFlags) clients() (*x509.CertPool, error) {
	if f.clientCA == "" {
		return nil, nil
	}
	text, err := os.ReadFile(f.clientCA)
	if err != nil {
		return nil, fmt.Errorf("--client-ca: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("--client-ca: %s has no certificate", f.clientCA)
	}
	return pool, nil
}

// certified is the certificate that is served, and the token that the API server shows: "" until
// there are both, nil where somebody else keeps the certificate. wait ends what keeps them.
func (f *webhookFlags) certified(ctx context.Context, cl *cluster, namespace string, log *slog.Logger) (
	certificate func(*tls.ClientHelloInfo) (*tls.Certificate, error), token func() string, wait func(), _ error) {
	if f.certificate != "" {
		files := &webhook.Files{Path: f.certificate, KeyPath: f.key}
		_, err := files.Certificate(nil)
		return files.Certificate, nil, func() {}, err
	}
	k := &webhook.Keeper{Store: &webhook.Secret{Client: cl.client, Namespace: namespace, Name: f.secret, Configuration: f.config},
		Names: []string{f.service + "." + namespace + ".svc"}, Log: log}
	done := make(chan struct{})
	go func() { k.Run(ctx); close(done) }()
	return k.Certificate, k.Token, func() { <-done }, nil
}

// serveAll serves until ctx ends, or one of them cannot.
func serveAll(ctx context.Context, servers []*http.Server) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan error, len(servers))
	for _, s := range servers {
		go func() { ended <- serve(ctx, s) }()
	}
	var errs []error
	for range servers {
		errs = append(errs, <-ended)
		cancel() // one that ends takes the others along
	}
	return errors.Join(errs...)
}

// serve serves until ctx ends, and lets questions that are under way have their answers.
func serve(ctx context.Context, s *http.Server) error {
	s.ReadHeaderTimeout, s.ReadTimeout, s.WriteTimeout, s.IdleTimeout = 5*time.Second, 15*time.Second, 30*time.Second, 2*time.Minute
	s.MaxHeaderBytes = 64 << 10
	ln, err := net.Listen("tcp", s.Addr)
	if err != nil {
		return fmt.Errorf("serve on %s: %w", s.Addr, err)
	}
	failed := make(chan error, 1)
	go func() {
		if s.TLSConfig != nil {
			failed <- s.ServeTLS(webhook.Bounded(ln), "", "")
		} else {
			failed <- s.Serve(ln)
		}
	}()
	select {
	case err := <-failed:
		return fmt.Errorf("serve on %s: %w", s.Addr, err)
	case <-ctx.Done():
	}
	ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	if err := s.Shutdown(ending); err != nil && !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return nil
}

// launchers is the API server as the webhook needs it.
type launchers struct{ *cluster }

var _ kubevirt.Cluster = launchers{}

// Claim implements kubevirt.Cluster, as the rest does.
func (l launchers) Claim(ctx context.Context, namespace, name string) (*resourceapi.ResourceClaim, error) {
	return l.client.ResourceV1().ResourceClaims(namespace).Get(ctx, name, metav1.GetOptions{})
}

// Template is the API server's.
func (l launchers) Template(ctx context.Context, namespace, name string) (*resourceapi.ResourceClaimTemplate, error) {
	return l.client.ResourceV1().ResourceClaimTemplates(namespace).Get(ctx, name, metav1.GetOptions{})
}

// Class is the API server's.
func (l launchers) Class(ctx context.Context, name string) (*resourceapi.DeviceClass, error) {
	return l.client.ResourceV1().DeviceClasses().Get(ctx, name, metav1.GetOptions{})
}

// Launchers are found by the labels that IsLauncher looks at.
func (l launchers) Launchers(ctx context.Context, namespace string) ([]corev1.Pod, error) {
	list, err := l.client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: strings.Join([]string{kubevirt.Selector, kubevirt.Label}, ",")})
	if err != nil {
		return nil, err
	}
	return list.Items, nil
}
