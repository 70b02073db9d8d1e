package main

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"causeway/host/api"
	"causeway/host/daemon"
	"causeway/host/libvirt"
	"causeway/host/qmp"
	"causeway/host/vf"
)

// Exit statuses. A program under `causeway run` sets its own, and run's own failures are those of
// docker run and env(1).
const (
	exitFailed     = 1
	exitNoDaemon   = 3
	exitUnknown    = 4
	exitConflict   = 5
	exitNotAllowed = 6
	exitRunFailed  = 125
	exitNoInvoke   = 126
	exitNotFound   = 127
)

// exits is what people are told of them: in `causeway exit-status`, in the manual pages and in
// docs/OPERATIONS.md.
var exits = []struct {
	status  int
	meaning string
}{
	{0, "done"},
	{exitFailed, "an error, in one sentence with its remedy; `causeway doctor`: a check failed"},
	{exitNoDaemon, "causewayd does not run, or it or a vGPU's device process answers nothing"},
	{exitUnknown, "nothing of that name"},
	{exitConflict, "the state of things does not allow it (a VM uses the vGPU), or there is no room"},
	{exitNotAllowed, "the caller's role does not allow it"},
	{exitRunFailed, "`causeway run` itself failed: options, GPU, library"},
	{exitNoInvoke, "`causeway run`: the program is there and cannot be invoked"},
	{exitNotFound, "`causeway run`: there is no such program"},
}

// exitText is the table for people.
func exitText() string {
	var b strings.Builder
	b.WriteString("causeway run ends as the program that it ran: with its status, or by its signal. Otherwise:\n\n")
	for _, e := range exits {
		fmt.Fprintf(&b, "  %-4d %s\n", e.status, e.meaning)
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// exitCommand has the table as a topic of the help.
func exitCommand() *cobra.Command {
	return &cobra.Command{Use: "exit-status", Short: "What the exit statuses mean", Long: exitText()}
}

// statusError is an error with a status of its own.
type statusError struct {
	status int
	err    error
}

func (e *statusError) Error() string { return e.err.Error() }
func (e *statusError) Unwrap() error { return e.err }

// errorsOf says which errors, besides those of the API, have which status.
var errorsOf = map[int][]error{
	exitUnknown: {libvirt.ErrNoDomain, libvirt.ErrNoVGPU, qmp.ErrNoVGPU, errNoGPU, errNoCUDA, errNoLog, vf.ErrNotFound, vf.ErrNoSRIOV},
	exitConflict: {
		libvirt.ErrExists, libvirt.ErrNotRunning, libvirt.ErrTransient, libvirt.ErrGuest,
		qmp.ErrExists, qmp.ErrNoPort, qmp.ErrNoMemory, qmp.ErrGuest, qmp.ErrNoQEMU, daemon.ErrRunning,
		libvirt.ErrHasDevice, libvirt.ErrKept, api.ErrNoDevice, vf.ErrInUse, vf.ErrNoneFree, vf.ErrNotAssigned, vf.ErrTooMany, vf.ErrNoIOMMU,
	},
	exitNotAllowed: {vf.ErrRights},
}

// exitCode is the exit status for an error of a command.
func exitCode(err error) int {
	var own *statusError
	var e *api.Error
	switch {
	case errors.As(err, &own):
		return own.status
	case errors.Is(err, api.ErrNotRunning), errors.Is(err, api.ErrSilent):
		return exitNoDaemon
	case errors.As(err, &e):
		return exitOfAPI(e.Status)
	}
	for status, list := range errorsOf {
		if slices.ContainsFunc(list, func(one error) bool { return errors.Is(err, one) }) {
			return status
		}
	}
	return exitFailed
}

// exitOfAPI is the exit status for an answer of causewayd's, or of a device process.
func exitOfAPI(status int) int {
	switch status {
	case http.StatusNotFound:
		return exitUnknown
	case http.StatusConflict, http.StatusInsufficientStorage:
		return exitConflict
	case http.StatusForbidden:
		return exitNotAllowed
	}
	return exitFailed
}
