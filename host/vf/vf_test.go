package vf_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"

	"causeway/host/vf"
	"causeway/host/vf/vftest"
)

func ptr[T any](v T) *T { return &v }

// everything are settings of each kind that Ethernet has.
func everything() vf.Settings {
	return vf.Settings{
		MAC: "02:00:00:00:00:01", VLAN: ptr(100), QoS: ptr(3), MinRate: ptr(uint32(100)), MaxRate: ptr(uint32(25000)), Trust: ptr(true),
		SpoofCheck: ptr(true), State: vf.Enable,
	}
}

// host has a ConnectX with some functions.
func host(t *testing.T, n int, nics ...vftest.NIC) (*vftest.Host, *vf.Manager) {
	t.Helper()
	if len(nics) == 0 {
		nics = []vftest.NIC{vftest.ConnectX()}
	}
	h := vftest.New(t, nics...)
	m := h.Manager()
	if n > 0 {
		if _, err := m.Create(t.Context(), nics[0].Address, n, true); err != nil {
			t.Fatal(err)
		}
	}
	h.Calls = nil
	return h, m
}

// look is a function as it is now.
func look(t *testing.T, m *vf.Manager, index int) vf.VF {
	t.Helper()
	list, err := m.List()
	if err != nil || len(list) != 1 {
		t.Fatalf("%d NICs, %v", len(list), err)
	}
	return list[0].Functions[index]
}

func forVM(function string, s vf.Settings) vf.Wish {
	return vf.Wish{Function: function, Use: vf.ForVM, VM: "vm1", Live: true, Settings: s}
}

