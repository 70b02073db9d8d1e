package main

import (
	"fmt"
	"io"
	"strconv"

	"github.com/spf13/cobra"

	"causeway/host/api"
	"causeway/host/report"
)

// createExample is run by scripts/create.sh as it stands. Guest memory is shared once for the VM,
// and has the size of -m.
const createExample = `  causeway create vm1 --profile quarter
  causeway create vm1/gpu1 --gpu any --memory 4GiB --share 50

  # a VM with both, by QEMU:
  size=4G
  qemu-system-x86_64 -m $size -object memory-backend-memfd,id=causeway-ram,size=$size,share=on \
    -machine q35,memory-backend=causeway-ram $(causeway inspect vm1 --json | jq -r '.[].attach.qemu[]') ...`

func createCommand() *cobra.Command {
	var node nodeFlags
	var w wishes
	c := &cobra.Command{
		Use:   "create VM[/NAME]",
		Short: "Make a vGPU without libvirt, and tell how to attach it",
		Long: `Has causewayd place a vGPU and start its device process, and says in a line what it is and what the guest mounts. It is for people
who start QEMU by hand or by scripts: "causeway inspect VM" prints the QEMU arguments and the domain XML that attach it. With libvirt, use
causeway attach or the domain's XML.

Of a vGPU that is there already, only what is named changes, at once and while programs run; everything else stays as it is. The vGPU
stays until causeway delete, whether a VM uses it or not.`,
		Example: createExample,
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			vm, name := api.ParseKey(args[0])
			if w.wish.Name == "" {
				w.wish.Name = name
			}
			s, err := w.get(vm)
			if err != nil {
				return err
			}
			return node.create(cmd, s)
		},
	}
	node.register(c)
	w.register(c, &node)
	_ = c.Flags().MarkHidden("name") // the argument says it
	c.Flags().BoolFunc("programs", "it is for CUDA programs of this host, in containers for instance, and for no VM", func(v string) error {
		yes, err := strconv.ParseBool(v)
		w.wish.Programs = &yes
		return err
	})
	c.Flags().StringVar(&w.wish.Owner, "owner", "", "who may open the vhost-user socket, as `USER[:GROUP]` (default: the configuration's), or whose programs may use a vGPU for programs (default: root's)")
	return c
}

func (f *nodeFlags) create(cmd *cobra.Command, w api.Wish) error {
	ctx := cmd.Context()
	c := f.client()
	defer c.Close()
	v, err := c.Ensure(ctx, w)
	if err != nil {
		return err
	}
	if f.json {
		return printJSON(cmd.OutOrStdout(), report.Inspected{VGPU: v, Attach: report.AttachTo(&v)})
	}
	r, err := f.read(ctx)
	if err != nil {
		return err
	}
	what := "was there, and is"
	if v.Created {
		what = "is ready"
	}
	return printCreated(cmd.OutOrStdout(), cmd.ErrOrStderr(), what, r, &v)
}

// printCreated tells in a line what a vGPU is, and what its guest does.
func printCreated(out, notes io.Writer, what string, r *report.Reading, v *api.VGPU) error {
	if text := unlimited(v.Spec.Key(), v.Spec.Limits); text != "" {
		fmt.Fprintln(notes, "warning:", text)
	}
	where := "In the guest: " + mountCommand(v.Spec.Name)
	if v.Spec.Programs {
		where = "Programs: " + report.AttachTo(v).Environment
	}
	_, err := fmt.Fprintf(out, "%s %s %s. %s\n", v.Spec.Key(), what, report.Summary(r, v), where)
	return err
}

func mountCommand(tag string) string {
	at := report.MountPoint(tag)
	return "mkdir -p " + at + " && mount -t virtiofs " + tag + " " + at
}

func deleteCommand() *cobra.Command {
	var node nodeFlags
	var force bool
	c := &cobra.Command{
		Use:     "delete VM[/NAME]",
		Aliases: []string{"rm"},
		Short:   "End a vGPU that no VM uses",
		Long: `Ends a vGPU: its device process and its socket. While a VM uses it that is refused, for QEMU cannot get it back: detach it
first, or say --force, and programs in the VM get device errors.`,
		Example:           "  causeway delete vm1/gpu0\n  causeway rm vm1/gpu0 --force",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: node.complete,
		RunE: func(cmd *cobra.Command, args []string) error {
			_, v, err := node.findOne(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			c := node.client()
			defer c.Close()
			if err := c.Release(cmd.Context(), v.Spec.VM, v.Spec.Name, !force); err != nil {
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s is ended; its socket is gone\n", v.Spec.Key())
			return err
		},
	}
	node.registerRun(c)
	c.Flags().BoolVarP(&force, "force", "f", false, "even while a VM uses it")
	return c
}
