package main

import (
	"github.com/spf13/cobra"

	"causeway/host/daemon/api"
	"causeway/host/view"
)

func createCommand() *cobra.Command {
	var node nodeFlags
	var w wishes
	var owner string
	c := &cobra.Command{
		Use:   "create VM[/NAME]",
		Short: "Make a vGPU without libvirt, and tell how to attach it",
		Long: `Has causewayd place a vGPU and start its device process, and tells the socket, the QEMU arguments and the domain XML that
attach it. It is for people who start QEMU by hand or by scripts; with libvirt, use causeway attach or the domain's XML.
Doing it again changes nothing. The vGPU stays until causeway delete, whether a VM uses it or not.`,
		Example: `  causeway create vm1 --gpu any --memory 4GiB
  qemu-system-x86_64 ... $(causeway create vm1 --memory 4GiB --json | jq -r '.attach.qemu | join(" ")')`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			vm, name := api.ParseKey(args[0])
			if w.spec.Name == "" {
				w.spec.Name = name
			}
			s, err := w.get(vm)
			if err != nil {
				return err
			}
			s.Owner = owner
			c := node.client()
			defer c.Close()
			v, err := c.Ensure(cmd.Context(), s)
			if err != nil {
				return err
			}
			if node.json {
				return printJSON(cmd.OutOrStdout(), view.Inspected{VGPU: v, Attach: view.AttachTo(&v)})
			}
			r, err := node.read(cmd.Context())
			if err != nil {
				return err
			}
			return view.Inspect(cmd.OutOrStdout(), r, &v)
		},
	}
	node.register(c)
	w.register(c)
	_ = c.Flags().MarkHidden("name") // the argument says it
	c.Flags().StringVar(&owner, "owner", "", "who may open the vhost-user socket, as USER or USER:GROUP (default: the configuration's)")
	return c
}

func deleteCommand() *cobra.Command {
	var node nodeFlags
	var force bool
	c := &cobra.Command{
		Use:   "delete VM[/NAME]",
		Short: "End a vGPU that no VM uses",
		Long: `Ends a vGPU: its device process and its socket. While a VM uses it that is refused, for QEMU cannot get it back: detach it
first, or say --force, and programs in the VM get device errors.`,
		Example:           "  causeway delete vm1/gpu0",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: node.complete,
		RunE: func(cmd *cobra.Command, args []string) error {
			_, v, err := node.findOne(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			c := node.client()
			defer c.Close()
			return c.Release(cmd.Context(), v.Spec.VM, v.Spec.Name, !force)
		},
	}
	node.registerRun(c)
	c.Flags().BoolVarP(&force, "force", "f", false, "even while a VM uses it")
	return c
}
