package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"causeway/host/schedule"
)

func schedulerCommand() *cobra.Command {
	var socket string
	var verbose, status bool
	c := &cobra.Command{
		Use:   "scheduler",
		Short: "Share the time of this host's GPUs among virtual GPUs",
		Long: `Shares GPU time among virtual GPUs: by share while several want a GPU, everything while one is alone, never more than a
cap. One runs on each host; device processes find it by its socket. When it ends, programs go on, unlimited, until one is
back: "causeway ps" and the alert CausewayLimitsUnheld say so. With --status it prints instead what the one at work knows.`,
		Example: `  causeway scheduler
  causeway scheduler --status`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM)
			defer stop()
			if status {
				return schedulerStatus(ctx, cmd, socket)
			}
			if err := os.MkdirAll(filepath.Dir(socket), 0o755); err != nil {
				return fmt.Errorf("folder of the socket: %w", err)
			}
			ln, err := schedule.Listen(socket)
			if err != nil {
				return err
			}
			return (&schedule.Server{Log: logger(verbose)}).Serve(ctx, ln)
		},
	}
	c.Flags().StringVar(&socket, "socket", filepath.Join(runDir(), schedule.Socket), "`PATH` of the socket, beside causewayd's; one that nobody serves any more is replaced")
	c.Flags().BoolVarP(&verbose, "verbose", "v", false, "say what happens on stderr")
	c.Flags().BoolVar(&status, "status", false, "print who has which share of which GPU, as JSON with --json")
	c.Flags().Bool("json", false, "print JSON")
	return c
}

func schedulerStatus(ctx context.Context, cmd *cobra.Command, socket string) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	st, err := schedule.ReadStatus(ctx, socket)
	if err != nil {
		return err
	}
	out := cmd.OutOrStdout()
	if asJSON, _ := cmd.Flags().GetBool("json"); asJSON {
		e := json.NewEncoder(out)
		e.SetIndent("", "  ")
		return e.Encode(st)
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "GPU\tVGPU\tSHARE\tCAP\tSESSIONS\tMODE\tLAST SECOND\tWAITED")
	for _, g := range st.GPUs {
		for _, s := range g.Shares {
			limit := "-"
			if s.Cap > 0 {
				limit = fmt.Sprintf("%d %%", s.Cap)
			}
			fmt.Fprintf(w, "%s\t%s\t%d\t%s\t%d\t%s\t%.0f %%\t%v\n", g.GPU, s.Key, s.Share, limit, s.Sessions, s.Mode, 100*s.Recent, s.Waited.Round(time.Millisecond))
		}
	}
	return w.Flush()
}