func TestList(t *testing.T) {
	h, m := host(t, 2)
	list, err := m.List()
	if err != nil {
		t.Fatal(err)
	}
	got, err := json.Marshal(list)
	if err != nil {
		t.Fatal(err)
	}
	one := func(i int) string {
		return fmt.Sprintf(`{"index":%d,"address":"0000:41:00.%d","driver":"mlx5_core","iommu_group":%d,"links":["enp65s0f0np0v%d"],"rdma":["mlx5_%d"],`+
			`"attributes":{"mac":"00:00:00:00:00:00","vlan":0,"qos":0,"min_rate":0,"max_rate":0,"trust":false,"spoof_check":false,"state":"auto"},`+
			`"partition_keys":["0xffff","0x8001"],"state":"free"}`, i, i+2, 60+i, i, i+2)
	}
	want := `[{"name":"enp65s0f0np0","address":"0000:41:00.0","driver":"mlx5_core","links":["enp65s0f0np0","a-representor"],"rdma":["mlx5_0"],"total":8,"numa":0,` +
		`"functions":[` + one(0) + `,` + one(1) + `]}]`
	if string(got) != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	h.Fail["functions"] = syscall.EPERM // who may not ask sees the rest
	if v := look(t, m, 1); v.Attributes != nil || v.Address != "0000:41:00.3" {
		t.Errorf("%+v", v)
	}
	for _, name := range []string{"enp65s0f0np0", "mlx5_0", "0000:41:00.0", "41:00.0"} {
		if one, err := m.Some(name); err != nil || len(one) != 1 {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := os.Stat(filepath.Join(h.Root, "run/vfs.json")); err == nil {
		t.Error("looking wrote a record")
	}
}

func TestCreate(t *testing.T) {
	h, m := host(t, 0)
	pf, err := m.Create(t.Context(), "mlx5_0", 3, false)
	if err != nil || len(pf.Functions) != 3 || pf.Functions[2].Driver != "" {
		t.Fatalf("%+v, %v", pf, err)
	}
	want := []string{"0000:41:00.0/sriov_drivers_autoprobe=0", "0000:41:00.0/sriov_numvfs=3"}
	if !slices.Equal(h.Calls, want) {
		t.Errorf("%q", h.Calls)
	}
	h.Calls = nil
	if _, err = m.Create(t.Context(), "mlx5_0", 3, true); err != nil || len(h.Calls) != 0 {
		t.Errorf("%q, %v", h.Calls, err)
	}
	if pf, err = m.Create(t.Context(), "mlx5_0", 8, true); err != nil || len(pf.Functions) != 8 || pf.Functions[7].Address != "0000:41:01.1" {
		t.Errorf("%+v, %v", pf, err)
	}
	if pf, err = m.Create(t.Context(), "mlx5_0", 0, true); err != nil || len(pf.Functions) != 0 {
		t.Errorf("%+v, %v", pf, err)
	}
}

// TestCreateRefused: each refusal names its cause and what helps, and changes nothing.
func TestCreateRefused(t *testing.T) {
	for _, c := range []struct {
		what, nic string
		n         int
		fail      error
		prepare   func(*vftest.Host, *vf.Manager) error
		want      error
		says      string
	}{
		{what: "more than it can", nic: "mlx5_0", n: 9, want: vf.ErrTooMany, says: "can have 8 (its sriov_totalvfs), not 9: take fewer, or raise it"},
		{what: "less than none", nic: "mlx5_0", n: -1, want: vf.ErrValue},
		{what: "no SR-IOV", nic: "eth7", n: 1, want: vf.ErrNoSRIOV, says: "these are: enp65s0f0np0"},
		{what: "a NIC without", nic: "0000:3f:00.0", n: 1, want: vf.ErrNoSRIOV},
		{what: "no NIC", nic: "0000:81:00.0", n: 1, want: vf.ErrNoSRIOV},
		{what: "no rights", nic: "mlx5_0", n: 1, fail: syscall.EACCES, want: vf.ErrRights, says: "as root"},
		{what: "read-only", nic: "mlx5_0", n: 1, fail: syscall.EROFS, want: vf.ErrRights, says: "container"},
		{what: "no addresses", nic: "mlx5_0", n: 1, fail: syscall.ENOMEM, want: syscall.ENOMEM, says: "in the BIOS"},
		{what: "no driver", nic: "mlx5_0", n: 1, fail: syscall.ENOENT, want: syscall.ENOENT, says: "modprobe mlx5_core"},
		{what: "the driver", nic: "mlx5_0", n: 1, fail: syscall.EOPNOTSUPP, want: vf.ErrUnsupported},
		{what: "busy", nic: "mlx5_0", n: 1, fail: syscall.EBUSY, want: syscall.EBUSY, says: "vf list"},
		{what: "in use", nic: "mlx5_0", n: 4, want: vf.ErrInUse, says: "reserved for VM vm1, and another number", prepare: func(h *vftest.Host, m *vf.Manager) error {
			_, err := m.Create(t.Context(), "mlx5_0", 2, true)
			if err == nil {
				_, err = m.Assign(t.Context(), vf.Wish{Function: "mlx5_0/1", Use: vf.ForVM, VM: "vm1"}, nil)
			}
			return err
		}},
		{what: "another's", nic: "mlx5_0", n: 0, want: vf.ErrInUse, says: "taken by process 77", prepare: func(h *vftest.Host, m *vf.Manager) error {
			_, err := m.Create(t.Context(), "mlx5_0", 2, true)
			h.Open["/dev/vfio/61"] = 77
			return err
		}},
	} {
		t.Run(c.what, func(t *testing.T) {
			h, m := host(t, 0)
			if c.prepare != nil {
				if err := c.prepare(h, m); err != nil {
					t.Fatal(err)
				}
			}
			if c.fail != nil {
				h.Fail["sriov_numvfs"] = c.fail
			}
			before, _ := m.List()
			_, err := m.Create(t.Context(), c.nic, c.n, true)
			if !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%v, want %v with %q", err, c.want, c.says)
			}
			if after, _ := m.List(); !reflect.DeepEqual(before, after) {
				t.Errorf("something has changed: %+v", after)
			}
		})
	}
	m := vftest.New(t).Manager()
	if _, err := m.Create(t.Context(), "eth0", 1, true); !errors.Is(err, vf.ErrNoSRIOV) || !strings.Contains(err.Error(), "SRIOV_EN=1") {
		t.Error(err)
	}
}

// TestAssign: a function gets each setting, is its VM's through restarts, and afterwards is as it
// was before.
func TestAssign(t *testing.T) {
	h, m := host(t, 2)
	before := look(t, m, 1)
	var given vf.Address
	v, err := m.Assign(t.Context(), forVM("enp65s0f0np0/1", everything()), func(_ context.Context, v *vf.VF) error {
		given, h.Open["/dev/vfio/61"] = v.Address, 4711
		if now := look(t, h.Manager(), 1); now.State != vf.Unfinished {
			t.Errorf("while it is given: %s", now.State)
		}
		return nil
	})
	if err != nil || given != "0000:41:00.3" || v.State != vf.InVM || v.Holder != 4711 || v.Record.VM != "vm1" {
		t.Fatalf("%+v, given %s, %v", v, given, err)
	}
	want := vf.Attributes{MAC: "02:00:00:00:00:01", VLAN: 100, QoS: 3, MinRate: 100, MaxRate: 25000, Trust: true, SpoofCheck: true, State: vf.Enable}
	if !reflect.DeepEqual(*v.Attributes, want) {
		t.Errorf("%+v", v.Attributes)
	}
	m = h.Manager() // as after a restart
	if _, err := m.Assign(t.Context(), forVM("0000:41:00.3", vf.Settings{}), nil); !errors.Is(err, vf.ErrInUse) || !strings.Contains(err.Error(), "in use by VM vm1") {
		t.Errorf("given twice: %v", err)
	}
	if done, err := m.ReleaseEnded(t.Context(), ""); err != nil || len(done) != 0 {
		t.Errorf("%+v, %v", done, err)
	}
	if _, err := m.Release(t.Context(), "vm1", nil); !errors.Is(err, vf.ErrInUse) || !strings.Contains(err.Error(), "process 4711") {
		t.Errorf("taken from a VM: %v", err)
	}
	taken := 0
	done, err := m.Release(t.Context(), "vm1", func(_ context.Context, a *vf.Assignment) error {
		taken++
		delete(h.Open, "/dev/vfio/61")
		return nil
	})
	if err != nil || len(done) != 1 || taken != 1 || done[0].Gone {
		t.Fatalf("%+v, %v", done, err)
	}
	if after := look(t, m, 1); !reflect.DeepEqual(after, before) {
		t.Errorf("it is %+v\nand was %+v", after, before)
	}
	if _, err := m.Release(t.Context(), "mlx5_0/1", nil); !errors.Is(err, vf.ErrNotAssigned) {
		t.Error(err)
	}
}

// TestFirstFree: a NIC in place of a function means its first that nobody has, those of VMs that
// have ended among them.
func TestFirstFree(t *testing.T) {
	h, m := host(t, 3)
	h.Open["/dev/vfio/60"], h.Open["/dev/vfio/61"] = 1, 2
	h.Bind("0000:41:00.3", "vfio-pci")
	for range 2 { // its VM has ended when it is given again
		v, err := m.Assign(t.Context(), forVM("enp65s0f0np0", vf.Settings{}), nil)
		if err != nil || v.Index != 2 {
			t.Fatalf("%+v, %v", v, err)
		}
	}
	h.Open["/dev/vfio/62"] = 3
	if _, err := m.Assign(t.Context(), forVM("enp65s0f0np0", vf.Settings{}), nil); !errors.Is(err, vf.ErrNoneFree) || !strings.Contains(err.Error(), "of the 3") {
		t.Error(err)
	}
	for _, key := range []string{"enp65s0f0np0/7", "0000:41:01.1", "41:01.1"} {
		if _, err := m.Assign(t.Context(), forVM(key, vf.Settings{}), nil); !errors.Is(err, vf.ErrNotFound) {
			t.Errorf("%s: %v", key, err)
		}
	}
}

// TestVMEnds: what a VM had that was killed is found without anybody's word, and what its
// definition has stays its.
func TestVMEnds(t *testing.T) {
	h, m := host(t, 3)
	before := look(t, m, 0)
	live, both, hand := forVM("mlx5_0/0", everything()), forVM("mlx5_0/1", everything()), forVM("mlx5_0/2", vf.Settings{})
	both.Config, both.VM = true, "vm2"
	hand.Live, hand.VM = false, "vm3"
	give := func(_ context.Context, v *vf.VF) error {
		if v.Index == 0 { // QEMU with iommufd
			h.Bind(string(v.Address), "vfio-pci")
			h.Open["/dev/vfio/devices/vfio0"] = 9
		}
		return nil
	}
	for _, w := range []vf.Wish{live, both, hand} {
		if _, err := m.Assign(t.Context(), w, give); err != nil {
			t.Fatal(err)
		}
	}
	if v := look(t, m, 0); v.State != vf.InVM {
		t.Errorf("through iommufd: %s", v.State)
	}
	clear(h.Open)
	h.Bind("0000:41:00.2", "mlx5_core") // libvirt gives it back
	h.Blind = true
	if v := look(t, m, 0); v.State != vf.InVM {
		t.Errorf("who cannot see calls it %s", v.State)
	}
	h.Blind = false
	for i, want := range []vf.State{vf.Ended, vf.Reserved, vf.Reserved} {
		if v := look(t, m, i); v.State != want {
			t.Errorf("function %d is %s, want %s", i, v.State, want)
		}
	}
	if done, err := m.ReleaseEnded(t.Context(), "vm2"); err != nil || len(done) != 0 {
		t.Errorf("%+v, %v", done, err)
	}
	if done, err := m.ReleaseEnded(t.Context(), ""); err != nil || len(done) != 1 || done[0].VM != "vm1" {
		t.Errorf("%+v, %v", done, err)
	}
	if after := look(t, m, 0); !reflect.DeepEqual(after, before) {
		t.Errorf("it is %+v\nand was %+v", after, before)
	}
	// The functions go under those who have them.
	h.Calls = nil
	if err := h.Write(filepath.Join(h.Root, "sys/bus/pci/devices/0000:41:00.0/sriov_numvfs"), "0"); err != nil {
		t.Fatal(err)
	}
	if done, err := m.Release(t.Context(), "vm2", nil); err != nil || len(done) != 1 || !done[0].Gone {
		t.Errorf("%+v, %v", done, err)
	}
	if done, err := m.ReleaseEnded(t.Context(), ""); err != nil || len(done) != 1 || done[0].VM != "vm3" || len(h.Calls) != 1 {
		t.Errorf("%+v, %q, %v", done, h.Calls, err)
	}
}

// TestAssignFails: whatever fails on the way, the function is as it was and nobody's.
func TestAssignFails(t *testing.T) {
	failed := errors.New("the VM is full")
	for _, c := range []struct {
		what, says string
		with       vf.Settings
		prepare    func(*vftest.Host)
		give       error
		want       error
	}{
		{what: "VM", give: failed, want: failed, says: "taken back", with: everything()},
		{what: "the last setting", want: vf.ErrUnsupported, says: "set the link state of enp65s0f0np0/0 (driver mlx5_core)", with: everything(),
			prepare: func(h *vftest.Host) { h.Fail["state"] = syscall.EOPNOTSUPP }},
		{what: "no rights", want: vf.ErrRights, with: everything(), prepare: func(h *vftest.Host) { h.Fail["mac"] = syscall.EPERM }},
		{what: "a driver that lies", want: vf.ErrIgnored, says: "spoof check", with: everything(), prepare: func(h *vftest.Host) { h.Deaf["spoof"] = true }},
		{what: "GUIDs of Ethernet", want: vf.ErrUnsupported, says: "the port GUID", with: vf.Settings{PortGUID: 5}},
		{what: "partitions", want: vf.ErrUnsupported, says: "partitions.conf", with: vf.Settings{Partitions: []int{1}}},
		{what: "VLAN", want: vf.ErrValue, with: vf.Settings{VLAN: ptr(4095)}},
		{what: "priority alone", want: vf.ErrValue, with: vf.Settings{QoS: ptr(1)}},
		{what: "rates", want: vf.ErrValue, with: vf.Settings{MinRate: ptr(uint32(2)), MaxRate: ptr(uint32(1))}},
	} {
		t.Run(c.what, func(t *testing.T) {
			h, m := host(t, 1)
			before := look(t, m, 0)
			if c.prepare != nil {
				c.prepare(h)
			}
			_, err := m.Assign(t.Context(), forVM("mlx5_0/0", c.with), func(context.Context, *vf.VF) error { return c.give })
			if !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%v, want %v with %q", err, c.want, c.says)
			}
			clear(h.Deaf)
			if after := look(t, m, 0); !reflect.DeepEqual(after, before) {
				t.Errorf("it is %+v\nand was %+v", after, before)
			}
		})
	}
	_, m := host(t, 1)
	for _, w := range []vf.Wish{{Function: "mlx5_0/0"}, {Function: "mlx5_0/0", Use: vf.ForVM}, {Function: "mlx5_0/0", Use: vf.ForVM, VM: "a/b"}, {Function: "mlx5_0/0", Use: vf.ForRelay, VM: "a"}} {
		if _, err := m.Assign(t.Context(), w, nil); !errors.Is(err, vf.ErrValue) {
			t.Errorf("%+v: %v", w, err)
		}
	}
}

