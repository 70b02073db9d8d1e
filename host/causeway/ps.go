package main

import (
	"cmp"

	"github.com/spf13/cobra"

	"causeway/host/daemon/api"
	"causeway/host/view"
)

func psCommand() *cobra.Command {
	var node nodeFlags
	var all bool
	c := &cobra.Command{
		Use:   "ps",
		Short: "List the vGPUs, and the processes of guests that use them",
		Long: `Lists the vGPUs of this host: which VM has them, on which GPU, how much of their memory is used, their share of the GPU's
time (relative to the others'), the cap on it, and how many processes of the guest use them. With -a the processes themselves.

States: waiting (no VM is connected), connected, lost (its device process ended by itself: restart the VM, or attach again).
Without causewayd, the device processes are asked.`,
		Example: `  causeway ps
  causeway ps -a                    # the processes in the guests too
  causeway ps --json | jq -r '.[] | select(.state == "lost") | .spec.vm'`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			r, err := node.read(cmd.Context())
			if err != nil {
				return err
			}
			out := cmd.OutOrStdout()
			if node.json {
				return printJSON(out, append([]api.VGPU{}, r.VGPUs...))
			}
			err = view.VGPUs(out, r)
			if all {
				_, nl := out.Write([]byte("\n"))
				err = cmp.Or(err, nl, view.Sessions(out, r))
			}
			view.Notes(cmd.ErrOrStderr(), r)
			return err
		},
	}
	node.register(c)
	c.Flags().BoolVarP(&all, "sessions", "a", false, "list the processes of guests too")
	return c
}

func inspectCommand() *cobra.Command {
	var node nodeFlags
	c := &cobra.Command{
		Use:   "inspect VM[/NAME]",
		Short: "Tell everything about a vGPU, and how to attach it",
		Long: `Tells everything about a vGPU, or about all of a VM: state, GPU, limits, use, the processes of the guest, and the lines of
domain XML and the QEMU arguments that attach it.`,
		Example:           "  causeway inspect vm1\n  causeway inspect vm1/gpu0 --json | jq -r .[0].attach.filesystem",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: node.complete,
		RunE: func(cmd *cobra.Command, args []string) error {
			r, found, err := node.find(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			out := cmd.OutOrStdout()
			var list []view.Inspected
			for i := range found {
				if list = append(list, view.Inspected{VGPU: found[i], Attach: view.AttachTo(&found[i])}); node.json {
					continue
				}
				if i > 0 {
					if _, err := out.Write([]byte("\n")); err != nil {
						return err
					}
				}
				if err := view.Inspect(out, r, &found[i]); err != nil {
					return err
				}
			}
			if node.json {
				return printJSON(out, list)
			}
			view.Notes(cmd.ErrOrStderr(), &view.Reading{Daemon: r.Daemon, Notes: r.Notes})
			return nil
		},
	}
	node.register(c)
	return c
}

// complete offers the keys of vGPUs, for shells.
func (f *nodeFlags) complete(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	r, err := f.read(cmd.Context())
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	var list []string
	for _, v := range r.VGPUs {
		list = append(list, cobra.CompletionWithDesc(v.Spec.Key(), string(v.State)))
	}
	return list, cobra.ShellCompDirectiveNoFileComp
}
