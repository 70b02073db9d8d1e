package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"causeway/host/daemon/api"
	"causeway/host/view"
)

// limitFlags change some limits and leave others.
type limitFlags struct{ memory, share, cap, sessions string }

func limitsCommand() *cobra.Command {
	var node nodeFlags
	var f limitFlags
	c := &cobra.Command{
		Use:   "limits VM[/NAME]",
		Short: "Show or change a vGPU's limits while programs run",
		Long: `Changes limits of a vGPU at once, while programs run; those not named stay. Without any, it shows them.

A memory limit below what is in use takes nothing away: allocations fail until enough was freed. The next start of the VM takes
its limits from the domain's XML again: change them there too (virsh edit, or causeway attach) if they are to last.`,
		Example: `  causeway limits vm1
  causeway limits vm1/gpu0 --memory 8GiB --share 300
  causeway limits vm1 --cap 25          # at most a quarter of the GPU's time
  causeway limits vm1 --cap none`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: node.complete,
		RunE: func(cmd *cobra.Command, args []string) error {
			_, v, err := node.findOne(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			was := currentLimits(v)
			now, err := f.apply(was)
			if err != nil {
				return err
			}
			if now != was {
				if err := node.setLimits(cmd.Context(), v, now); err != nil {
					return err
				}
			}
			if node.json {
				return printJSON(cmd.OutOrStdout(), now)
			}
			return view.Limits(cmd.OutOrStdout(), now)
		},
	}
	node.register(c)
	c.Flags().StringVar(&f.memory, "memory", "", "GPU memory, contexts included, as in 16GiB; none: the whole GPU")
	c.Flags().StringVar(&f.share, "share", "", fmt.Sprintf("share of the GPU's time when several want it, relative to others' (1 to %d; default %d)", api.MostWeight, api.DefaultWeight))
	c.Flags().StringVar(&f.cap, "cap", "", "most per cent of the GPU's time (1 to 100); none: no cap")
	c.Flags().StringVar(&f.sessions, "sessions", "", "most CUDA processes at once; none: the configuration's")
	return c
}

// currentLimits are those in force.
func currentLimits(v *api.VGPU) api.Limits {
	if v.Status != nil {
		return v.Status.Limits
	}
	return v.Spec.Limits
}

// apply returns limits with the flags' changes.
func (f *limitFlags) apply(l api.Limits) (api.Limits, error) {
	if f.memory != "" {
		n, err := noneOr(f.memory, api.ParseSize)
		if err != nil {
			return l, fmt.Errorf("--memory: %w", err)
		}
		l.Memory = n
	}
	for name, field := range map[string]struct {
		text string
		to   *uint32
	}{"share": {f.share, &l.Weight}, "cap": {f.cap, &l.Cap}, "sessions": {f.sessions, &l.Sessions}} {
		if field.text == "" {
			continue
		}
		n, err := noneOr(strings.TrimSuffix(field.text, "%"), parseCount)
		if err != nil {
			return l, fmt.Errorf("--%s: %w", name, err)
		}
		*field.to = uint32(n) // #nosec: parseCount bounds it
	}
	return l, l.Check()
}

// noneOr reads none as 0.
func noneOr(s string, parse func(string) (uint64, error)) (uint64, error) {
	if s == "none" {
		return 0, nil
	}
	return parse(s)
}

func parseCount(s string) (uint64, error) {
	n, err := strconv.ParseUint(s, 10, 32)
	if err != nil || n == 0 {
		return 0, fmt.Errorf("%q is no positive number; none takes the limit away", s)
	}
	return n, nil
}

// setLimits asks causewayd, or the device process if there is none.
func (f *nodeFlags) setLimits(ctx context.Context, v *api.VGPU, l api.Limits) error {
	c := f.client()
	defer c.Close()
	err := c.SetLimits(ctx, v.Spec.VM, v.Spec.Name, l)
	if !errors.Is(err, api.ErrNotRunning) {
		return err
	}
	device := api.NewClient(v.Control)
	defer device.Close()
	if err := device.Do(ctx, http.MethodPut, "/v1/limits", l, nil); err != nil {
		return fmt.Errorf("limits of %s: %w", v.Spec.Key(), err)
	}
	return nil
}
