package main

import (
	"context"
	"fmt"
	"net/http"
	"strings"

	"github.com/spf13/cobra"

	"causeway/host/api"
	"causeway/host/device"
	"causeway/host/report"
)

func suspendCommand() *cobra.Command {
	return moveAll("suspend", "suspended", "hold them until their programs go on", &cobra.Command{
		Use:   "suspend VM[/NAME]",
		Short: "Free the GPU memory of a VM's idle programs until they go on",
		Long: `Takes the CUDA programs of a VM off the GPU: their memory and contexts are kept in the host's memory, zeros not counted, and their worker
processes end. The VM and its programs run on and notice nothing; the next CUDA call of a program brings it back by itself, as
"causeway resume" does at once. If the GPU has no room then, the program waits until it has.

A program that is at work is not suspended, and is named: what the GPU does for it ends within a second and a half, or it stays.`,
		Example: "  causeway suspend vm1\n  causeway inspect vm1       # state: suspended",
	})
}

func resumeCommand() *cobra.Command {
	return moveAll("resume", "resumed", "held them", &cobra.Command{
		Use:     "resume VM[/NAME]",
		Short:   "Bring suspended programs back to the GPU",
		Long:    `Brings the CUDA programs that "causeway suspend" has taken off the GPU back, before they ask for it themselves.`,
		Example: "  causeway resume vm1",
	})
}

// moveAll makes c ask device processes to do something with all their sessions.
func moveAll(path, done, holds string, c *cobra.Command) *cobra.Command {
	var node nodeFlags
	c.Args, c.ValidArgsFunction = cobra.ExactArgs(1), node.complete
	c.RunE = func(cmd *cobra.Command, args []string) error {
		_, found, err := node.find(cmd.Context(), args[0])
		if err != nil {
			return err
		}
		for i := range found {
			did, err := askDevice(cmd.Context(), &found[i], path)
			if err != nil {
				return err
			}
			if node.json {
				if err := printJSON(cmd.OutOrStdout(), did); err != nil {
					return err
				}
				continue
			}
			text := fmt.Sprintf("%s: %d programs %s", found[i].Spec.Key(), did.Sessions, done)
			if did.Sessions > 0 {
				text += fmt.Sprintf("; %s of the host's memory %s", strings.TrimSpace(report.Bytes(did.Bytes)), holds)
			}
			fmt.Fprintln(cmd.OutOrStdout(), text)
		}
		return nil
	}
	node.register(c)
	return c
}

func askDevice(ctx context.Context, v *api.VGPU, path string) (did device.Suspended, err error) {
	c := api.NewClient(v.Control)
	defer c.Close()
	if err := c.Do(ctx, http.MethodPost, "/v1/"+path, nil, &did); err != nil {
		return did, fmt.Errorf("%s %s: %w", path, v.Spec.Key(), err)
	}
	return did, nil
}
