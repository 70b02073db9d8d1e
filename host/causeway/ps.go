package main

import (
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"causeway/host/api"
	"causeway/host/report"
)

// psFlags say how vGPUs are listed.
type psFlags struct {
	node   nodeFlags
	all    bool
	quiet  bool
	format string
}

func psCommand() *cobra.Command {
	var f psFlags
	c := &cobra.Command{
		Use:     "ps [VM[/NAME]...]",
		Aliases: []string{"ls", "status"},
		Short:   "List the vGPUs, and the processes of guests that use them",
		Long: `Lists the vGPUs of this host, or those named: which VM has them, on which GPU, how much of their memory is used, their share of the GPU's
time (relative to the others'), the cap on it, and how many processes of the guest use them. With -a the processes themselves. An ! marks a
share or cap that does not hold now.

States: waiting (no VM is connected), connected, lost (its device process ended by itself: restart the VM, or attach again).
Without causewayd, the device processes are asked.

--format takes a Go template with ` + report.PsFields() + `;
"table ..." puts heads above, {{json .}} writes all of them.`,
		Example: `  causeway ps
  causeway ps -a                    # the processes in the guests too
  causeway ps -q                    # names only
  causeway ps --format '{{.Key}} {{.Used}} of {{.Memory}}'
  causeway ps --format 'table {{.VM}}\t{{.GPU}}\t{{.Share}}'
  causeway ps --json | jq -r '.[] | select(.state == "lost") | .spec.vm'`,
		ValidArgsFunction: f.node.complete,
		RunE:              f.run,
	}
	f.node.register(c)
	c.Flags().BoolVarP(&f.all, "sessions", "a", false, "list the processes of guests too")
	c.Flags().BoolVarP(&f.quiet, "quiet", "q", false, "print names only, as VM/NAME")
	c.Flags().StringVar(&f.format, "format", "", "print each vGPU by a Go template, as '{{.Key}} {{.State}}'")
	c.MarkFlagsMutuallyExclusive("quiet", "format", "json", "sessions")
	return c
}

func (f *psFlags) run(cmd *cobra.Command, args []string) error {
	format := f.format
	if f.quiet {
		format = "{{.Key}}"
	}
	var lines *report.Format
	if format != "" {
		var err error
		if lines, err = report.ParseFormat(format); err != nil {
			return fmt.Errorf("--format: %w", err)
		}
	}
	r, err := f.node.read(cmd.Context())
	if err != nil {
		return err
	}
	if len(args) > 0 {
		if err := keepOnly(r, args); err != nil {
			return err
		}
	}
	out := cmd.OutOrStdout()
	switch {
	case f.node.json:
		return printJSON(out, append([]api.VGPU{}, r.VGPUs...))
	case lines != nil:
		return lines.Write(out, r)
	}
	if err := report.VGPUs(out, r); err != nil {
		return err
	}
	if f.all {
		fmt.Fprintln(out)
		if err := report.Sessions(out, r); err != nil {
			return err
		}
	}
	report.Notes(cmd.ErrOrStderr(), r)
	return nil
}

// keepOnly leaves the vGPUs that keys name: one at least each.
func keepOnly(r *report.Reading, keys []string) error {
	var kept []api.VGPU
	for _, key := range keys {
		found := r.Find(key)
		if len(found) == 0 {
			return noVGPU(key)
		}
		kept = append(kept, found...)
	}
	r.VGPUs = kept
	return nil
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
			var list []report.Inspected
			for i := range found {
				if list = append(list, report.Inspected{VGPU: found[i], Attach: report.AttachTo(&found[i])}); node.json {
					continue
				}
				if i > 0 {
					if _, err := out.Write([]byte("\n")); err != nil {
						return err
					}
				}
				if err := report.Inspect(out, r, &found[i]); err != nil {
					return err
				}
			}
			if node.json {
				return printJSON(out, list)
			}
			report.Notes(cmd.ErrOrStderr(), &report.Reading{Daemon: r.Daemon, Notes: r.Notes})
			return nil
		},
	}
	node.register(c)
	return c
}

// completeVM offers VMs, then the names of their vGPUs, for shells.
func (f *nodeFlags) completeVM(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	r, err := f.read(cmd.Context())
	if err != nil || len(args) > 1 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var list []string
	for _, v := range r.VGPUs {
		switch {
		case len(args) == 1 && v.Spec.VM == args[0]:
			list = append(list, v.Spec.Name)
		case len(args) == 0 && !slices.Contains(list, v.Spec.VM):
			list = append(list, v.Spec.VM)
		}
	}
	return list, cobra.ShellCompDirectiveNoFileComp
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
