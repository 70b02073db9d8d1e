package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"causeway/host/api"
	"causeway/host/report"
)

func logsCommand() *cobra.Command {
	var node nodeFlags
	var goOn bool
	var lines int
	var dir string
	c := &cobra.Command{
		Use:   "logs VM[/NAME]",
		Short: "Print what a vGPU's processes wrote",
		Long: `Prints what a vGPU's device process and its workers wrote: errors, sessions that were refused, workers that ended. A VM that
is gone is found as long as its log is there. Without causewayd, the file in --log-dir is read.`,
		Example:           "  causeway logs vm1\n  causeway logs vm1/gpu0 -f -n 20",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: node.complete,
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), unix.SIGINT, unix.SIGTERM)
			defer stop()
			log := logReader{dir: dir, lines: lines, follow: goOn}
			if err := log.find(ctx, &node, args[0]); err != nil {
				return err
			}
			err := log.copy(ctx, &node, cmd.OutOrStdout())
			if ctx.Err() != nil {
				return nil // the reader had enough
			}
			return err
		},
	}
	node.registerRun(c)
	c.Flags().BoolVarP(&goOn, "follow", "f", false, "go on until interrupted")
	c.Flags().IntVarP(&lines, "lines", "n", -1, "begin this many lines before the end; -1: all")
	c.Flags().StringVar(&dir, "log-dir", logDir, "folder of the logs when causewayd does not run")
	return c
}

// logDir is where causewayd has device processes write when there is no journal.
const logDir = "/var/log/causeway"

// errNoLog says that a vGPU has left no log.
var errNoLog = errors.New("no log of")

// logReader prints one vGPU's log.
type logReader struct {
	vm, name string
	dir      string
	lines    int
	follow   bool
}

// find settles which vGPU a key names. One that is no longer there may have left a log: then gpu0
// is the VM's first.
func (l *logReader) find(ctx context.Context, node *nodeFlags, key string) error {
	_, v, err := node.findOne(ctx, key)
	var gone *api.Error
	switch {
	case err == nil:
		l.vm, l.name = v.Spec.VM, v.Spec.Name
		return nil
	case errors.As(err, &gone) && gone.Status == 404:
		l.vm, l.name = api.ParseKey(key)
		return (&api.Spec{VM: l.vm, Name: l.name}).Check()
	}
	return err
}

func (l *logReader) copy(ctx context.Context, node *nodeFlags, out io.Writer) error {
	c := node.client()
	defer c.Close()
	body, err := c.Log(ctx, l.vm, l.name, l.lines, l.follow)
	if errors.Is(err, api.ErrNotRunning) {
		return l.copyFile(ctx, out)
	}
	if err != nil {
		return err
	}
	defer body.Close()
	_, err = io.Copy(report.Safe(out), body)
	return err
}

// copyFile is copy without causewayd.
func (l *logReader) copyFile(ctx context.Context, out io.Writer) error {
	path := filepath.Join(l.dir, l.vm, l.name+".log")
	f, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("%w %s/%s: causewayd does not run and there is no %s: try `journalctl -t causeway-%[2]s/%[3]s`", errNoLog, l.vm, l.name, path)
	}
	if err != nil {
		return fmt.Errorf("log of %s/%s: %w", l.vm, l.name, err)
	}
	defer f.Close()
	if err := seekLines(f, l.lines); err != nil {
		return fmt.Errorf("log of %s/%s: %w", l.vm, l.name, err)
	}
	return follow(ctx, report.Safe(out), f, l.follow)
}
