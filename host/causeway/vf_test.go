package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"causeway/host/libvirt"
	"causeway/host/libvirt/libvirttest"
	"causeway/host/vf"
	"causeway/host/vf/vftest"
)

// vfNode is a host with a ConnectX and libvirt.
type vfNode struct {
	*vftest.Host
	t      *testing.T
	domain *libvirttest.Domain // nil: libvirt has none
}

func newVFNode(t *testing.T) *vfNode {
	return &vfNode{Host: vftest.New(t, vftest.ConnectX()), t: t, domain: libvirttest.New()}
}

// run runs `causeway vf`.
func (n *vfNode) run(args ...string) (string, error) {
	n.t.Helper()
	h := functionHost{
		Options: vf.Options{Sys: filepath.Join(n.Root, "sys"), Dev: filepath.Join(n.Root, "dev"), Kernel: n.Host},
		domain: func(_ context.Context, _, domain string) (libvirt.Domain, error) {
			if n.domain == nil || domain != n.domain.Title {
				return nil, fmt.Errorf("%w: %s", libvirt.ErrNoDomain, domain)
			}
			return n.domain, nil
		},
	}
	var out bytes.Buffer
	c := root()
	c.SetOut(&out)
	c.SetErr(&out)
	c.SetArgs(args)
	err := c.ExecuteContext(context.WithValue(n.t.Context(), functionHostKey{}, h))
	return out.String(), err
}

func (n *vfNode) vf(args ...string) (string, error) {
	n.t.Helper()
	return n.run(append(append([]string{"vf"}, args...), "--run-dir", filepath.Join(n.Root, "run"))...)
}

// step is one command: what it prints, or its error and status.
func (n *vfNode) step(status int, says string, args ...string) {
	n.t.Helper()
	out, err := n.vf(args...)
	got := 0
	if err != nil {
		got, out = exitCode(err), out+err.Error()
	}
	if got != status || !strings.Contains(out, says) {
		n.t.Errorf("vf %s: status %d, want %d with %q:\n%s", strings.Join(args, " "), got, status, says, out)
	}
}

// TestVF: from a bare NIC to a function in a VM, and back.
func TestVF(t *testing.T) {
	n := newVFNode(t)
	n.step(0, "enp65s0f0np0  0000:41:00.0  mlx5_core  mlx5_0  0     0 of 8", "list")
	n.step(0, "enp65s0f0np0 has 2 virtual functions, of 8", "create", "mlx5_0", "-n", "2")
	n.step(0, "0000:41:00.2 is passed through to VM vm1", "assign", "enp65s0f0np0", "--vm", "vm1", "--mac", "02:00:00:00:00:01", "--vlan", "100", "--qos", "3",
		"--min-rate", "100", "--max-rate", "25000", "--trust", "on", "--spoof-check", "off", "--state", "enable")
	for _, w := range []libvirt.Where{libvirt.Live, libvirt.Config} {
		if text, err := n.domain.XML(w); err != nil || !strings.Contains(text, "bus='0x41' slot='0x00' function='0x2'") {
			t.Errorf("%s, %v", text, err)
		}
	}
	n.step(0, "enp65s0f0np0/0  0000:41:00.2  reserved for VM vm1  mlx5_core  enp65s0f0np0v0 mlx5_2  02:00:00:00:00:01  100   100/25000  on     off          enable", "list")
	n.step(0, `"vm": "vm1"`, "list", "--json")
	n.Open["/dev/vfio/60"] = 99
	n.step(0, "in use by VM vm1", "list", "enp65s0f0np0")
	n.step(exitConflict, "process 99 has 0000:41:00.2 open", "release", "vm1")
	if text, err := n.domain.XML(libvirt.Live); err != nil || strings.Contains(text, "hostdev") {
		t.Errorf("libvirt was not asked: %s, %v", text, err)
	}
	clear(n.Open)
	n.step(0, "0000:41:00.2 is free, as it was before", "release", "vm1")
	n.step(0, "enp65s0f0np0/0  0000:41:00.2  free  mlx5_core  enp65s0f0np0v0 mlx5_2  00:00:00:00:00:00  -     0/0   off    off          auto", "list")
	n.step(0, "nothing is left", "release", "--ended")
	n.step(0, `"address": "0000:41:00.3"`, "assign", "enp65s0f0np0/1", "--to", "relay", "--json")
	n.step(0, "[mlx5_2]", "assign", "enp65s0f0np0/0", "--to", "relay")
	n.step(exitConflict, "no virtual function is free of the 2", "assign", "mlx5_0", "--to", "relay")
	n.step(0, "is free", "release", "mlx5_0/1")
	n.step(0, "<address domain='0x0000' bus='0x41' slot='0x00' function='0x3'/>", "assign", "mlx5_0", "--vm", "any VM", "--print-xml")
}

// TestVFWithoutTheVM: a domain that is no more, or that ends by itself, keeps nothing.
func TestVFWithoutTheVM(t *testing.T) {
	n := newVFNode(t)
	n.step(0, "", "create", "mlx5_0", "-n", "3")
	n.step(0, "", "assign", "mlx5_0/0", "--vm", "vm1", "--config")
	n.step(0, "", "assign", "mlx5_0/1", "--vm", "vm1", "--live")
	n.step(0, "ended for VM vm1", "list")
	n.step(0, "0000:41:00.3 is free", "release", "--ended", "--connect", "")
	domain := n.domain
	n.domain = nil
	n.step(0, "0000:41:00.2 is free", "release", "vm1")
	n.step(exitUnknown, "no such domain", "assign", "mlx5_0/2", "--vm", "vm1")
	n.domain = domain
	n.domain.In = libvirt.Config
	n.step(exitConflict, "start it, or use --config", "assign", "mlx5_0/2", "--vm", "vm1", "--live")
	n.domain.Fail = map[string]error{"attach": errors.New("no more available PCI slots")}
	n.step(exitFailed, "no more available PCI slots (what was done before is taken back)", "assign", "mlx5_0/2", "--vm", "vm1", "--vlan", "5")
	n.step(0, "0000:41:00.4  free  mlx5_core  enp65s0f0np0v2 mlx5_4  00:00:00:00:00:00  -  ", "list")
}

