// Package vftest is a host with NICs that have virtual functions, for tests: a tree of sysfs, and
// the kernel behind it.
//
// The tree has the shape that a ConnectX with the driver mlx5_core has in NVIDIA's and the kernel's
// public documents. What the kernel does when its files are written is done by Host: functions come
// and go, drivers are bound. A Host belongs to the goroutine of its test.
package vftest

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"causeway/host/vf"
)

// NIC is a card's port.
type NIC struct {
	Address, Driver, Link, RDMA string
	Total                       int
	InfiniBand                  bool
	// Tree is whether the driver is NVIDIA's own, which has sriov/N/{node,port,policy}; Maps
	// whether it maps partition keys as mlx4 does.
	Tree, Maps bool
}

// ConnectX is an Ethernet port of a ConnectX-6 Dx with the kernel's driver.
func ConnectX() NIC {
	return NIC{Address: "0000:41:00.0", Driver: "mlx5_core", Link: "enp65s0f0np0", RDMA: "mlx5_0", Total: 8}
}

// Host is the fake; it implements vf.Kernel.
type Host struct {
	Root string // Sys and Dev are below it
	// Fail is the error of a write to a file of that name, or of a change by netlink of that name:
	// mac, vlan, rate, trust, spoof, state, node, port.
	Fail map[string]error
	// Deaf are changes by netlink that are answered with yes, and not made.
	Deaf map[string]bool
	// Open are the processes that have files of /dev open, by their names.
	Open map[string]int
	// Blind is who may not see what other processes have open.
	Blind bool
	// Calls are the changes, in order.
	Calls []string

	t     testing.TB
	nics  []NIC
	state map[string][]vf.Attributes // of functions, by link
}

var _ vf.Kernel = (*Host)(nil)

// New makes a host.
func New(t testing.TB, nics ...NIC) *Host {
	t.Helper()
	h := &Host{Root: t.TempDir(), Fail: map[string]error{}, Deaf: map[string]bool{}, Open: map[string]int{}, t: t, nics: nics, state: map[string][]vf.Attributes{}}
	h.mkdir(h.sys("bus/pci/devices"))
	h.mkdir(filepath.Join(h.Root, "dev/vfio"))
	for _, driver := range []string{"mlx5_core", "mlx4_core", "vfio-pci"} {
		h.mkdir(h.sys("bus/pci/drivers", driver))
	}
	// A bridge: no NIC.
	h.device("0000:00:00.0", map[string]string{"class": "0x060000", "vendor": "0x8086"})
	// A NIC that has none.
	h.device("0000:3f:00.0", map[string]string{"class": "0x020000", "vendor": "0x14e4"})
	h.device("0000:81:00.0", map[string]string{"class": "0x010802", "sriov_totalvfs": "32"})
	for _, n := range nics {
		h.physical(n)
	}
	return h
}

// Manager is one of this host.
func (h *Host) Manager() *vf.Manager {
	return vf.New(vf.Options{Sys: h.sys(), Dev: filepath.Join(h.Root, "dev"), Kernel: h, Run: filepath.Join(h.Root, "run")})
}

func (h *Host) sys(parts ...string) string {
	return filepath.Join(append([]string{h.Root, "sys"}, parts...)...)
}

func (h *Host) must(err error) {
	h.t.Helper()
	if err != nil {
		h.t.Fatal(err)
	}
}

func (h *Host) mkdir(dir string) { h.must(os.MkdirAll(dir, 0o755)) }

func (h *Host) put(path, text string) {
	h.mkdir(filepath.Dir(path))
	h.must(os.WriteFile(path, []byte(text+"\n"), 0o644))
}

func (h *Host) link(to, path string) { h.must(os.Symlink(to, path)) }

// device makes one; sysfs has it below devices/ and a link to it in bus/pci/devices.
func (h *Host) device(address string, files map[string]string) string {
	dir := h.sys("devices/pci0000:40", address)
	for name, text := range files {
		h.put(filepath.Join(dir, name), text)
	}
	h.link("../../../devices/pci0000:40/"+address, h.sys("bus/pci/devices", address))
	return dir
}

func class(n NIC) string {
	if n.InfiniBand {
		return "0x020700"
	}
	return "0x020000"
}

func (h *Host) physical(n NIC) {
	dir := h.device(n.Address, map[string]string{
		"class": class(n), "vendor": "0x15b3", "device": "0x101d", "numa_node": "0", "sriov_totalvfs": strconv.Itoa(n.Total), "sriov_numvfs": "0",
		"sriov_offset": "2", "sriov_stride": "1", "sriov_vf_device": "101e", "sriov_drivers_autoprobe": "1", "sriov_vf_total_msix": "0",
	})
	h.link("../../../bus/pci/drivers/"+n.Driver, filepath.Join(dir, "driver"))
	if n.Link != "" {
		h.put(filepath.Join(dir, "net", n.Link, "phys_port_name"), "p0")
		h.put(h.carrier(&n), "1")
		h.put(filepath.Join(dir, "net", "a-representor", "phys_port_name"), "pf0vf0")
	}
	h.rdma(dir, n.RDMA)
}

