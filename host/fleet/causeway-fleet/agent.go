package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	"causeway/host/api"
	"causeway/host/fleet/agent"
	"causeway/host/fleet/claim"
	"causeway/host/fleet/events"
	"causeway/host/fleet/publish"
)

// agentFlags are those of the command.
type agentFlags struct {
	node, address, connect, program, run, records string
	namespaces                                    []string
	every, patience, timeout                      time.Duration
	verbose                                       bool
}

func agentCommand(a *access) *cobra.Command {
	var f agentFlags
	host, _ := os.Hostname()
	c := &cobra.Command{
		Use:   "agent",
		Short: "Have this host's libvirt domains take part in the fleet, without a kubelet",
		Long: `Registers this host as a Node of the cluster, publishes its GPUs as causeway-dra does, and serves pods that stand for vGPUs of libvirt domains: the scheduler
gives a pod's claim its GPU, causewayd makes the vGPU, and libvirt plugs it into the domain that the pod's annotation ` + agent.DomainKey + ` names. The pod runs
while the domain has it, and waits until there is such a domain. When the pod is deleted the vGPU is taken out of the domain.

No container runs here: the Node has the taint ` + agent.Mark + ` and no cpu or memory. The agent needs the rights of a node (the user system:node:NAME of the group
system:nodes), a causewayd, and the program causeway with libvirt.`,
		Example: "  causeway-fleet agent --kubeconfig /etc/causeway/agent.kubeconfig\n  causeway-fleet agent --node vmhost3 --connect qemu:///system",
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return f.start(cmd.Context(), a) },
	}
	fl := c.Flags()
	fl.StringVar(&f.node, "node", strings.ToLower(host), "this host's `NAME` in Kubernetes")
	fl.StringVar(&f.address, "address", "", "`ADDRESS` of this host, for people who look at the Node")
	fl.StringVarP(&f.connect, "connect", "c", "", "libvirt's `ADDRESS` (default: libvirt's own, for root qemu:///system)")
	fl.StringVar(&f.program, "causeway", "causeway", "`PROGRAM` causeway of this host")
	fl.StringVar(&f.run, "run-dir", api.RunDir, "causewayd's run `FOLDER`")
	fl.StringVar(&f.records, "records", filepath.Join(api.StateDir, "agent"), "`FOLDER` where it is written down which domain has what")
	fl.StringSliceVar(&f.namespaces, "namespaces", nil, "`NAMES` of the namespaces whose pods may name domains of this host (default: all)")
	fl.DurationVar(&f.every, "interval", 5*time.Second, "how often causewayd is asked how its GPUs are")
	fl.DurationVar(&f.patience, "patience", 30*time.Second, "how long causewayd may not answer before its GPUs get no new claims")
	fl.DurationVar(&f.timeout, "timeout", 30*time.Second, "how long a guest may take to let go of a vGPU, before it is asked again")
	fl.BoolVarP(&f.verbose, "verbose", "v", false, "say more of what happens")
	return c
}

func (f *agentFlags) start(ctx context.Context, a *access) error {
	if f.node == "" {
		return errors.New("which node is this host to be? Give --node")
	}
	if f.every < time.Second || f.patience < f.every || f.timeout < time.Second {
		return fmt.Errorf("--interval %v, --patience %v, --timeout %v: use 1s or more, and a patience that is not shorter than the interval", f.every, f.patience, f.timeout)
	}
	program, err := exec.LookPath(f.program)
	if err != nil {
		return fmt.Errorf("--causeway: %w", err)
	}
	level := slog.LevelInfo
	if f.verbose {
		level = slog.LevelDebug
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level}))
	cl, _, err := a.connect()
	if err != nil {
		return err
	}
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	n := &agent.Node{Client: cl.client, Name: f.node, Version: version, Address: f.address, Log: log}
	node, err := n.Register(ctx)
	if err != nil {
		return err
	}
	d := api.NewDaemonClient(f.run)
	defer d.Close()
	recorder, end := events.Recorder(ctx, cl.client, corev1.EventSource{Component: "causeway-agent", Host: f.node})
	defer end()
	slices := &nodeSlices{client: cl.client, node: node, log: log}
	var wg sync.WaitGroup
	defer func() { fail(nil); wg.Wait(); slices.stop() }()
	p := &publish.Publisher{Node: f.node, Causewayd: d, Publish: slices.publish, Every: f.every, Patience: f.patience, Log: log}
	wg.Go(func() { p.Run(ctx) })
	wg.Go(func() {
		if err := n.RoutineBeat(ctx); err != nil {
			fail(err)
		}
	})
	log.Info("causeway-fleet agent serves pods of this node", "version", version, "node", f.node)
	err = (&agent.Agent{Client: cl.client, Node: f.node, Namespaces: f.namespaces, Causewayd: d, Records: agent.Dir(f.records), Log: log,
		Domains: &agent.Command{Program: program, Connect: f.connect, RunDir: f.run, Timeout: f.timeout},
		Events:  recorder}).Run(ctx)
	if cause := context.Cause(ctx); errors.Is(cause, agent.ErrGone) {
		return cause
	}
	return err
}

// nodeSlices are those that a node's agent writes; they go with the Node.
type nodeSlices struct {
	client     kubernetes.Interface
	node       *corev1.Node
	log        *slog.Logger
	controller *resourceslice.Controller
}

func (s *nodeSlices) publish(ctx context.Context, r resourceslice.DriverResources) error {
	if s.controller != nil {
		s.controller.Update(&r)
		return nil
	}
	c, err := resourceslice.StartController(ctx, resourceslice.Options{DriverName: claim.Driver, KubeClient: s.client, Resources: &r,
		Owner: &resourceslice.Owner{APIVersion: "v1", Kind: "Node", Name: s.node.Name, UID: s.node.UID},
		ErrorHandler: func(_ context.Context, err error, msg string) {
			s.log.Warn("GPUs are not published", "error", err, "at", msg)
		}})
	if err == nil {
		s.controller = c
	}
	return err
}

func (s *nodeSlices) stop() {
	if s.controller != nil {
		s.controller.Stop()
	}
}
