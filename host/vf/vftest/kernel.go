package vftest

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"causeway/host/vf"
)

// Write implements vf.Kernel.
func (h *Host) Write(path, text string) error {
	name, dir := filepath.Base(path), filepath.Dir(path)
	device := filepath.Base(dir)
	h.Calls = append(h.Calls, device+"/"+name+"="+strings.TrimSpace(text))
	if err := h.Fail[name]; err != nil {
		return &os.PathError{Op: "write", Path: path, Err: err}
	}
	switch name {
	case "sriov_numvfs":
		i := slices.IndexFunc(h.nics, func(n NIC) bool { return n.Address == device })
		if i < 0 {
			return syscall.ENOENT
		}
		if err := h.count(&h.nics[i], text); err != nil {
			return &os.PathError{Op: "write", Path: path, Err: err}
		}
		return nil
	case "unbind":
		h.Bind(text, "")
		return nil
	case "drivers_probe":
		for i := range h.nics {
			if _, ok := h.nics[i].index(text); ok && h.probes(&h.nics[i]) {
				h.Bind(text, h.nics[i].Driver)
			}
		}
		return nil
	}
	if _, err := os.Stat(path); err != nil {
		return err
	}
	h.put(path, text)
	return nil
}

// Functions implements vf.Kernel.
func (h *Host) Functions(link string) ([]vf.Attributes, error) {
	if err := h.Fail["functions"]; err != nil {
		return nil, err
	}
	return slices.Clone(h.state[link]), nil
}

// Set implements vf.Kernel.
func (h *Host) Set(link string, index int, s vf.Settings) error {
	i := slices.IndexFunc(h.nics, func(n NIC) bool { return n.Link == link })
	if i < 0 || index >= len(h.state[link]) {
		return syscall.ENODEV
	}
	a, ib := &h.state[link][index], h.nics[i].InfiniBand
	var name string
	do := func() {}
	switch {
	case s.MAC != "":
		name, do = "mac", func() { a.MAC = s.MAC }
	case s.VLAN != nil:
		name, do = "vlan", func() {
			a.VLAN, a.QoS = *s.VLAN, 0
			if s.QoS != nil {
				a.QoS = *s.QoS
			}
		}
	case s.MinRate != nil || s.MaxRate != nil:
		if b, _ := os.ReadFile(h.carrier(&h.nics[i])); string(b) == "0\n" {
			// No part of a speed that is not agreed on.
			return syscall.EINVAL
		}
		name, do = "rate", func() {
			if s.MinRate != nil {
				a.MinRate = *s.MinRate
			}
			if s.MaxRate != nil {
				a.MaxRate = *s.MaxRate
			}
		}
	case s.Trust != nil:
		name, do = "trust", func() { a.Trust = *s.Trust }
	case s.SpoofCheck != nil:
		name, do = "spoof", func() { a.SpoofCheck = *s.SpoofCheck }
	case s.State != "":
		name, do = "state", func() { a.State = s.State }
	case s.NodeGUID != 0:
		name = "node"
	case s.PortGUID != 0:
		name = "port"
	}
	h.Calls = append(h.Calls, fmt.Sprintf("%s/%d %s", link, index, name))
	guid := name == "node" || name == "port"
	switch err := h.Fail[name]; {
	case err != nil:
		return err
	case guid != ib && name != "state":
		// An Ethernet port has no GUIDs to be set, one of InfiniBand nothing but those and its
		// state.
		return syscall.EOPNOTSUPP
	case !h.Deaf[name]:
		do()
	}
	return nil
}

// Holder implements vf.Kernel.
func (h *Host) Holder(files ...string) (pid int, all bool, err error) {
	if h.Blind {
		return 0, false, nil
	}
	for _, f := range files {
		if pid := h.Open[strings.TrimPrefix(f, h.Root)]; pid != 0 {
			return pid, true, nil
		}
	}
	return 0, true, nil
}

// Carrier says whether the port that has such a link is connected; a port has one at first. Any
// goroutine may call it.
func (h *Host) Carrier(link string, up bool) {
	i := slices.IndexFunc(h.nics, func(n NIC) bool { return n.Link == link })
	text := "0\n"
	if up {
		text = "1\n"
	}
	path := h.carrier(&h.nics[i])
	h.must(os.WriteFile(path+"~", []byte(text), 0o644))
	h.must(os.Rename(path+"~", path)) // a reader finds one of the two
}

func (h *Host) carrier(n *NIC) string {
	return h.sys("devices/pci0000:40", n.Address, "net", n.Link, "carrier")
}
