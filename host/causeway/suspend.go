package main

import (
	"context"
	"fmt"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"causeway/host/api"
	"causeway/host/device"
	"causeway/host/report"
)

func suspendCommand() *cobra.Command {
	var to string
	c := &cobra.Command{
		Use:   "suspend VM[/NAME[/SESSION]]",
		Short: "Free the GPU memory of a VM's idle programs until they go on",
		Long: `Takes the CUDA programs of a VM, or one of them, off the GPU: their memory and contexts are kept in the host's memory, zeros not counted, and their worker
processes end. The VM and its programs run on and notice nothing; the next CUDA call of a program brings it back by itself, as
"causeway resume" does at once. If the GPU has no room then, the program waits until it has.

With --to, or "suspend_to" in causewayd.toml, files in a folder keep it instead, so that the host's memory is free as well. The files have no names and are
sealed by a key that only the vGPU's process knows: nobody can read or change what is in them, and they are gone when that process ends. A folder
without room for all that a program holds is refused before the program stops.

A program that is at work is not suspended, and is named: what the GPU does for it ends within a second and a half, or it stays.`,
		Example: "  causeway suspend vm1\n  causeway suspend vm1 --to /var/tmp\n  causeway suspend vm1/gpu0/3   # one program; causeway inspect vm1 has the numbers\n  causeway inspect vm1          # state: suspended",
	}
	moveAll("suspend", "suspended", "hold them until their programs go on", &to, c)
	c.Flags().StringVar(&to, "to", "", "`FOLDER` for files that hold them (default: devices.suspend_to of causewayd.toml, or the host's memory)")
	_ = c.MarkFlagDirname("to")
	return c
}

func resumeCommand() *cobra.Command {
	return moveAll("resume", "resumed", "held them", new(string), &cobra.Command{
		Use:     "resume VM[/NAME[/SESSION]]",
		Short:   "Bring suspended programs back to the GPU",
		Long:    `Brings the CUDA programs that "causeway suspend" has taken off the GPU back, before they ask for it themselves.`,
		Example: "  causeway resume vm1",
	})
}

// sessionOf takes the session's number off VM/NAME/SESSION; 0: there is none.
func sessionOf(key string) (vgpu string, session uint64, err error) {
	at := strings.LastIndexByte(key, '/')
	if strings.Count(key, "/") < 2 {
		return key, 0, nil
	}
	if session, err = strconv.ParseUint(key[at+1:], 10, 64); err != nil || session == 0 {
		return "", 0, fmt.Errorf("%s: %q is no session's number: `causeway inspect` shows them", key, key[at+1:])
	}
	return key[:at], session, nil
}

// moveAll makes c ask device processes to do something with all their sessions, or one. to: where
// they are kept.
func moveAll(path, done, holds string, to *string, c *cobra.Command) *cobra.Command {
	var node nodeFlags
	c.Args, c.ValidArgsFunction = cobra.ExactArgs(1), node.complete
	c.RunE = func(cmd *cobra.Command, args []string) error {
		key, session, err := sessionOf(args[0])
		if err != nil {
			return err
		}
		what := device.Suspension{Session: session}
		if *to != "" {
			if what.To, err = filepath.Abs(*to); err != nil {
				return err
			}
		}
		_, found, err := node.find(cmd.Context(), key)
		if err != nil {
			return err
		}
		for i := range found {
			did, err := askDevice(cmd.Context(), &found[i], path, what)
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
				where := "of the host's memory"
				if did.Folder != "" {
					where = "in " + did.Folder
				}
				text += fmt.Sprintf("; %s %s %s", strings.TrimSpace(report.Bytes(did.Bytes)), where, holds)
			}
			fmt.Fprintln(cmd.OutOrStdout(), text)
		}
		return nil
	}
	node.register(c)
	return c
}

func askDevice(ctx context.Context, v *api.VGPU, path string, what device.Suspension) (did device.Suspended, err error) {
	c := api.NewDeviceClient(v.Control)
	defer c.Close()
	if err := c.Do(ctx, http.MethodPost, "/v1/"+path, what, &did); err != nil {
		return did, fmt.Errorf("%s %s: %w", path, v.Spec.Key(), err)
	}
	return did, nil
}
