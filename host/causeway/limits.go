package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/spf13/cobra"

	"causeway/host/api"
	"causeway/host/report"
)

func limitsCommand() *cobra.Command {
	var node nodeFlags
	var change api.Change
	c := &cobra.Command{
		Use:   "limits VM[/NAME]",
		Short: "Show or change a vGPU's limits while programs run",
		Long: `Changes limits of a vGPU at once, while programs run; those not named stay. Without any, it shows them.

A memory limit below what is in use takes nothing away: allocations fail until enough was freed. The next start of the VM takes
its limits from the domain's XML again: change them there too (virsh edit, or causeway attach) if they are to last. A limit that could not
hold is refused: more memory than is left, less than a CUDA context needs, a share or a cap where no scheduler runs.`,
		Example: `  causeway limits vm1
  causeway limits vm1/gpu0 --memory 8GiB --share 300
  causeway limits vm1 --profile half
  causeway limits vm1 --cap 25          # at most a quarter of the GPU's time
  causeway limits vm1 --cap none`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: node.complete,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := change.Check(); err != nil {
				return err
			}
			_, v, err := node.findOne(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			now := currentLimits(v)
			if change.Named() {
				if now, err = node.setLimits(cmd.Context(), v, change); err != nil {
					return err
				}
			}
			if node.json {
				return printJSON(cmd.OutOrStdout(), now)
			}
			if text := unlimited(v.Spec.Key(), now); text != "" && change.Named() {
				fmt.Fprintln(cmd.ErrOrStderr(), "warning:", text)
			}
			return report.Limits(cmd.OutOrStdout(), now)
		},
	}
	node.register(c)
	changeFlags(c, &node, &change)
	return c
}

// currentLimits are those in force.
func currentLimits(v *api.VGPU) api.Limits {
	if v.Status != nil {
		return v.Status.Limits
	}
	return v.Spec.Limits
}

// setLimits asks causewayd, or the device process if there is none.
func (f *nodeFlags) setLimits(ctx context.Context, v *api.VGPU, change api.Change) (api.Limits, error) {
	c := f.client()
	defer c.Close()
	now, err := c.SetLimits(ctx, v.Spec.VM, v.Spec.Name, change)
	if !errors.Is(err, api.ErrNotRunning) {
		return now, err
	}
	if change.Profile != "" {
		return now, fmt.Errorf("a profile is causewayd's to resolve, or name --memory and --share: %w", err)
	}
	device := api.NewDeviceClient(v.Control)
	defer device.Close()
	if err := device.Do(ctx, http.MethodPut, "/v1/limits", change, &now); err != nil {
		return now, fmt.Errorf("limits of %s: %w", v.Spec.Key(), err)
	}
	return now, nil
}
