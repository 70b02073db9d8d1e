package vf

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"testing"
)

// FuzzBook: whatever lies in the place of the records is one, or ErrRecord; and one that is read is
// written as it is read.
func FuzzBook(f *testing.F) {
	f.Add([]byte(`{"format":1,"assignments":[]}`))
	f.Add([]byte(`{"format":1,"assignments":[{"address":"0000:41:00.2","pf":"0000:41:00.0","index":0,"use":"vm","vm":"vm1","live":true,"since":"2026-11-22T20:00:00Z",` +
		`"set":{"mac":"02:00:00:00:00:01","vlan":100,"qos":3,"max_rate":25000,"trust":true,"spoof_check":true,"state":"enable","port_guid":"00:11:22:33:44:55:66:77"},` +
		`"back":{"mac":"00:00:00:00:00:00","vlan":0,"qos":0,"max_rate":0,"trust":false,"spoof_check":false,"state":"auto"}}]}`))
	f.Add([]byte(`{"format":1,"assignments":[{"address":"0000:41:00.2","pf":"41:00.0","index":-1,"use":"relay","unfinished":true,"set":{"partitions":[1]},"back":{}}]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		k, err := parseBook(text)
		if err != nil {
			if !errors.Is(err, ErrRecord) {
				t.Errorf("%v", err)
			}
			return
		}
		again, err := json.Marshal(k)
		if err != nil {
			t.Fatal(err)
		}
		if k2, err := parseBook(again); err != nil || !reflect.DeepEqual(k, k2) {
			t.Errorf("%s: %v", again, err)
		}
	})
}

// FuzzValue: an address, a MAC address or a GUID that is read is what its own text says.
func FuzzValue(f *testing.F) {
	for _, s := range []string{"0000:41:00.2", "41:1f.7", "02:00:00:00:00:01", "00:11:22:33:44:55:66:77", "0x0011223344556677", "0:1:2:3:4:5:6:7", "fe80::1", "ffff:ff:ff.f"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if a, err := ParseAddress(s); err == nil {
			if b, err := ParseAddress(string(a)); err != nil || a != b || a.Numbers().String() != string(a) {
				t.Errorf("%q: %s, %s, %v", s, a, b, err)
			}
		}
		if m, err := ParseMAC(s); err == nil {
			if n, err := ParseMAC(string(m)); err != nil || m != n {
				t.Errorf("%q: %s, %s, %v", s, m, n, err)
			}
		}
		if g, err := ParseGUID(s); err == nil {
			if h, err := ParseGUID(g.String()); err != nil || g != h {
				t.Errorf("%q: %s, %s, %v", s, g, h, err)
			}
		}
	})
}

// FuzzSysfs: whatever a driver's files say, what is read is in range.
func FuzzSysfs(f *testing.F) {
	f.Add("0x020000", "8", "0", "0000:41:00.2", "60", "0xffff", "00:00:00:00:00:00:00:00", "Follow")
	f.Add("0x020700", "-1", "65536", "../..", "x", "0x1ffff", "1", "up")
	f.Fuzz(func(t *testing.T, class, total, numa, function, group, key, guid, policy string) {
		s := sysfs{t.TempDir()}
		put := func(text string, parts ...string) {
			path := filepath.Join(append([]string{s.root, "bus/pci/devices"}, parts...)...)
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		const pf, first = "0000:41:00.0", "0000:41:00.2"
		put(class, pf, "class")
		put(total, pf, "sriov_totalvfs")
		put(numa, pf, "numa_node")
		put(guid, pf, "sriov/0/node")
		put(policy, pf, "sriov/0/policy")
		put(key, first, "infiniband/mlx5_2/ports/1/pkeys/0")
		_ = os.Symlink("../"+function, filepath.Join(s.root, "bus/pci/devices", pf, "virtfn0"))
		_ = os.Symlink("../"+group, filepath.Join(s.root, "bus/pci/devices", first, "iommu_group"))
		list, err := s.physical()
		if err != nil || len(list) > 1 {
			t.Fatalf("%+v, %v", list, err)
		}
		for i := range list {
			p := &list[i]
			if p.Total < 0 || p.Total > mostFunctions || p.NUMA < -1 {
				t.Errorf("%+v", p)
			}
			for j := range p.Functions {
				v := &p.Functions[j]
				if _, err := ParseAddress(string(v.Address)); err != nil {
					t.Error(err)
				}
				s.fill(p, v)
				if a := v.Attributes; a != nil && a.State != "" && policies[a.State] != policy {
					t.Errorf("%q is %s", policy, a.State)
				}
			}
		}
	})
}
