package vf

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"

	"github.com/vishvananda/netlink"
)

// Kernel is what changes functions, and what only it knows of them.
type Kernel interface {
	// Write writes one value to a file of sysfs.
	Write(path, text string) error
	// Functions tells what a link's functions are like, in their order. A link without any has
	// none.
	Functions(link string) ([]Attributes, error)
	// Set makes one change (a setting of Settings.each) of a link's function. Partitions are not
	// netlink's.
	Set(link string, index int, one Settings) error
	// Holder is the process that has one of some files of /dev open; 0: none. all says that every
	// process was looked at.
	Holder(files ...string) (pid int, all bool, err error)
}

// System is the kernel that runs.
type System struct{ Proc string }

var _ Kernel = System{}

// Write implements Kernel.
func (System) Write(path, text string) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close())
}

var states = map[uint32]LinkState{
	netlink.VF_LINK_STATE_AUTO: Auto, netlink.VF_LINK_STATE_ENABLE: Enable, netlink.VF_LINK_STATE_DISABLE: Disable,
}

// Functions implements Kernel.
func (System) Functions(link string) ([]Attributes, error) {
	l, err := netlink.LinkByName(link)
	if err != nil {
		return nil, fmt.Errorf("link %s: %w", link, err)
	}
	var list []Attributes
	for _, v := range l.Attrs().Vfs {
		a := Attributes{
			VLAN: v.Vlan, QoS: v.Qos, MinRate: v.MinTxRate, MaxRate: v.MaxTxRate,
			// Drivers that know no trust say all ones.
			Trust: v.Trust == 1, SpoofCheck: v.Spoofchk, State: states[v.LinkState],
		}
		if l.Attrs().EncapType != "infiniband" {
			a.MAC = MAC(v.Mac.String())
		}
		list = append(list, a)
	}
	return list, nil
}

// Set implements Kernel.
func (k System) Set(link string, index int, one Settings) error {
	l, err := netlink.LinkByName(link)
	if err != nil {
		return fmt.Errorf("link %s: %w", link, err)
	}
	switch {
	case one.MAC != "":
		m, err := net.ParseMAC(string(one.MAC))
		if err != nil {
			return err
		}
		return netlink.LinkSetVfHardwareAddr(l, index, m)
	case one.VLAN != nil:
		qos := 0
		if one.QoS != nil {
			qos = *one.QoS
		}
		return netlink.LinkSetVfVlanQos(l, index, *one.VLAN, qos)
	case one.MinRate != nil || one.MaxRate != nil:
		return k.setRate(l, link, index, one)
	case one.Trust != nil:
		return netlink.LinkSetVfTrust(l, index, *one.Trust)
	case one.SpoofCheck != nil:
		return netlink.LinkSetVfSpoofchk(l, index, *one.SpoofCheck)
	case one.State != "":
		return netlink.LinkSetVfState(l, index, stateNumber(one.State))
	case one.NodeGUID != 0:
		return netlink.LinkSetVfNodeGUID(l, index, one.NodeGUID.bytes())
	case one.PortGUID != 0:
		return netlink.LinkSetVfPortGUID(l, index, one.PortGUID.bytes())
	}
	return syscall.EOPNOTSUPP
}

// setRate sets both rates, which one message carries: the one that is not said stays.
func (k System) setRate(l netlink.Link, link string, index int, one Settings) error {
	all, err := k.Functions(link)
	if err != nil {
		return err
	}
	if index >= len(all) {
		return syscall.ENODEV
	}
	now := all[index]
	if one.MinRate != nil {
		now.MinRate = *one.MinRate
	}
	if one.MaxRate != nil {
		now.MaxRate = *one.MaxRate
	}
	return netlink.LinkSetVfRate(l, index, int(now.MinRate), int(now.MaxRate))
}

func stateNumber(s LinkState) uint32 {
	for n, name := range states {
		if name == s {
			return n
		}
	}
	return netlink.VF_LINK_STATE_AUTO // which no checked state comes to
}

// Holder implements Kernel. It reads what /proc shows of each process's files: a process that ends
// meanwhile holds nothing.
func (k System) Holder(files ...string) (pid int, all bool, err error) {
	processes, err := os.ReadDir(k.Proc)
	if err != nil {
		return 0, false, err
	}
	all = true
	for _, p := range processes {
		n, err := strconv.Atoi(p.Name())
		if err != nil {
			continue
		}
		dir := filepath.Join(k.Proc, p.Name(), "fd")
		open, err := os.ReadDir(dir)
		if errors.Is(err, os.ErrPermission) {
			all = false
		}
		for _, f := range open {
			to, err := os.Readlink(filepath.Join(dir, f.Name()))
			if err == nil && slices.Contains(files, to) {
				return n, true, nil
			}
		}
	}
	return 0, all, nil
}
