package vf

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Wish is what a function is to be given to, and how it is to be.
type Wish struct {
	// Function is PF/INDEX or an address; a PF alone takes its first that is free.
	Function string
	Use      Use
	VM       string
	// Live and Config say where give puts it.
	Live, Config bool
	Settings     Settings
}

// Give hands a function to a VM. An error means that the VM has nothing of it.
type Give func(context.Context, *VF) error

// undoLimit bounds what is done to take an assignment back.
const undoLimit = 30 * time.Second

// Assign sets a function up and gives it away; give may be nil. An error means that all is as
// before, unless it says otherwise.
func (m *Manager) Assign(ctx context.Context, w Wish, give Give) (*VF, error) {
	if err := w.check(); err != nil {
		return nil, err
	}
	k, unlock, err := m.book.open(ctx)
	if err != nil {
		return nil, err
	}
	defer unlock()
	pf, v, err := m.choose(ctx, k, w.Function)
	if err != nil {
		return nil, err
	}
	if w.Use == ForVM && v.Group < 0 {
		return nil, fmt.Errorf("%s/%d (%s): %w: switch it on in the BIOS (VT-d, AMD-Vi) and the kernel (intel_iommu=on)", pf.Name, v.Index, v.Address, ErrNoIOMMU)
	}
	a := Assignment{
		Address: v.Address, PF: pf.Address, Index: v.Index, Use: w.Use, VM: w.VM, Live: w.Live, Config: w.Config,
		Since: m.now().UTC().Truncate(time.Second), Unfinished: true, Set: w.Settings,
	}
	if v.Attributes != nil {
		a.Back = v.Attributes.back(w.Settings)
	}
	if err := a.Back.Check(); err != nil {
		return nil, fmt.Errorf("%s/%d shows something that could not be put back: %w", pf.Name, v.Index, err)
	}
	k.Assignments = append(k.Assignments, a)
	if err := m.book.write(k); err != nil {
		return nil, err
	}
	if err := m.carryOut(ctx, pf, v, w, give); err != nil {
		undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoLimit)
		defer cancel()
		if bad := m.putBack(undo, k, k.find(v.Address)); bad != nil {
			return nil, fmt.Errorf("%w; taking back what was done failed too, `causeway vf release %s` tries again: %w", err, v.Address, bad)
		}
		return nil, fmt.Errorf("%w (what was done before is taken back)", err)
	}
	k.find(v.Address).Unfinished = false
	if err := m.book.write(k); err != nil {
		return nil, err
	}
	return m.again(k, v.Address)
}

func (w *Wish) check() error {
	switch {
	case w.Use == ForVM:
		if err := checkVM(w.VM); err != nil {
			return err
		}
	case w.Use != ForRelay || w.VM != "":
		return fmt.Errorf("%w: a function is for a VM or for relays", ErrValue)
	}
	return w.Settings.Check()
}

// choose finds the function of a wish, which must be free. One whose VM has ended is freed first.
func (m *Manager) choose(ctx context.Context, k *book, key string) (*PF, *VF, error) {
	if err := m.sweep(ctx, k, func(*Assignment) bool { return true }); err != nil {
		return nil, nil, err
	}
	list, err := m.list(k)
	if err != nil {
		return nil, nil, err
	}
	if pf, err := findPF(list, key); err == nil {
		i := slices.IndexFunc(pf.Functions, func(v VF) bool { return v.State == Free })
		if i < 0 {
			return nil, nil, fmt.Errorf("%w of the %d that %s has: `causeway vf list` shows whose they are; `causeway vf create %s --functions N` makes up to %d while none is used",
				ErrNoneFree, len(pf.Functions), pf.Name, pf.Name, pf.Total)
		}
		return pf, &pf.Functions[i], nil
	}
	pf, v, err := find(list, key)
	if err != nil {
		return nil, nil, err
	}
	if v.State != Free {
		return nil, nil, fmt.Errorf("%w: %s/%d (%s) is %s: take another, or `causeway vf release %s/%d` first", ErrInUse, pf.Name, v.Index, v.Address, v.Whose(), pf.Name, v.Index)
	}
	return pf, v, nil
}

// carryOut does what a wish says.
func (m *Manager) carryOut(ctx context.Context, pf *PF, v *VF, w Wish, give Give) error {
	if err := m.set(ctx, pf, v, w.Settings); err != nil {
		return err
	}
	if err := m.check(pf, v, w.Settings); err != nil {
		return err
	}
	if w.Use == ForRelay {
		if err := m.bind(pf, v, w.Settings.NodeGUID != 0 || w.Settings.PortGUID != 0); err != nil {
			return err
		}
	}
	if give == nil {
		return nil
	}
	return give(ctx, v)
}

// set makes all changes.
func (m *Manager) set(ctx context.Context, pf *PF, v *VF, s Settings) error {
	for _, one := range s.each() {
		if err := m.setOne(ctx, pf, v, one.Settings); err != nil {
			err = explain(fmt.Sprintf("set %s of %s/%d (driver %s)", one.name, pf.Name, v.Index, pf.Driver), err)
			if errors.Is(err, syscall.EINVAL) {
				err = fmt.Errorf("%w: the value is outside what the port can do, or needs its link to be up (`ip link set %s up`)", err, pf.Name)
			}
			return err
		}
	}
	return nil
}

