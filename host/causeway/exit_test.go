package main

import (
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"causeway/host/api"
	"causeway/host/api/apitest"
)

// TestExitStatuses provokes each status of the table.
func TestExitStatuses(t *testing.T) {
	run, _ := fakeNode(t)
	closed := shortDir(t) // a device process whose limits this user may not change
	apitest.ServeDevice(t, filepath.Join(closed, "vm1", "gpu0.ctl"), func() api.Status { return api.Status{} }, func(api.Change) *api.Error {
		return &api.Error{Status: http.StatusForbidden, Text: "not yours"}
	})
	full := shortDir(t)
	apitest.ServeDevice(t, filepath.Join(full, "vm1", "gpu0.ctl"), func() api.Status { return api.Status{} }, func(api.Change) *api.Error {
		return &api.Error{Status: http.StatusInsufficientStorage, Text: "no room"}
	})
	seen := map[int]bool{}
	for _, c := range []struct {
		want int
		args []string
	}{
		{0, []string{"ps", "--run-dir", run}},
		{exitFailed, []string{"ps", "--no-such-option"}},
		{exitFailed, []string{"no-such-command"}},
		{exitFailed, []string{"limits", "vm1/gpu0", "--memory", "lots", "--run-dir", run}},
		{exitNoDaemon, []string{"create", "vm1", "--run-dir", shortDir(t)}},
		{exitNoDaemon, []string{"gpus", "drain", "0", "--run-dir", shortDir(t)}},
		{exitUnknown, []string{"inspect", "vm2", "--run-dir", run}},
		{exitUnknown, []string{"delete", "vm2", "--run-dir", run}},
		{exitUnknown, []string{"logs", "vm1", "--run-dir", closed, "--log-dir", closed}},
		{exitUnknown, []string{"device", "--socket", filepath.Join(closed, "s"), "--gpu", "99", "--lib", libFolder(t)}},
		{exitConflict, []string{"delete", "vm1/gpu0", "--run-dir", run}},
		{exitConflict, []string{"limits", "vm1", "--cap", "40", "--run-dir", full}},
		{exitNotAllowed, []string{"limits", "vm1", "--cap", "40", "--run-dir", closed}},
		{exitRunFailed, []string{"run", "--no-such-option", "--", "true"}},
		{exitRunFailed, []string{"run"}},
		{exitRunFailed, []string{"run", "--gpu", "99", "--", "true"}},
		{exitNoInvoke, []string{"run", "--lib", libFolder(t), "--", closed}},
		{exitNotFound, []string{"run", "--lib", libFolder(t), "--", "/nowhere/program"}},
	} {
		got := 0
		_, _, err := command(t, c.args...)
		if err != nil {
			got = exitCode(err)
		}
		if got != c.want {
			t.Errorf("%v: status %d (%v), want %d", c.args, got, err, c.want)
		}
		seen[c.want] = true
	}
	for _, e := range exits {
		if !seen[e.status] {
			t.Errorf("nothing provokes %d: %s", e.status, e.meaning)
		}
	}
}

// TestErrorsOf: what has a status by itself keeps it behind explanations, and each status is in the
// table.
func TestErrorsOf(t *testing.T) {
	for _, status := range slices.Sorted(maps.Keys(errorsOf)) {
		for _, err := range errorsOf[status] {
			if got := exitCode(fmt.Errorf("vm1: %w: try again", err)); got != status {
				t.Errorf("%v: status %d, want %d", err, got, status)
			}
		}
		if !strings.Contains(exitText(), fmt.Sprintf("\n  %-4d ", status)) {
			t.Errorf("%d is not explained", status)
		}
	}
}

// TestExitTable: the document for operators has the same table.
func TestExitTable(t *testing.T) {
	b, err := os.ReadFile("../../docs/OPERATIONS.md")
	if err != nil {
		t.Fatal(err)
	}
	want := "| exit status | |\n|---|---|\n"
	for _, e := range exits {
		want += fmt.Sprintf("| %d | %s |\n", e.status, e.meaning)
	}
	if !strings.Contains(string(b), want) {
		t.Errorf("docs/OPERATIONS.md has another table of exit statuses; it should have\n%s", want)
	}
}
