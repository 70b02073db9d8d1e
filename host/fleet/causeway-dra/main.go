// Command causeway-dra is Causeway's driver for Kubernetes' dynamic resource allocation, one on
// each node beside causewayd: docs/KUBERNETES.md.
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/record"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	"causeway/host/api"
	"causeway/host/fleet/cdi"
	"causeway/host/fleet/claim"
	"causeway/host/fleet/events"
	"causeway/host/fleet/node"
	"causeway/host/fleet/publish"
)

// Exit statuses.
const exitFailed = 1

// version is set by the build.
var version = "dev"

// flags of the command.
type flags struct {
	node, kubeconfig, run, cdi, lib, plugins, registry, pods string
	pod                                                      string
	every, patience                                          time.Duration
	byFleet, verbose                                         bool
}

func main() {
	var f flags
	c := &cobra.Command{
		Use:   "causeway-dra --node NAME",
		Short: "Kubernetes' driver for Causeway's vGPUs on this node",
		Long: `Publishes this node's GPUs to Kubernetes as devices that many claims may share, and has causewayd make a vGPU for each claim of a pod here:
for CUDA programs in containers, or for QEMU in a pod. It asks causewayd for everything, by its socket, and may be stopped and started at any time.`,
		Version: version, Args: cobra.NoArgs, SilenceUsage: true, SilenceErrors: true,
		RunE: func(*cobra.Command, []string) error { return run(&f) },
	}
	fl := c.Flags()
	fl.StringVar(&f.node, "node", os.Getenv("NODE_NAME"), "this node's `NAME` in Kubernetes (default: $NODE_NAME)")
	fl.StringVar(&f.kubeconfig, "kubeconfig", "", "`FILE` that says how the API server is reached (default: as a pod is told)")
	fl.StringVar(&f.run, "run-dir", api.RunDir, "causewayd's run `FOLDER`")
	fl.StringVar(&f.cdi, "cdi", "/var/run/cdi", "`FOLDER` where the container runtime looks for specifications of devices")
	fl.StringVar(&f.lib, "lib", "/usr/lib/causeway", "`FOLDER` of the libraries that containers get")
	fl.StringVar(&f.plugins, "plugins", kubeletplugin.KubeletPluginsDir+"/"+claim.Driver, "the kubelet's `FOLDER` for this driver")
	fl.StringVar(&f.registry, "registry", kubeletplugin.KubeletRegistryDir, "`FOLDER` where the kubelet finds drivers")
	fl.StringVar(&f.pods, "pod-resources", node.PodResources, "`SOCKET` where the kubelet says which claims containers have")
	fl.StringVar(&f.pod, "pod-uid", os.Getenv("POD_UID"), "`UID` of the pod that this is, so that its successor may start before it ends (default: $POD_UID)")
	fl.DurationVar(&f.every, "interval", 5*time.Second, "how often causewayd is asked how its GPUs are")
	fl.DurationVar(&f.patience, "patience", 30*time.Second, "how long causewayd may not answer before its GPUs get no new claims")
	fl.BoolVar(&f.byFleet, "offered-by-fleet", false, "the fleet's controller publishes this node's GPUs (local: true in its configuration), for pods here and elsewhere")
	fl.BoolVarP(&f.verbose, "verbose", "v", false, "say more of what happens")
	if err := c.Execute(); err != nil {
		fmt.Fprintln(os.Stderr, "causeway-dra:", err)
		os.Exit(exitFailed)
	}
}