func (h *Host) rdma(dir, name string) {
	h.put(filepath.Join(dir, "infiniband", name, "ports/1/state"), "4: ACTIVE")
	h.put(filepath.Join(dir, "infiniband", name, "ports/1/pkeys/0"), "0xffff")
	h.put(filepath.Join(dir, "infiniband", name, "ports/1/pkeys/1"), "0x8001")
	h.put(filepath.Join(dir, "infiniband", name, "ports/1/pkeys/2"), "0x0000")
}

// address is a function's: behind the physical ones.
func (n *NIC) address(i int) string {
	return fmt.Sprintf("%s:%02x.%x", strings.TrimSuffix(n.Address, ":00.0"), (i+2)/8, (i+2)%8)
}

func (n *NIC) index(address string) (int, bool) {
	for i := range n.Total {
		if n.address(i) == address {
			return i, true
		}
	}
	return 0, false
}

// count makes or ends a NIC's functions, as a write to sriov_numvfs does.
func (h *Host) count(n *NIC, text string) error {
	count, err := strconv.Atoi(text)
	dir := h.sys("devices/pci0000:40", n.Address)
	now, _ := filepath.Glob(filepath.Join(dir, "virtfn*"))
	switch {
	case err != nil || count < 0:
		return syscall.EINVAL
	case count > n.Total:
		return syscall.ERANGE
	case count != 0 && len(now) != 0:
		return syscall.EBUSY
	}
	for i := range now {
		h.must(os.Remove(filepath.Join(dir, "virtfn"+strconv.Itoa(i))))
		h.must(os.Remove(h.sys("bus/pci/devices", n.address(i))))
		h.must(os.RemoveAll(h.sys("devices/pci0000:40", n.address(i))))
	}
	h.must(os.RemoveAll(filepath.Join(dir, "sriov")))
	h.state[n.Link] = make([]vf.Attributes, count)
	for i := range count {
		h.function(n, dir, i)
	}
	h.put(filepath.Join(dir, "sriov_numvfs"), text)
	return nil
}

func (h *Host) function(n *NIC, pf string, i int) {
	address := n.address(i)
	dir := h.device(address, map[string]string{"class": class(*n), "vendor": "0x15b3", "device": "0x101e", "numa_node": "0", "driver_override": "(null)"})
	h.link("../"+n.Address, filepath.Join(dir, "physfn"))
	h.mkdir(h.sys("kernel/iommu_groups", strconv.Itoa(60+i)))
	h.link("../../../kernel/iommu_groups/"+strconv.Itoa(60+i), filepath.Join(dir, "iommu_group"))
	h.link("../"+address, filepath.Join(pf, "virtfn"+strconv.Itoa(i)))
	a := &h.state[n.Link][i]
	a.State = vf.Auto
	if !n.InfiniBand {
		a.MAC, a.SpoofCheck = "00:00:00:00:00:00", false
	}
	if n.Tree {
		for name, text := range map[string]string{"node": "00:00:00:00:00:00:00:00", "port": "00:00:00:00:00:00:00:00", "policy": "Down"} {
			h.put(filepath.Join(pf, "sriov", strconv.Itoa(i), name), text)
		}
	}
	for p := range 4 {
		if n.Maps {
			h.put(filepath.Join(pf, "infiniband", n.RDMA, "iov", address, "ports/1/pkey_idx", strconv.Itoa(p)), strconv.Itoa(p))
		}
	}
	if h.probes(n) {
		h.Bind(address, n.Driver)
	}
}

// probes says whether drivers are looked for at all.
func (h *Host) probes(n *NIC) bool {
	auto, err := os.ReadFile(h.sys("devices/pci0000:40", n.Address, "sriov_drivers_autoprobe"))
	return err == nil && strings.TrimSpace(string(auto)) == "1"
}

// Bind has a driver take a function, as it is.
func (h *Host) Bind(address, driver string) {
	dir := h.sys("devices/pci0000:40", address)
	_ = os.Remove(filepath.Join(dir, "driver"))
	for _, name := range []string{"net", "infiniband", "vfio-dev"} {
		h.must(os.RemoveAll(filepath.Join(dir, name)))
	}
	if driver == "" {
		return
	}
	h.link("../../../bus/pci/drivers/"+driver, filepath.Join(dir, "driver"))
	for i := range h.nics {
		index, ok := h.nics[i].index(address)
		switch {
		case !ok:
		case driver == "vfio-pci":
			h.mkdir(filepath.Join(dir, "vfio-dev", "vfio"+strconv.Itoa(index)))
		default:
			if !h.nics[i].InfiniBand {
				h.mkdir(filepath.Join(dir, "net", h.nics[i].Link+"v"+strconv.Itoa(index)))
			}
			h.rdma(dir, "mlx5_"+strconv.Itoa(index+2))
		}
	}
}
