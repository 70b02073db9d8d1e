package main

import (
	"errors"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"causeway/host/api"
)

// asking are the commands that ask causewayd, with what they need to get there; those without a
// word need a VM, another machine or Slurm for that, or do without.
var asking = map[string][]string{
	"create":      {"vm1"},
	"delete":      {"vm1"},
	"gpus":        {""},
	"gpus drain":  {"0"},
	"gpus resume": {"0"},
	"inspect":     {"vm1"},
	"limits":      {"vm1", "--cap", "40"},
	"logs":        {"vm1"},
	"move":        {"vm1", "--gpu", "0"},
	"profiles":    {""},
	"ps":          {""},
	"resume":      {"vm1"},
	"suspend":     {"vm1"},
	"top":         {"--once"},

	"attach": nil, "detach": nil, "migrate": nil, "hook qemu": nil, "run": nil, "slurm prolog": nil, "slurm epilog": nil, "slurm config": nil,
	// They ask QEMU or libvirt.
	"vf assign": nil, "vf create": nil, "vf list": nil, "vf release": nil,
	"daemon": nil, "serve": nil, // they are it
	"doctor": nil, // which tells of it
}

// TestSilent: no command waits for ever for a causewayd that is stopped, and each says so by its
// exit status. The kernel takes connections for one; this one's are never taken up.
func TestSilent(t *testing.T) {
	t.Parallel()
	run := shortDir(t)
	ln, err := net.Listen("unix", api.Socket(run))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ln.Close() })
	var all sync.WaitGroup
	defer all.Wait()
	for name, args := range asking {
		if args == nil {
			continue
		}
		all.Go(func() { // all at once
			begin := time.Now()
			line := append(strings.Fields(name), "--run-dir", run)
			for _, a := range args {
				if a != "" {
					line = append(line, a)
				}
			}
			_, _, err := command(t, line...)
			if took := time.Since(begin); !errors.Is(err, api.ErrSilent) || exitCode(err) != exitNoDaemon || took > 40*time.Second {
				t.Errorf("causeway %s: %v after %v, exit status %d", name, err, took, exitCode(err))
			}
		})
	}
	var each func(path string, c *cobra.Command)
	each = func(path string, c *cobra.Command) {
		if _, known := asking[path]; !known && c.Flags().Lookup("run-dir") != nil {
			t.Errorf("whether causeway %s ends when causewayd is stopped is not tried", path)
		}
		for _, sub := range c.Commands() {
			each(strings.TrimSpace(path+" "+sub.Name()), sub)
		}
	}
	each("", root())
}
