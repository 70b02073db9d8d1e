package main

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"causeway/host/fleet/overview"
	"causeway/host/report"
)

func lsCommand(a *access) *cobra.Command {
	var format string
	c := &cobra.Command{
		Use:     "ls",
		Aliases: []string{"ps"},
		Short:   "List nodes, their GPUs, and the claims that have them or wait for them",
		Long: `Lists the GPUs of all nodes with how much of their memory and time claims have, and the claims of all namespaces (or of the one that -n names) with their
vGPUs and pods. Below stands why a claim waits or is refused, by the scheduler's or the node's own word.

States of claims: Waiting (nothing is allocated to it), InUse, Allocated (it has its GPU and no pod), Refused (its node does not serve it), Leaving (deleted).
A GPU with a taint gets no new claims: drained (by an operator or a fault), unreachable (the node's causewayd is silent).`,
		Example: `  causeway-fleet ls
  causeway-fleet ls -n team
  causeway-fleet ls --format json | jq -r '.claims[] | select(.state == "Waiting") | "\(.namespace)/\(.name): \(.why)"'
  causeway-fleet ls --format json | jq '[.nodes[].gpus[] | .memory - .claimed] | add'`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if format != "table" && format != "json" {
				return fmt.Errorf("--format %q: use table or json", format)
			}
			cl, _, err := a.connect()
			if err != nil {
				return err
			}
			f, err := overview.Read(cmd.Context(), cl, a.namespace)
			if err != nil {
				return err
			}
			out := cmd.OutOrStdout()
			if format == "json" {
				e := json.NewEncoder(out)
				e.SetIndent("", "  ")
				return e.Encode(f)
			}
			for _, what := range f.Unread {
				fmt.Fprintln(report.Safe(cmd.ErrOrStderr()), "not shown:", what)
			}
			return f.Table(out, time.Now())
		},
	}
	c.Flags().StringVar(&format, "format", "table", "table or json")
	return c
}
