package vf

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// PF is a NIC's physical function, with what it has made.
type PF struct {
	// Of its network interface, else of its RDMA device, else its address.
	Name      string   `json:"name"`
	Address   Address  `json:"address"`
	Driver    string   `json:"driver,omitempty"`
	Links     []string `json:"links,omitempty"` // network interfaces
	RDMA      []string `json:"rdma,omitempty"`  // RDMA devices
	Total     int      `json:"total"`           // how many functions it can have
	NUMA      int      `json:"numa"`            // node; -1: none
	Functions []VF     `json:"functions"`
}

// VF is a virtual function.
type VF struct {
	Index      int         `json:"index"`
	Address    Address     `json:"address"`
	Driver     string      `json:"driver,omitempty"`
	Group      int         `json:"iommu_group"` // -1: the host has no IOMMU that works
	Links      []string    `json:"links,omitempty"`
	RDMA       []string    `json:"rdma,omitempty"`
	Attributes *Attributes `json:"attributes,omitempty"`
	// Keys are the partition keys in the tables of its ports, while a driver of the host's has it.
	Keys []string `json:"partition_keys,omitempty"`
	// State, the record and the holder are Manager.List's.
	State  State       `json:"state,omitempty"`
	Record *Assignment `json:"assignment,omitempty"`
	Holder int         `json:"holder,omitempty"` // process that has it open through VFIO

	cdevs []string // its files below /dev/vfio/devices
}

// link is the interface through which netlink speaks of the functions; empty: none. In a NIC's
// switchdev mode its representors stand beside it.
func (p *PF) link() string {
	if len(p.Links) == 0 {
		return ""
	}
	return p.Links[0]
}

// Bounds on what is read: sysfs has small files.
const (
	mostAttribute = 4096
	mostFunctions = 1024
	networkClass  = "0x02" // PCI's class of Ethernet, InfiniBand and other network controllers
)

// sysfs reads the tree of devices.
type sysfs struct{ root string }

// read is an attribute's text without its newline; empty if there is none.
func (s sysfs) read(path string) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	b, _ := io.ReadAll(io.LimitReader(f, mostAttribute))
	return string(bytes.TrimSpace(b))
}

// number is an attribute between 0 and most; -1: it is missing or is none.
func (s sysfs) number(path string, most int) int {
	n, err := strconv.Atoi(s.read(path))
	if err != nil || n < 0 || n > most {
		return -1
	}
	return n
}

// names are the entries of a folder, sorted.
func (s sysfs) names(dir string) (list []string) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil
	}
	for _, e := range entries {
		list = append(list, e.Name())
	}
	return list
}

// target is the last part of where a link leads.
func (s sysfs) target(path string) string {
	to, err := os.Readlink(path)
	if err != nil {
		return ""
	}
	return filepath.Base(to)
}

func (s sysfs) device(a Address) string {
	return filepath.Join(s.root, "bus/pci/devices", string(a))
}

// physical lists the NICs that can have virtual functions, by their addresses.
func (s sysfs) physical() (list []PF, err error) {
	dir := filepath.Join(s.root, "bus/pci/devices")
	if _, err := os.Stat(dir); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("PCI devices of this host: %w", err)
	}
	for _, name := range s.names(dir) {
		a, err := ParseAddress(name)
		if err != nil || !strings.HasPrefix(s.read(filepath.Join(dir, name, "class")), networkClass) {
			continue
		}
		total := s.number(filepath.Join(dir, name, "sriov_totalvfs"), mostFunctions)
		if total < 0 {
			continue
		}
		list = append(list, s.one(a, total))
	}
	return list, nil
}

func (s sysfs) one(a Address, total int) PF {
	dir := s.device(a)
	pf := PF{
		Address: a, Total: total, Driver: s.target(filepath.Join(dir, "driver")), NUMA: s.number(filepath.Join(dir, "numa_node"), 1<<16),
		Links: s.links(dir), RDMA: s.names(filepath.Join(dir, "infiniband")), Functions: []VF{},
	}
	pf.Name = string(a)
	for _, names := range [][]string{pf.RDMA, pf.Links} {
		if len(names) > 0 {
			pf.Name = names[0]
		}
	}
	for _, name := range s.names(dir) {
		index, isFunction := strings.CutPrefix(name, "virtfn")
		i, err := strconv.Atoi(index)
		if !isFunction || err != nil || i < 0 || i >= mostFunctions {
			continue
		}
		if v, err := ParseAddress(s.target(filepath.Join(dir, name))); err == nil {
			pf.Functions = append(pf.Functions, s.function(v, i))
		}
	}
	slices.SortFunc(pf.Functions, func(a, b VF) int { return a.Index - b.Index })
	return pf
}

