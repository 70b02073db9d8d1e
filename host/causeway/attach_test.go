package main

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"causeway/host/api"
	"causeway/host/libvirt"
	"causeway/host/qmp/qmptest"
)

// TestAttachSays: attach and detach say in a line what they did, and what the guest does.
func TestAttachSays(t *testing.T) {
	run, _ := fakeNode(t)
	monitor := filepath.Join(shortDir(t), "qmp")
	(&qmptest.QEMU{Ports: []string{"rp1", "rp2"}}).Serve(t, monitor)
	base := []string{"--qmp", monitor, "--run-dir", run}
	for _, c := range []struct {
		args         []string
		want, warned string
	}{
		{[]string{"attach", "hand", "--memory", "1GiB", "--cap", "25%"},
			"hand/gpu0 is added to the running VM: 1 GiB of memory, share 100, cap 25%. In the guest: mkdir -p /run/causeway && mount -t virtiofs gpu0 /run/causeway\n", ""},
		{[]string{"attach", "hand", "--name", "gpu1"},
			"hand/gpu1 is added to the running VM: the whole memory, share 100, no cap. In the guest: mkdir -p /run/causeway-gpu1 && mount -t virtiofs gpu1 /run/causeway-gpu1\n", "no limit of memory"},
		{[]string{"detach", "hand", "gpu1"}, "hand/gpu1 is taken out of the running VM, and ended. In the guest, if the mount is left: umount -l /run/causeway\n", ""},
	} {
		out, warned, err := command(t, append(c.args, base...)...)
		if err != nil || out != c.want || !strings.Contains(warned, c.warned) || c.warned == "" && warned != "" {
			t.Errorf("%v: %v\n%s%s", c.args, err, out, warned)
		}
	}
	missing := filepath.Join(shortDir(t), "nobody")
	for _, verb := range []string{"attach", "detach"} {
		_, _, err := command(t, verb, "hand", "--qmp", missing, "--run-dir", run)
		if err == nil || !strings.Contains(err.Error(), "-qmp unix:SOCKET,server=on,wait=off") || !strings.Contains(err.Error(), missing) || exitCode(err) != exitConflict {
			t.Errorf("%s without QEMU: %v, status %d", verb, err, exitCode(err))
		}
	}
	// A domain has two places; a plan is not done.
	for where, r := range map[string]libvirt.Result{
		"is added to the running VM and its definition:": {VM: "a", Name: "g", Live: true, Config: true, Done: true, Limits: api.Limits{Memory: 1}},
		"is added to the VM's definition:":               {VM: "a", Name: "g", Config: true, Done: true, Limits: api.Limits{Memory: 1}},
		"":                                               {VM: "a", Name: "g", Live: true},
	} {
		var b strings.Builder
		cmd := &cobra.Command{Use: "attach"}
		cmd.SetOut(&b)
		if err := new(domainFlags).print(cmd, &r); err != nil || !strings.Contains(b.String(), where) || where == "" && b.Len() > 0 {
			t.Errorf("%q: %v, %q", where, err, b.String())
		}
	}
}