// TestGiverDies: who dies at any step of an assignment leaves what the next one puts back.
func TestGiverDies(t *testing.T) {
	h, m := host(t, 1)
	before := look(t, m, 0)
	died := errors.New("died")
	// A failure of putting back is what a death leaves: the record and the settings.
	_, err := m.Assign(t.Context(), forVM("mlx5_0/0", everything()), func(context.Context, *vf.VF) error {
		h.Fail["mac"] = syscall.EIO
		return died
	})
	if !errors.Is(err, died) || !errors.Is(err, syscall.EIO) || !strings.Contains(err.Error(), "vf release 0000:41:00.2") {
		t.Error(err)
	}
	if v := look(t, m, 0); v.State != vf.Unfinished || v.Attributes.VLAN != 100 {
		t.Errorf("%+v", v)
	}
	delete(h.Fail, "mac")
	if done, err := m.ReleaseEnded(t.Context(), ""); err != nil || len(done) != 1 {
		t.Errorf("%+v, %v", done, err)
	}
	if after := look(t, m, 0); !reflect.DeepEqual(after, before) {
		t.Errorf("it is %+v\nand was %+v", after, before)
	}
	// One whose VM has it is not put back.
	_, _ = m.Assign(t.Context(), forVM("mlx5_0/0", everything()), func(context.Context, *vf.VF) error {
		h.Fail["mac"], h.Open["/dev/vfio/60"] = syscall.EIO, 5
		return died
	})
	if done, err := m.ReleaseEnded(t.Context(), ""); err != nil || len(done) != 0 {
		t.Errorf("%+v, %v", done, err)
	}
}
