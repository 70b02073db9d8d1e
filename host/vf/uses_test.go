package vf_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"causeway/host/vf"
	"causeway/host/vf/vftest"
)

// TestRelay: the host's driver takes it, from another one too.
func TestRelay(t *testing.T) {
	h, m := host(t, 2)
	h.Bind("0000:41:00.2", "vfio-pci")
	w := vf.Wish{Function: "mlx5_0/0", Use: vf.ForRelay, Settings: vf.Settings{VLAN: ptr(7)}}
	v, err := m.Assign(t.Context(), w, nil)
	if err != nil || v.State != vf.WithRelay || v.Driver != "mlx5_core" || !slices.Equal(v.RDMA, []string{"mlx5_2"}) || v.Attributes.VLAN != 7 {
		t.Fatalf("%+v, %v", v, err)
	}
	if done, err := m.ReleaseEnded(t.Context(), ""); err != nil || len(done) != 0 {
		t.Errorf("%+v, %v", done, err)
	}
	if done, err := m.Release(t.Context(), "0000:41:00.2", nil); err != nil || len(done) != 1 {
		t.Errorf("%+v, %v", done, err)
	}
	h.Bind("0000:41:00.2", "")
	auto := filepath.Join(h.Root, "sys/bus/pci/devices/0000:41:00.0/sriov_drivers_autoprobe")
	if err := h.Write(auto, "0"); err != nil {
		t.Fatal(err)
	}
	if v, err := m.Assign(t.Context(), w, nil); err != nil || v.Driver != "mlx5_core" {
		t.Errorf("of a NIC whose functions get no driver: %+v, %v", v, err)
	}
	if b, err := os.ReadFile(auto); err != nil || string(b) != "0\n" {
		t.Errorf("%q, %v", b, err)
	}
	if _, err := m.Release(t.Context(), "0000:41:00.2", nil); err != nil {
		t.Error(err)
	}
	h.Bind("0000:41:00.2", "")
	h.Fail["drivers_probe"] = syscall.EINVAL
	if _, err := m.Assign(t.Context(), w, nil); !errors.Is(err, syscall.EINVAL) {
		t.Error(err)
	}
	if v := look(t, m, 0); v.State != vf.Free || v.Attributes.VLAN != 0 {
		t.Errorf("%+v", v)
	}
}

// TestNoIOMMU: a host without one passes nothing through, and its relays have functions.
func TestNoIOMMU(t *testing.T) {
	h, m := host(t, 1)
	if err := os.Remove(filepath.Join(h.Root, "sys/bus/pci/devices/0000:41:00.2/iommu_group")); err != nil {
		t.Fatal(err)
	}
	if _, err := m.Assign(t.Context(), forVM("mlx5_0/0", vf.Settings{}), nil); !errors.Is(err, vf.ErrNoIOMMU) || !strings.Contains(err.Error(), "intel_iommu=on") {
		t.Error(err)
	}
	if _, err := m.Assign(t.Context(), vf.Wish{Function: "mlx5_0/0", Use: vf.ForRelay}, nil); err != nil {
		t.Error(err)
	}
}

// TestInfiniBand: GUIDs by netlink, and by NVIDIA's driver's own files where there is no network
// interface.
func TestInfiniBand(t *testing.T) {
	guids := vf.Settings{NodeGUID: 0x11223344556677, PortGUID: 0x11223344556678, State: vf.Auto}
	nic := vftest.NIC{Address: "0000:41:00.0", Driver: "mlx5_core", Link: "ib0", RDMA: "mlx5_0", Total: 4, InfiniBand: true}
	h, m := host(t, 1, nic)
	if _, err := m.Assign(t.Context(), forVM("ib0/0", guids), nil); err != nil {
		t.Fatal(err)
	}
	if want := []string{"ib0/0 node", "ib0/0 port", "ib0/0 state"}; !slices.Equal(h.Calls, want) {
		t.Errorf("%q", h.Calls)
	}
	if _, err := m.Assign(t.Context(), forVM("ib0/0", everything()), nil); !errors.Is(err, vf.ErrUnsupported) {
		t.Error(err)
	}

	nic.Link = ""
	if _, m = host(t, 1, nic); true {
		if _, err := m.Assign(t.Context(), forVM("mlx5_0/0", guids), nil); !errors.Is(err, vf.ErrUnsupported) || !strings.Contains(err.Error(), "modprobe ib_ipoib") {
			t.Error(err)
		}
	}
	nic.Tree = true
	h, m = host(t, 1, nic)
	before := look(t, m, 0)
	v, err := m.Assign(t.Context(), forVM("mlx5_0/0", guids), nil)
	if err != nil || v.Attributes.NodeGUID != guids.NodeGUID || v.Attributes.PortGUID != guids.PortGUID || v.Attributes.State != vf.Auto {
		t.Fatalf("%+v, %v", v, err)
	}
	if want := []string{"0/node=00:11:22:33:44:55:66:77", "0/port=00:11:22:33:44:55:66:78", "0/policy=Follow"}; !slices.Equal(h.Calls, want) {
		t.Errorf("%q", h.Calls)
	}
	if _, err := m.Release(t.Context(), "vm1", nil); err != nil {
		t.Fatal(err)
	}
	if after := look(t, m, 0); after.Attributes.State != before.Attributes.State {
		t.Errorf("%+v", after)
	}

	nic.Driver, nic.Maps = "mlx4_core", true
	_, m = host(t, 1, nic)
	v, err = m.Assign(t.Context(), forVM("mlx5_0/0", vf.Settings{Partitions: []int{2, 1}}), nil)
	if err != nil || !slices.Equal(v.Attributes.Partitions, []int{2, 1, 2, 3}) {
		t.Fatalf("%+v, %v", v, err)
	}
	if _, err := m.Release(t.Context(), "vm1", nil); err != nil {
		t.Fatal(err)
	}
	if v := look(t, m, 0); !slices.Equal(v.Attributes.Partitions, []int{0, 1, 2, 3}) {
		t.Errorf("%+v", v.Attributes)
	}
	if _, err := m.Assign(t.Context(), forVM("mlx5_0/0", vf.Settings{Partitions: make([]int, 5)}), nil); !errors.Is(err, vf.ErrValue) {
		t.Error(err)
	}
}

// TestLinkComesUp: a rate that is refused while the port's link comes up, as after functions were
// made, is set once it has; without a link nothing is kept.
func TestLinkComesUp(t *testing.T) {
	for _, up := range []bool{true, false} {
		h, m := host(t, 1)
		link := vftest.ConnectX().Link
		h.Carrier(link, false)
		before := look(t, m, 0)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if up {
			time.AfterFunc(120*time.Millisecond, func() { h.Carrier(link, true) })
		} else {
			time.AfterFunc(120*time.Millisecond, cancel)
		}
		_, err := m.Assign(ctx, forVM("mlx5_0/0", everything()), func(context.Context, *vf.VF) error { return nil })
		switch after := look(t, m, 0); {
		case up && (err != nil || after.Attributes.MaxRate != 25000):
			t.Errorf("link up: %+v, %v", after.Attributes, err)
		case !up && (!errors.Is(err, syscall.EINVAL) || !strings.Contains(err.Error(), "ip link set "+link+" up") || !reflect.DeepEqual(after, before)):
			t.Errorf("no link: %+v, %v", after, err)
		}
	}
}
