package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"causeway/host/libvirt"
)

// hookLimit bounds what a hook may take: libvirt waits for it.
const hookLimit = 90 * time.Second

// hookCommand is what libvirt's hook runs. Nothing may be written to stdout: libvirt takes it for
// XML.
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
			if call.Op == "release" && call.SubOp == "end" {
				freeEnded(ctx, node.run, call.Domain, logger(false))
			}
			return nil
		},
	}
	node.registerRun(qemu)
	callOff := &cobra.Command{
		Use:   "call-off DOMAIN",
		Short: "causewayd's: calls off the migration of a domain that cannot succeed",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, cancel := context.WithTimeout(cmd.Context(), callOffLimit)
			defer cancel()
			d, err := libvirt.OpenMovable(ctx, "", args[0])
			if errors.Is(err, libvirt.ErrNoLibvirt) {
				err = becomeLibvirt()
			}
			if err != nil {
				return err
			}
			defer d.Close()
			return d.CallOff(ctx)
		},
	}
	hook.AddCommand(qemu, callOff)
	return hook
}

// callOffLimit bounds how long libvirt may refuse to call a migration off, which it does until that
// has begun for it.
const callOffLimit = 10 * time.Second
