// Command causeway-fleet is for people who look after a fleet on Kubernetes: what GPUs there are,
// who has them, who waits and why. See docs/KUBERNETES.md.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"causeway/host/fleet/overview"
)

// Exit statuses: exitWaited is that the time was up.
const (
	exitFailed = 1
	exitWaited = 3
)

// version is set by the build.
var version = "dev"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := root().ExecuteContext(ctx)
	if err == nil {
		return
	}
	fmt.Fprintln(os.Stderr, "causeway-fleet:", err)
	if errors.Is(err, overview.ErrWaited) {
		os.Exit(exitWaited)
	}
	os.Exit(exitFailed)
}

func root() *cobra.Command {
	var a access
	c := &cobra.Command{
		Use:   "causeway-fleet",
		Short: "See and operate the GPUs of a fleet on Kubernetes",
		Long: `Shows the GPUs of all nodes with what claims have of them, makes claims, and drains nodes. It asks Kubernetes' API server alone (top also a Prometheus), with your own
rights, and finds it as kubectl does. On one node, causeway has its own commands: causeway ps, top, gpus.`,
		Version: version, SilenceUsage: true, SilenceErrors: true,
	}
	fl := c.PersistentFlags()
	fl.StringVar(&a.kubeconfig, "kubeconfig", "", "`FILE` that says how the API server is reached (default: $KUBECONFIG, ~/.kube/config, or as a pod is told)")
	fl.StringVar(&a.context, "context", "", "`NAME` of the context in it")
	fl.StringVarP(&a.namespace, "namespace", "n", "", "`NAME` of the namespace (default: the context's)")
	c.AddCommand(lsCommand(&a), topCommand(&a), claimCommand(&a), drainCommand(&a), controllerCommand(&a))
	c.AddCommand(webhookCommand(&a), webCommand(&a), agentCommand(&a))
	for _, sub := range c.Commands() {
		explainArgs(sub)
	}
	return c
}

// explainArgs has a wrong number of arguments answered with what the command takes.
func explainArgs(c *cobra.Command) {
	check := c.Args
	if check == nil {
		return
	}
	c.Args = func(cmd *cobra.Command, args []string) error {
		if err := check(cmd, args); err != nil {
			return fmt.Errorf("%w: use `%s`; `%s --help` says more", err, cmd.UseLine(), cmd.CommandPath())
		}
		return nil
	}
}

// limited is a context that ends with a time; 0: it does not.
func limited(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	if d <= 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, d)
}
