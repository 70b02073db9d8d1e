package main

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"causeway/host/fleet/overview"
	"causeway/host/report"
)

// claimFlags are those of the command.
type claimFlags struct {
	ask     overview.Ask
	print   bool
	noWait  bool
	timeout time.Duration
}

func claimCommand(a *access) *cobra.Command {
	var f claimFlags
	c := &cobra.Command{
		Use:   "claim NAME",
		Short: "Make a claim for a vGPU, and wait until it has its GPU",
		Long: `Makes a ResourceClaim of that name and waits until Kubernetes has allocated a GPU to it, saying why it waits whenever the reason is another.
Kubernetes gives a claim its GPU when a pod that names it is scheduled: start one from elsewhere, or use --no-wait. It names the claim so:

  spec:
    resourceClaims: [{name: vgpu, resourceClaimName: NAME}]
    containers:
    - name: ...
      resources: {claims: [{name: vgpu}]}

The claim stays when the wait ends: "kubectl delete resourceclaim NAME" removes it. Exit status 3: the time was up.`,
		Example: `  causeway-fleet claim train --memory 16GiB --compute 25
  causeway-fleet claim train --memory 16GiB --cap 50 --no-wait
  causeway-fleet claim vm1 --vm --count 2 --memory 40GiB
  causeway-fleet claim train --memory 16GiB --print | kubectl apply -f -`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error { return f.run(cmd, a, args[0]) },
	}
	fl := c.Flags()
	fl.StringVar(&f.ask.Memory, "memory", "", "GPU memory, contexts included, as `16GiB` or, as in manifests, 16Gi (default: all that one GPU has for claims)")
	fl.Uint32Var(&f.ask.Compute, "compute", 0, "hundredths of the GPU's time that are promised, 0 to 100")
	fl.Uint32Var(&f.ask.Cap, "cap", 0, "most hundredths of the GPU's time, 1 to 100 (default: no cap)")
	fl.IntVar(&f.ask.Count, "count", 1, "GPUs, all of one node and each another; more than 1 with --vm")
	fl.BoolVar(&f.ask.VM, "vm", false, "for QEMU in the pod, not for programs of the container")
	fl.StringVar(&f.ask.Path, "path", "", "local: a GPU of the pod's own node; network: one of another host (default: any)")
	fl.StringVar(&f.ask.Class, "class", overview.Class, "DeviceClass")
	fl.BoolVar(&f.print, "print", false, "print the claim, and make none")
	fl.BoolVar(&f.noWait, "no-wait", false, "make the claim, and do not wait")
	fl.DurationVar(&f.timeout, "timeout", 5*time.Minute, "how long to wait; 0: without end")
	c.MarkFlagsMutuallyExclusive("print", "no-wait")
	return c
}

func (f *claimFlags) run(cmd *cobra.Command, a *access, name string) error {
	f.ask.Name, f.ask.Namespace = name, a.namespace
	rc, err := f.ask.Claim()
	if err != nil {
		return err
	}
	out := report.Safe(cmd.OutOrStdout())
	if f.print {
		e := json.NewEncoder(cmd.OutOrStdout())
		e.SetIndent("", "  ")
		return e.Encode(rc)
	}
	cl, namespace, err := a.connect()
	if err != nil {
		return err
	}
	rc.Namespace = namespace
	ctx, cancel := limited(cmd.Context(), f.timeout)
	defer cancel()
	if err := cl.create(ctx, rc); err != nil {
		return err
	}
	fmt.Fprintf(out, "claim %s/%s made\n", namespace, name)
	if f.noWait {
		return nil
	}
	return overview.AwaitAllocated(ctx, cl, namespace, name, func(text string) { fmt.Fprintln(out, text) })
}
