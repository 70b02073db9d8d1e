package peer

import (
	"net"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"causeway/host/daemon/config"
)

func TestRole(t *testing.T) {
	p, err := NewPolicy(config.Roles{Admin: []string{"10", "@100"}, Operator: []string{"20", "@200", "30"}, Viewer: []string{"30", "@300", "0"}})
	if err != nil {
		t.Fatal(err)
	}
	p.Database = func(uid uint32) []uint32 { return map[uint32][]uint32{70: {5, 300}, 71: {100}}[uid] }
	for name, c := range map[string]struct {
		who  Peer
		want Role
	}{
		"root":                               {Peer{}, Admin},
		"the daemon's own user":              {Peer{UID: uint32(os.Geteuid())}, Admin},
		"admin":                              {Peer{UID: 10, GID: 5}, Admin},
		"operator":                           {Peer{UID: 20, GID: 5}, Operator},
		"the higher of two":                  {Peer{UID: 30, GID: 5}, Operator},
		"nobody":                             {Peer{UID: 65534, GID: 65534}, None},
		"by first group":                     {Peer{UID: 60, GID: 200}, Operator},
		"by another group":                   {Peer{UID: 60, GID: 5, Groups: []uint32{7, 300}}, Viewer},
		"by the highest group":               {Peer{UID: 60, GID: 300, Groups: []uint32{200, 100}}, Admin},
		"a user's number is no group's":      {Peer{UID: 100, GID: 20}, None},
		"by the database":                    {Peer{UID: 70, GID: 5}, Viewer},
		"by the database, above the process": {Peer{UID: 71, GID: 200}, Admin},
	} {
		if got := p.Role(c.who); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
	if _, err := NewPolicy(config.Roles{Admin: []string{"@no-such-group"}}); err == nil {
		t.Error("a group that does not exist has a role")
	}
}

// TestOf: the kernel says who connected, with the groups of that moment.
func TestOf(t *testing.T) {
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(t.TempDir(), "s"), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	c, err := net.Dial("unix", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	s, err := ln.AcceptUnix()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	p, err := Of(s)
	if err != nil || p.PID != os.Getpid() || p.UID != uint32(os.Getuid()) || p.GID != uint32(os.Getgid()) {
		t.Errorf("%+v, %v", p, err)
	}
	want, err := syscall.Getgroups()
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range want {
		if !slices.Contains(p.Groups, uint32(g)) {
			t.Errorf("groups %v, want %v", p.Groups, want)
		}
	}
	if p.String() == "" {
		t.Error("it has no name")
	}
}

func TestServing(t *testing.T) {
	for _, network := range []string{"unix", "unixpacket"} {
		path := filepath.Join(t.TempDir(), "s")
		if _, err := Serving(path); err == nil {
			t.Error("nobody serves it")
		}
		ln, err := net.ListenUnix(network, &net.UnixAddr{Name: path, Net: network})
		if err != nil {
			t.Fatal(err)
		}
		if p, err := Serving(path); err != nil || p.PID != os.Getpid() {
			t.Errorf("%s: %+v, %v", network, p, err)
		}
		_ = ln.Close()
	}
}