// links are a device's network interfaces, the physical port's before those that stand for
// functions (pf0vf1).
func (s sysfs) links(dir string) []string {
	list := s.names(filepath.Join(dir, "net"))
	stands := func(name string) int {
		if strings.Contains(s.read(filepath.Join(dir, "net", name, "phys_port_name")), "vf") {
			return 1
		}
		return 0
	}
	slices.SortStableFunc(list, func(a, b string) int { return stands(a) - stands(b) })
	return list
}

func (s sysfs) function(a Address, index int) VF {
	dir := s.device(a)
	v := VF{
		Index: index, Address: a, Driver: s.target(filepath.Join(dir, "driver")), Group: -1,
		Links: s.names(filepath.Join(dir, "net")), RDMA: s.names(filepath.Join(dir, "infiniband")), cdevs: s.names(filepath.Join(dir, "vfio-dev")),
	}
	if g, err := strconv.Atoi(s.target(filepath.Join(dir, "iommu_group"))); err == nil {
		v.Group = g
	}
	for _, dev := range v.RDMA {
		v.Keys = append(v.Keys, s.keys(filepath.Join(dir, "infiniband", dev, "ports"))...)
	}
	return v
}

// keys are the partition keys of all ports, without places that are empty.
func (s sysfs) keys(ports string) (list []string) {
	for _, port := range s.names(ports) {
		for _, i := range s.names(filepath.Join(ports, port, "pkeys")) {
			key := s.read(filepath.Join(ports, port, "pkeys", i))
			if _, err := strconv.ParseUint(key, 0, 16); err == nil && key != "0x0000" && !slices.Contains(list, key) {
				list = append(list, key)
			}
		}
	}
	return list
}

// carrier is 1 if the port's link is up and 0 if not; -1: it has no network interface, or one that
// is not set up and has no link either.
func (s sysfs) carrier(pf *PF) int {
	l := pf.link()
	if l == "" {
		return -1
	}
	return s.number(filepath.Join(s.device(pf.Address), "net", l, "carrier"), 1)
}

// tree is where mlx5 lets each function be set by files: node, port and policy. Kernels without
// NVIDIA's own driver have netlink alone.
func (s sysfs) tree(pf *PF, index int) (dir string, ok bool) {
	dir = filepath.Join(s.device(pf.Address), "sriov", strconv.Itoa(index))
	_, err := os.Stat(dir)
	return dir, err == nil
}

// fill adds to what netlink told of a function what the driver's own tree does.
func (s sysfs) fill(pf *PF, v *VF) {
	dir, ok := s.tree(pf, v.Index)
	if ok {
		if v.Attributes == nil {
			v.Attributes = &Attributes{}
		}
		for name, to := range map[string]*GUID{"node": &v.Attributes.NodeGUID, "port": &v.Attributes.PortGUID} {
			if g, err := ParseGUID(s.read(filepath.Join(dir, name))); err == nil {
				*to = g
			}
		}
		for state, policy := range policies {
			if v.Attributes.State == "" && s.read(filepath.Join(dir, "policy")) == policy {
				v.Attributes.State = state
			}
		}
	}
	if places := s.places(pf, v); len(places) > 0 && v.Attributes != nil {
		for _, p := range places {
			v.Attributes.Partitions = append(v.Attributes.Partitions, max(0, s.number(p, maxPartitions)))
		}
	}
}

// places are the files by which a driver maps a function's table of partition keys to the physical
// port's, in order: mlx4 does, for its first port.
func (s sysfs) places(pf *PF, v *VF) (list []string) {
	for _, dev := range pf.RDMA {
		dir := filepath.Join(s.device(pf.Address), "infiniband", dev, "iov", string(v.Address), "ports/1/pkey_idx")
		for i := range s.names(dir) {
			p := filepath.Join(dir, strconv.Itoa(i))
			if _, err := os.Stat(p); err == nil {
				list = append(list, p)
			}
		}
	}
	return list
}
