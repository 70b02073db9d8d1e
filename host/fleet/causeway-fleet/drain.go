package main

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"causeway/host/fleet/overview"
	"causeway/host/report"
)

// drainFlags are those of the command.
type drainFlags struct {
	undo, noWait bool
	timeout      time.Duration
}

func drainCommand(a *access) *cobra.Command {
	var f drainFlags
	c := &cobra.Command{
		Use:   "drain NODE",
		Short: "Keep new pods away from a node, and wait until no claim has a GPU of it",
		Long: `Gives the node the taint ` + overview.TaintDrain + `:NoSchedule, so that no new pod comes there, and waits until no claim has a GPU of it, saying which claims
and pods have one whenever they are others. Nothing that runs is ended: a program on a GPU would lose its work. Delete the pods, or wait for them.
--undo takes the taint away. For one GPU of a node, use causeway on that node. Exit status 3: the time was up; the taint stays.`,
		Example: "  causeway-fleet drain node1 --timeout 1h\n  causeway-fleet drain node1 --undo",
		Args:    cobra.ExactArgs(1),
		RunE:    func(cmd *cobra.Command, args []string) error { return f.run(cmd, a, args[0]) },
	}
	fl := c.Flags()
	fl.BoolVar(&f.undo, "undo", false, "let pods come again")
	fl.BoolVar(&f.noWait, "no-wait", false, "do not wait")
	fl.DurationVar(&f.timeout, "timeout", 0, "how long to wait (default: without end)")
	return c
}

func (f *drainFlags) run(cmd *cobra.Command, a *access, node string) error {
	cl, _, err := a.connect()
	if err != nil {
		return err
	}
	ctx, cancel := limited(cmd.Context(), f.timeout)
	defer cancel()
	changed, err := cl.setDrained(ctx, node, !f.undo)
	if err != nil {
		return err
	}
	out := report.Safe(cmd.OutOrStdout())
	switch {
	case f.undo && changed:
		fmt.Fprintf(out, "pods may come to %s again\n", node)
	case f.undo:
		fmt.Fprintf(out, "%s is not being drained: nothing changed\n", node)
	case changed:
		fmt.Fprintf(out, "no new pod comes to %s\n", node)
	default:
		fmt.Fprintf(out, "no new pod comes to %s, as before\n", node)
	}
	if f.undo || f.noWait {
		return nil
	}
	return overview.AwaitEmpty(ctx, cl, node, func(text string) { fmt.Fprintln(out, text) })
}