func run(f *flags) error {
	if f.node == "" {
		return errors.New("which node is this? Give --node or NODE_NAME")
	}
	if f.every < time.Second || f.patience < f.every {
		return fmt.Errorf("--interval %v, --patience %v: use 1s or more, and a patience that is not shorter", f.every, f.patience)
	}
	level := slog.LevelInfo
	if f.verbose {
		level = slog.LevelDebug
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level}))
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	client, err := connect(f.kubeconfig)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(f.plugins, 0o750); err != nil {
		return err
	}
	kubelet, err := node.NewKubelet(f.pods)
	if err != nil {
		return err
	}
	defer kubelet.Close()
	d := api.NewDaemonClient(f.run)
	defer d.Close()
	recorder, end := events.Recorder(ctx, client, corev1.EventSource{Component: "causeway-dra", Host: f.node})
	defer end()
	p := &publish.Publisher{Node: f.node, Causewayd: d, Every: f.every, Patience: f.patience, OfferedByFleet: f.byFleet, Log: log}
	driver := &node.Driver{
		Devices: p.Devices,
		Node:    f.node, RunDir: f.run, Causewayd: d, CDI: cdi.Dir(f.cdi), Libraries: cdi.Libraries{Folder: f.lib}, Fatal: fail, Log: log,
		Cluster: cluster{client}, Pods: kubelet,
		Refused: refusals(recorder),
	}
	if f.byFleet {
		driver.Pool = claim.PoolOf(f.node)
	}
	helper, err := kubeletplugin.Start(ctx, driver, kubeletplugin.DriverName(claim.Driver), kubeletplugin.KubeClient(client), kubeletplugin.NodeName(f.node),
		kubeletplugin.PluginDataDirectoryPath(f.plugins), kubeletplugin.RegistrarDirectoryPath(f.registry), kubeletplugin.RollingUpdate(types.UID(f.pod)))
	if err != nil {
		return fmt.Errorf("serve the kubelet: %w", err)
	}
	defer helper.Stop()
	p.Publish = func(ctx context.Context, r resourceslice.DriverResources) error {
		return helper.PublishResources(ctx, r)
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { p.Run(ctx) })
	wg.Go(func() { driver.RoutineSweep(ctx, cluster{client}.cachedClaim, cluster{client}.Claim, sweepEvery) })
	sessions := &node.Sessions{Causewayd: d, CDI: cdi.Dir(f.cdi), Claims: cluster{client}.Claim, Write: cluster{client}.setStatus, Every: f.every, Log: log}
	wg.Go(func() { sessions.Run(ctx) })
	log.Info("causeway-dra serves the kubelet", "version", version, "node", f.node)
	<-ctx.Done()
	if err := context.Cause(ctx); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// sweepEvery is how often it is looked for claims that are over while the kubelet says nothing: one
// read from the API server's memory for each claim that is prepared here.
const sweepEvery = 10 * time.Second

// refusals has claims say by events why they are refused. (Their pods say it by the kubelet's.)
func refusals(recorder record.EventRecorder) func(claim.ID, error) {
	return func(c claim.ID, why error) {
		recorder.Event(&corev1.ObjectReference{APIVersion: "resource.k8s.io/v1", Kind: "ResourceClaim", Namespace: c.Namespace, Name: c.Name, UID: c.UID},
			corev1.EventTypeWarning, "CausewayRefused", why.Error())
	}
}

// connect makes the client of the API server.
func connect(kubeconfig string) (kubernetes.Interface, error) {
	cfg, err := restConfig(kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("how the API server is reached: %w", err)
	}
	cfg.UserAgent = "causeway-dra/" + version
	// The server has its own fairness. The client's limit, 5 calls in a second, would have a node
	// with 60 claims look at them every 12 s, and the kubelet's calls wait behind that.
	cfg.QPS = -1
	return kubernetes.NewForConfig(cfg)
}

// restConfig is that of the file, or of the pod that this is.
func restConfig(kubeconfig string) (*rest.Config, error) {
	if kubeconfig != "" {
		return clientcmd.BuildConfigFromFlags("", kubeconfig)
	}
	cfg, err := rest.InClusterConfig()
	if errors.Is(err, rest.ErrNotInCluster) {
		return nil, errors.New("no --kubeconfig is given, and this is no pod: give one with a token of the node (docs/KUBERNETES.md has it as /etc/causeway/dra.kubeconfig)")
	}
	return cfg, err
}

// cluster is the API server.
type cluster struct{ client kubernetes.Interface }

// Claim implements node.Cluster.
func (c cluster) Claim(ctx context.Context, namespace, name string) (*resourceapi.ResourceClaim, error) {
	return c.client.ResourceV1().ResourceClaims(namespace).Get(ctx, name, metav1.GetOptions{})
}

// cachedClaim is Claim as the API server has it in memory, which may be a little old.
func (c cluster) cachedClaim(ctx context.Context, namespace, name string) (*resourceapi.ResourceClaim, error) {
	return c.client.ResourceV1().ResourceClaims(namespace).Get(ctx, name, metav1.GetOptions{ResourceVersion: "0"})
}

// setStatus has a claim's status be so.
func (c cluster) setStatus(ctx context.Context, rc *resourceapi.ResourceClaim) error {
	_, err := c.client.ResourceV1().ResourceClaims(rc.Namespace).UpdateStatus(ctx, rc, metav1.UpdateOptions{})
	return err
}
