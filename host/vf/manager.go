package vf

import (
	"cmp"
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Options of a Manager. What is empty is the running system's.
type Options struct {
	Sys    string // folder of sysfs
	Dev    string // folder of devices
	Kernel Kernel
	Run    string // folder of the Book
	Now    func() time.Time
}

// Manager changes virtual functions.
type Manager struct {
	sys    sysfs
	dev    string
	kernel Kernel
	book   Book
	now    func() time.Time
}

// New returns a Manager; nothing is opened yet.
func New(o Options) *Manager {
	m := &Manager{sys: sysfs{cmp.Or(o.Sys, "/sys")}, dev: cmp.Or(o.Dev, "/dev"), kernel: o.Kernel, book: Book{o.Run}, now: o.Now}
	if m.kernel == nil {
		m.kernel = System{Proc: "/proc"}
	}
	if m.now == nil {
		m.now = time.Now
	}
	return m
}

// State says how a function is used.
type State string

// States.
const (
	Free      State = "free"
	InVM      State = "in use"   // a VM has it open
	Reserved  State = "reserved" // a VM is to have it at its next start, or was given it by hand
	WithRelay State = "relay"    // this host's relays use it
	// It was a VM's that has ended: Release or ReleaseEnded frees it.
	Ended      State = "ended"
	Unfinished State = "unfinished" // it is being given or taken back, or who did so has died
	Taken      State = "taken"      // a process has it open of which there is no record
)

// List tells of all NICs that can have virtual functions, of these, and who has them. It changes
// nothing.
func (m *Manager) List() ([]PF, error) {
	k, err := m.book.read()
	if err != nil {
		return nil, err
	}
	return m.list(k)
}

// Some is List of one NIC, or of all if the name is empty.
func (m *Manager) Some(name string) ([]PF, error) {
	list, err := m.List()
	if err != nil || name == "" {
		return list, err
	}
	pf, err := findPF(list, name)
	if err != nil {
		return nil, err
	}
	return []PF{*pf}, nil
}

func (m *Manager) list(k *book) ([]PF, error) {
	list, err := m.sys.physical()
	if err != nil {
		return nil, err
	}
	for i := range list {
		m.complete(&list[i], k)
	}
	return list, nil
}

// complete adds to a NIC's functions what sysfs does not tell.
func (m *Manager) complete(pf *PF, k *book) {
	var told []Attributes
	if l := pf.link(); l != "" && len(pf.Functions) > 0 {
		told, _ = m.kernel.Functions(l) // a link without an answer is shown without
	}
	for i := range pf.Functions {
		v := &pf.Functions[i]
		if v.Index < len(told) {
			v.Attributes = &told[v.Index]
		}
		m.sys.fill(pf, v)
		v.Record = k.find(v.Address)
		m.judge(v)
	}
}

// judge says how a function is used.
func (m *Manager) judge(v *VF) {
	pid, all, err := m.kernel.Holder(m.vfioFiles(v)...)
	v.Holder = pid
	r := v.Record
	switch {
	case r == nil && pid != 0:
		v.State = Taken
	case r == nil:
		v.State = Free
	case r.Unfinished:
		v.State = Unfinished
	case r.Use == ForRelay:
		v.State = WithRelay
	case pid != 0:
		v.State = InVM
	case r.Live && !r.Config && all && err == nil:
		v.State = Ended
	case r.Live && !r.Config:
		v.State = InVM // as far as who asks may see
	default:
		v.State = Reserved
	}
}

// vfioFiles are the files by which a program has a function.
func (m *Manager) vfioFiles(v *VF) (files []string) {
	if v.Group >= 0 {
		group := strconv.Itoa(v.Group)
		files = append(files, filepath.Join(m.dev, "vfio", group), filepath.Join(m.dev, "vfio/noiommu-"+group))
	}
	for _, c := range v.cdevs {
		files = append(files, filepath.Join(m.dev, "vfio/devices", c))
	}
	return files
}

// findPF finds a NIC by a network interface, an RDMA device or its address.
func findPF(list []PF, name string) (*PF, error) {
	a, _ := ParseAddress(name)
	for i := range list {
		pf := &list[i]
		if pf.Address == a || slices.Contains(pf.Links, name) || slices.Contains(pf.RDMA, name) {
			return pf, nil
		}
	}
	var names []string
	for i := range list {
		names = append(names, list[i].Name)
	}
	if len(names) == 0 {
		return nil, fmt.Errorf("%w: %s: no NIC of this host can have any: the card, its firmware (ConnectX: mlxconfig -d ADDRESS set SRIOV_EN=1 NUM_OF_VFS=8, then a reboot) and the host's BIOS must allow SR-IOV", ErrNoSRIOV, name)
	}
	return nil, fmt.Errorf("%w: %s is no NIC that can have virtual functions; these are: %s", ErrNoSRIOV, name, strings.Join(names, ", "))
}

// find finds a function: PF/INDEX, or its address.
func find(list []PF, key string) (*PF, *VF, error) {
	if a, err := ParseAddress(key); err == nil {
		for i := range list {
			for j := range list[i].Functions {
				if list[i].Functions[j].Address == a {
					return &list[i], &list[i].Functions[j], nil
				}
			}
		}
		return nil, nil, fmt.Errorf("%w: %s: `causeway vf list` shows them", ErrNotFound, key)
	}
	name, index, _ := strings.Cut(key, "/")
	pf, err := findPF(list, name)
	if err != nil {
		return nil, nil, err
	}
	n, err := strconv.Atoi(index)
	if err != nil {
		return nil, nil, fmt.Errorf("%w: %q: write NIC/NUMBER, as in %s/0, or a PCI address", ErrValue, key, pf.Name)
	}
	for j := range pf.Functions {
		if pf.Functions[j].Index == n {
			return pf, &pf.Functions[j], nil
		}
	}
	return nil, nil, fmt.Errorf("%w: %s: %s has %d of them: `causeway vf create %s --functions %d` makes more", ErrNotFound, key, pf.Name, len(pf.Functions), pf.Name, min(n+1, pf.Total))
}

// Create has a NIC have n functions; 0: none. probe says whether the host's driver takes them.
// Functions that are there and of which none is used are made anew: the kernel changes their number
// in no other way.
func (m *Manager) Create(ctx context.Context, name string, n int, probe bool) (*PF, error) {
	k, unlock, err := m.book.open(ctx)
	if err != nil {
		return nil, err
	}
	defer unlock()
	list, err := m.list(k)
	if err != nil {
		return nil, err
	}
	pf, err := findPF(list, name)
	if err != nil {
		return nil, err
	}
	if err := mayHave(pf, n); err != nil {
		return nil, err
	}
	if n == len(pf.Functions) {
		return pf, nil
	}
	if err := m.count(pf, n, probe); err != nil {
		return nil, err
	}
	if list, err = m.list(k); err != nil {
		return nil, err
	}
	if pf, err = findPF(list, string(pf.Address)); err != nil {
		return nil, err
	}
	if len(pf.Functions) != n {
		return nil, fmt.Errorf("make %d virtual functions of %s: %w: it has %d", n, pf.Name, ErrIgnored, len(pf.Functions))
	}
	return pf, nil
}

// mayHave says why a NIC may not have n functions from now on.
func mayHave(pf *PF, n int) error {
	switch {
	case n < 0:
		return fmt.Errorf("%w: %d functions", ErrValue, n)
	case n > pf.Total:
		return fmt.Errorf("%w: %s can have %d (its sriov_totalvfs), not %d: take fewer, or raise it in the card's firmware (ConnectX: mlxconfig -d %s set NUM_OF_VFS=%d, then a reboot)",
			ErrTooMany, pf.Name, pf.Total, n, pf.Address, n)
	case n == len(pf.Functions):
		return nil
	}
	for i := range pf.Functions {
		v := &pf.Functions[i]
		if v.State != Free {
			return fmt.Errorf("%w: %s/%d (%s) is %s, and another number of functions makes all of %s anew: `causeway vf release %s/%d` first",
				ErrInUse, pf.Name, v.Index, v.Address, v.Whose(), pf.Name, pf.Name, v.Index)
		}
	}
	return nil
}

// Whose is who has a function, for people.
func (v *VF) Whose() string {
	var who string
	switch {
	case v.Record != nil && v.Record.VM != "":
		who = " by VM " + v.Record.VM
		if v.State != InVM {
			who = " for VM " + v.Record.VM
		}
	case v.Holder != 0:
		who = " by process " + strconv.Itoa(v.Holder)
	}
	return string(v.State) + who
}

// count writes the number.
func (m *Manager) count(pf *PF, n int, probe bool) error {
	dir := m.sys.device(pf.Address)
	write := func(file string, value int) error {
		return explainCount(pf, n, m.kernel.Write(filepath.Join(dir, file), strconv.Itoa(value)))
	}
	if len(pf.Functions) > 0 {
		if err := write("sriov_numvfs", 0); err != nil || n == 0 {
			return err
		}
	}
	if auto := m.sys.number(filepath.Join(dir, "sriov_drivers_autoprobe"), 1); auto >= 0 && auto == 1 != probe {
		value := 0
		if probe {
			value = 1
		}
		if err := write("sriov_drivers_autoprobe", value); err != nil {
			return err
		}
	}
	return write("sriov_numvfs", n)
}