// setOne makes one change. What is refused while the link comes up is tried again after.
func (m *Manager) setOne(ctx context.Context, pf *PF, v *VF, one Settings) error {
	err := m.tell(pf, v, one)
	if errors.Is(err, syscall.EINVAL) && m.linkUp(ctx, pf) {
		err = m.tell(pf, v, one)
	}
	return err
}

// The time that a link has to come up, and how often it is asked.
const (
	linkLimit = 10 * time.Second
	linkEvery = 50 * time.Millisecond
)

// linkUp waits for a physical port's link: a driver that makes functions takes it down, and until
// the port has negotiated a speed again no rate fits it. It is false at once for a port that is not
// set up, and in the end for one without a cable.
func (m *Manager) linkUp(ctx context.Context, pf *PF) bool {
	ctx, cancel := context.WithTimeout(ctx, linkLimit)
	defer cancel()
	for {
		switch m.sys.carrier(pf) {
		case 1:
			return true
		case -1:
			return false
		}
		select {
		case <-time.After(linkEvery):
		case <-ctx.Done():
			return false
		}
	}
}

// tell makes one change by netlink, or where the driver has no such thing by its files.
func (m *Manager) tell(pf *PF, v *VF, one Settings) error {
	if one.Partitions != nil {
		return m.setPartitions(pf, v, one.Partitions)
	}
	err := errNoLink
	if l := pf.link(); l != "" {
		err = m.kernel.Set(l, v.Index, one)
	}
	if !unsupported(err) {
		return err
	}
	dir, ok := m.sys.tree(pf, v.Index)
	for _, f := range []struct {
		name, text string
		given      bool
	}{
		{"node", one.NodeGUID.String(), one.NodeGUID != 0},
		{"port", one.PortGUID.String(), one.PortGUID != 0},
		{"policy", policies[one.State], one.State != ""},
	} {
		if ok && f.given {
			return m.kernel.Write(filepath.Join(dir, f.name), f.text)
		}
	}
	return err
}

var errNoLink = fmt.Errorf("%w without a network interface of the physical port: for InfiniBand `modprobe ib_ipoib` makes one", ErrUnsupported)

// setPartitions maps the first places of a function's table of partition keys.
func (m *Manager) setPartitions(pf *PF, v *VF, places []int) error {
	files := m.sys.places(pf, v)
	if len(files) == 0 {
		return fmt.Errorf("%w: only mlx4 lets the host map a function's partition keys. Of ConnectX-4 and later the subnet manager gives them, by the function's port GUID: "+
			"set that (--port-guid) and write the GUID into OpenSM's partitions.conf, as in `jobs=0x8001, ipoib: 0x...=full;`. On Ethernet use --vlan", ErrUnsupported)
	}
	if len(places) > len(files) {
		return fmt.Errorf("%w: %d partitions, and the function's table has %d places", ErrValue, len(places), len(files))
	}
	for i, p := range places {
		if err := m.kernel.Write(files[i], strconv.Itoa(p)); err != nil {
			return err
		}
	}
	return nil
}

// check asks whether the driver took what it was told: some say yes to what they do not do.
func (m *Manager) check(pf *PF, v *VF, s Settings) error {
	l := pf.link()
	if l == "" {
		return nil
	}
	told, err := m.kernel.Functions(l)
	if err != nil {
		return err
	}
	if v.Index >= len(told) {
		return nil // this driver tells nothing
	}
	for _, one := range s.each() {
		if !told[v.Index].took(one.Settings) {
			return fmt.Errorf("set %s of %s/%d: %w: driver %s said yes, and the function shows something else", one.name, pf.Name, v.Index, ErrIgnored, pf.Driver)
		}
	}
	return nil
}

// bind has the host's own driver take a function; again: one that has it lets go first, since it
// has read the GUIDs before.
func (m *Manager) bind(pf *PF, v *VF, again bool) error {
	dir := m.sys.device(v.Address)
	what := "bind the host's driver to " + string(v.Address)
	if v.Driver != "" && (again || strings.HasPrefix(v.Driver, "vfio")) {
		if err := m.kernel.Write(filepath.Join(dir, "driver/unbind"), string(v.Address)); err != nil {
			return explain(what, err)
		}
		v.Driver = ""
	}
	if v.Driver == "" {
		// An override is what bound another driver; a newline clears it.
		if err := m.kernel.Write(filepath.Join(dir, "driver_override"), "\n"); err != nil {
			return explain(what, err)
		}
		if err := m.probe(pf, v); err != nil {
			return explain(what, err)
		}
	}
	*v = m.sys.function(v.Address, v.Index)
	if len(v.Links)+len(v.RDMA) == 0 {
		return fmt.Errorf("%s: %w: driver %q gives it neither a network interface nor an RDMA device", what, ErrUnsupported, v.Driver)
	}
	return nil
}

// probe has the kernel look for a function's driver, which it does not while the NIC's
// sriov_drivers_autoprobe is off.
func (m *Manager) probe(pf *PF, v *VF) (err error) {
	auto := filepath.Join(m.sys.device(pf.Address), "sriov_drivers_autoprobe")
	if m.sys.number(auto, 1) == 0 {
		if err := m.kernel.Write(auto, "1"); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, m.kernel.Write(auto, "0")) }()
	}
	return m.kernel.Write(filepath.Join(m.sys.root, "bus/pci/drivers_probe"), string(v.Address))
}

// again looks at a function once more.
func (m *Manager) again(k *book, a Address) (*VF, error) {
	list, err := m.list(k)
	if err != nil {
		return nil, err
	}
	_, v, err := find(list, string(a))
	return v, err
}