// TestVFRefused: what is wrong is named, with what helps.
func TestVFRefused(t *testing.T) {
	n := newVFNode(t)
	n.step(0, "", "create", "mlx5_0", "-n", "1")
	for _, c := range []struct {
		status int
		says   string
		args   string
	}{
		{exitConflict, "can have 8 (its sriov_totalvfs), not 9", "create mlx5_0 -n 9"},
		{exitUnknown, "these are: enp65s0f0np0", "create eth0 -n 1"},
		{exitFailed, `required flag(s) "functions" not set`, "create mlx5_0"},
		{exitFailed, "--mac: not valid", "assign mlx5_0 --vm vm1 --mac 01:00:00:00:00:00"},
		{exitFailed, "--trust: not valid: \"yes\": on or off", "assign mlx5_0 --vm vm1 --trust yes"},
		{exitFailed, "--state: not valid", "assign mlx5_0 --vm vm1 --state up"},
		{exitFailed, "--node-guid: not valid", "assign mlx5_0 --vm vm1 --node-guid 1"},
		{exitFailed, "VLAN 5000", "assign mlx5_0 --vm vm1 --vlan 5000"},
		{exitFailed, "partitions.conf", "assign mlx5_0 --vm vm1 --partitions 1"},
		{exitFailed, "at least one of the flags", "assign mlx5_0"},
		{exitFailed, "--to \"vm1\": relay, or --vm VM", "assign mlx5_0 --to vm1"},
		{exitFailed, "none of the others can be", "assign mlx5_0 --to relay --vm vm1"},
		{exitUnknown, "--functions 6` makes more", "assign mlx5_0/5 --to relay"},
		{exitFailed, "use `causeway vf assign FUNCTION|NIC [flags]`", "assign --to relay"},
		{exitConflict, "is free", "release mlx5_0/0"},
		{exitUnknown, "no VM that has one, nor a function", "release vm7"},
		{exitFailed, "say a function, a VM or --ended", "release"},
		{exitFailed, "say a function, a VM or --ended", "release vm1 --ended"},
	} {
		n.step(c.status, c.says, strings.Fields(c.args)...)
	}
}

// TestVFEnded: libvirt's hook, when a domain has ended, and causewayd, when it starts, take back
// what is left of VMs.
func TestVFEnded(t *testing.T) {
	for name, do := range map[string]func(run string){
		"hook": func(run string) {
			_, said, err := command(t, "hook", "qemu", "vm1", "release", "end", "-", "--run-dir", run)
			if err != nil || said != "" {
				t.Errorf("%s, %v", said, err)
			}
		},
		"causewayd": func(run string) { freeEnded(t.Context(), run, "", slog.New(slog.DiscardHandler)) },
	} {
		t.Run(name, func(t *testing.T) {
			run := shortDir(t)
			// A function that this host has not: whatever had it is gone.
			record := `{"format":1,"assignments":[{"address":"ffff:ff:1f.7","pf":"ffff:ff:1f.0","index":0,"use":"vm","vm":"vm1","live":true}]}`
			path := filepath.Join(run, "vfs.json")
			if err := os.WriteFile(path, []byte(record), 0o600); err != nil {
				t.Fatal(err)
			}
			if _, _, err := command(t, "hook", "qemu", "vm2", "release", "end", "-", "--run-dir", run); err != nil {
				t.Error(err)
			}
			if _, err := os.Stat(path); err != nil {
				t.Errorf("another VM's end: %v", err)
			}
			do(run)
			if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("it is still there: %v", err)
			}
		})
	}
}

// TestVFCompletion: shells are offered NICs, functions and words.
func TestVFCompletion(t *testing.T) {
	n := newVFNode(t)
	n.step(0, "", "create", "mlx5_0", "-n", "2")
	n.step(0, "", "assign", "mlx5_0/1", "--vm", "vm1", "--config")
	for line, want := range map[string]string{
		"list ":                       "enp65s0f0np0\t2 of 8 functions",
		"create ":                     "enp65s0f0np0\t2 of 8 functions",
		"assign ":                     "enp65s0f0np0/0\tfree",
		"release ":                    "enp65s0f0np0/1\treserved for VM vm1",
		"assign x --to ":              "relay",
		"assign x --state ":           "auto\nenable\ndisable",
		"assign x --vm y --trust ":    "on\noff",
		"assign enp65s0f0np0/0 extra": "",
	} {
		args := append([]string{"__complete", "vf"}, strings.Split(line, " ")...)
		args = append(args[:3:3], append([]string{"--run-dir", filepath.Join(n.Root, "run")}, args[3:]...)...)
		out, err := n.run(args...)
		// Flags that must be given are offered too.
		if got, _, _ := strings.Cut("\n"+out, "\n:"); err != nil || !strings.HasSuffix(got, strings.TrimSuffix("\n"+want, "\n")) || strings.Contains(got, "enp") != strings.Contains(want, "enp") {
			t.Errorf("%q: %q, %v", line, out, err)
		}
	}
}
