package main

import (
	"errors"

	"github.com/spf13/cobra"

	"causeway/host/daemon/api"
)

// Groups of commands, as `causeway help` shows them.
const (
	groupRun     = "run"
	groupOperate = "operate"
	groupNode    = "node"
)

var groupOf = map[string]string{
	"run": groupRun, "attach": groupRun, "detach": groupRun, "create": groupRun, "delete": groupRun,
	"ps": groupOperate, "top": groupOperate, "logs": groupOperate, "inspect": groupOperate, "limits": groupOperate, "gpus": groupOperate, "doctor": groupOperate,
	"daemon": groupNode, "device": groupNode, "scheduler": groupNode, "serve": groupNode,
}

// arrange puts the commands into groups, and adds what is worth knowing beside them.
func arrange(c *cobra.Command) {
	c.AddCommand(&cobra.Command{Use: "exit-status", Short: "What the exit statuses mean", Long: exitText})
	c.AddGroup(
		&cobra.Group{ID: groupRun, Title: "Give GPUs to VMs and programs:"},
		&cobra.Group{ID: groupOperate, Title: "See and operate:"},
		&cobra.Group{ID: groupNode, Title: "Processes of a node:"},
	)
	for _, sub := range c.Commands() {
		sub.GroupID = groupOf[sub.Name()]
	}
}

const exitText = `causeway run ends with the status of the program that it ran. Other commands end with

  0   done
  1   an error, told in a sentence; for doctor: a check failed
  3   causewayd does not run
  4   nothing of that name
  5   the state of things does not allow it, as when a VM uses the vGPU, or there is no room
  6   the caller's role does not allow it`

// Exit statuses, as the manual has them. A program under `causeway run` sets its own.
const (
	exitFailed     = 1 // anything else; `causeway doctor`: a check failed
	exitNoDaemon   = 3 // causewayd does not run
	exitUnknown    = 4 // nothing of that name
	exitConflict   = 5 // the state of things does not allow it, or there is no room
	exitNotAllowed = 6 // the caller's role does not allow it
)

// exitCode is the exit status for an error.
func exitCode(err error) int {
	var e *api.Error
	switch {
	case errors.Is(err, api.ErrNotRunning):
		return exitNoDaemon
	case !errors.As(err, &e):
		return exitFailed
	}
	switch e.Status {
	case 404:
		return exitUnknown
	case 409, 507:
		return exitConflict
	case 403:
		return exitNotAllowed
	}
	return exitFailed
}
