package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

// rebuildLimit bounds one rebuild of all workers, memory included.
const rebuildLimit = 2 * time.Minute

func rebuildCommand() *cobra.Command {
	var pid int
	c := &cobra.Command{
		Use:   "rebuild --pid PID",
		Short: "Move the sessions of a `causeway run` to fresh worker processes",
		Long: `Moves every session of a running "causeway run" to a fresh worker process: objects are rebuilt, memory is copied to the
same addresses, and the program goes on. It is what migration and updates of a running host grow from.`,
		Example: "  causeway rebuild --pid 4711     # 4711: process id of causeway run",
		Args:    cobra.NoArgs,
		Hidden:  true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			text, err := askRun(pid, "rebuild")
			if err != nil {
				return err
			}
			fmt.Fprintln(cmd.OutOrStdout(), text)
			return nil
		},
	}
	c.Flags().IntVar(&pid, "pid", 0, "`PID` of a causeway run")
	_ = c.MarkFlagRequired("pid")
	return c
}

// askRun sends one line to a run's control socket and returns the answer.
func askRun(pid int, line string) (string, error) {
	found, err := filepath.Glob(filepath.Join(os.TempDir(), fmt.Sprintf("%s%d-*", runPrefix, pid), "control"))
	if err != nil || len(found) == 0 {
		return "", fmt.Errorf("process %d is no `causeway run` of this user: look it up with `pgrep -f 'causeway run'`", pid)
	}
	c, err := net.Dial("unix", found[0])
	if err != nil {
		return "", fmt.Errorf("control socket of process %d: %w", pid, err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(rebuildLimit + 10*time.Second))
	if _, err := fmt.Fprintln(c, line); err != nil {
		return "", fmt.Errorf("control socket of process %d: %w", pid, err)
	}
	answer, err := bufio.NewReader(c).ReadString('\n')
	answer = strings.TrimSpace(answer)
	if text, ok := strings.CutPrefix(answer, "error: "); ok {
		return "", errors.New(text)
	}
	if err != nil {
		return "", fmt.Errorf("process %d gave no answer: %w", pid, err)
	}
	return answer, nil
}

// listenControl answers control lines on a socket that only this user can reach (its folder has
// mode 0700).
func (s *server) listenControl(ctx context.Context, path string) error {
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return fmt.Errorf("control socket: %w", err)
	}
	context.AfterFunc(ctx, func() { _ = ln.Close() })
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			s.control(ctx, c)
			_ = c.Close()
		}
	}()
	return nil
}

func (s *server) control(ctx context.Context, c net.Conn) {
	_ = c.SetReadDeadline(time.Now().Add(time.Second))
	line, err := bufio.NewReaderSize(c, 256).ReadString('\n')
	if err != nil {
		return
	}
	switch word, gpu, _ := strings.Cut(strings.TrimSpace(line), " "); word {
	case "move":
		ctx, cancel := context.WithTimeout(ctx, rebuildLimit)
		defer cancel()
		text, err := s.relocate(ctx, gpu)
		if err != nil {
			text = "error: " + strings.ReplaceAll(err.Error(), "\n", "; ")
		}
		fmt.Fprintln(c, text)
	case "rebuild":
		ctx, cancel := context.WithTimeout(ctx, rebuildLimit)
		defer cancel()
		n, err := s.rebuild(ctx)
		if err != nil {
			fmt.Fprintf(c, "error: %s\n", strings.ReplaceAll(err.Error(), "\n", "; "))
			return
		}
		fmt.Fprintf(c, "%d sessions moved to fresh workers\n", n)
	default:
		fmt.Fprintln(c, "error: unknown request")
	}
}
