package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"causeway/host/libvirt"
)

// hookLimit bounds what a hook may take: libvirt waits for it.
const hookLimit = 90 * time.Second

// hookCommand is what libvirt's hook runs. Nothing may be written to stdout: libvirt takes it for XML.
func hookCommand() *cobra.Command {
	var node nodeFlags
	hook := &cobra.Command{Use: "hook", Short: "What other programs run", Hidden: true}
	qemu := &cobra.Command{
		Use:   "qemu DOMAIN OPERATION SUB-OPERATION [EXTRA]",
		Short: "libvirt's hook: readies the vGPUs of a domain that starts, releases those of one that has ended",
		Args:  cobra.RangeArgs(3, 4),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, cancel := context.WithTimeout(cmd.Context(), hookLimit)
			defer cancel()
			c := node.client()
			defer c.Close()
			call := libvirt.HookCall{Domain: args[0], Op: args[1], SubOp: args[2], XML: cmd.InOrStdin()}
			if err := libvirt.Hook(ctx, call, node.run, c, cmd.ErrOrStderr()); err != nil {
				return fmt.Errorf("hook: %w", err)
			}
			return nil
		},
	}
	node.registerRun(qemu)
	hook.AddCommand(qemu)
	return hook
}
