package ibv

import (
	"errors"
	"reflect"
	"strings"
	"testing"
	"testing/fstest"

	"causeway/remote/verbs"
)

// tree is what the kernel shows of a ConnectX with an Ethernet port and one that is down, and of an
// InfiniBand adapter.
func tree() fstest.MapFS {
	fs := fstest.MapFS{}
	for name, text := range map[string]string{
		"mlx5_0/ports/1/state":             "4: ACTIVE\n",
		"mlx5_0/ports/1/link_layer":        "Ethernet\n",
		"mlx5_0/ports/1/lid":               "0x0\n",
		"mlx5_0/ports/1/gids/0":            "fe80:0000:0000:0000:0000:0000:0000:0001\n",
		"mlx5_0/ports/1/gids/1":            "0000:0000:0000:0000:0000:ffff:c000:0201\n",
		"mlx5_0/ports/1/gids/2":            "0000:0000:0000:0000:0000:ffff:c000:0201\n",
		"mlx5_0/ports/1/gids/3":            "0000:0000:0000:0000:0000:0000:0000:0000\n",
		"mlx5_0/ports/1/gid_attrs/types/0": "IB/RoCE v1\n",
		"mlx5_0/ports/1/gid_attrs/types/1": "IB/RoCE v1\n",
		"mlx5_0/ports/1/gid_attrs/types/2": "RoCE v2\n",
		"mlx5_0/ports/2/state":             "1: DOWN\n",
		"mlx5_0/ports/2/link_layer":        "Ethernet\n",
		"mlx4_0/ports/1/state":             "4: ACTIVE\n",
		"mlx4_0/ports/1/link_layer":        "InfiniBand\n",
		"mlx4_0/ports/1/lid":               "0x1f\n",
		"mlx4_0/ports/1/gids/0":            "fe80:0000:0000:0000:0000:0000:0000:0007\n",
		"mlx4_0/ports/1/gid_attrs/types/0": "IB/RoCE v1\n",
		"mlx4_0/ports/1/pkeys/0":           "0xffff\n",
		"mlx4_0/ports/1/pkeys/1":           "0x0001\n",
		"mlx4_0/ports/1/pkeys/2":           "0x0000\n",
		"mlx4_0/ports/1/pkeys/3":           "0x8001\n",
		"mlx4_0/ports/1/pkeys/4":           "0x0002\n",
		"rxe0/parent":                      "eth0\n",
		"rxe0/ports/1/state":               "4: ACTIVE\n",
		"rxe0/ports/1/link_layer":          "Ethernet\n",
		"strange0/ports/1/state":           "4: ACTIVE\n",
		"strange0/ports/1/link_layer":      "Unspecified\n",
	} {
		fs[name] = &fstest.MapFile{Data: []byte(text)}
	}
	return fs
}

func TestScan(t *testing.T) {
	v4 := [16]byte{10: 0xff, 0xff, 192, 0, 2, 1}
	roce := found{"mlx5_0", []verbs.Port{{Device: "mlx5_0", Number: 1, Link: verbs.Ethernet, GIDs: []verbs.GID{
		{Index: 0, Addr: [16]byte{0xfe, 0x80, 15: 1}}, {Index: 1, Addr: v4}, {Index: 2, Addr: v4, RoCEv2: true},
	}}}}
	ib := found{"mlx4_0", []verbs.Port{{Device: "mlx4_0", Number: 1, Link: verbs.InfiniBand, LID: 0x1f, GIDs: []verbs.GID{{Addr: [16]byte{0xfe, 0x80, 15: 7}}}, Partition: 0xffff}}}
	soft := found{"rxe0", []verbs.Port{{Device: "rxe0", Number: 1, Link: verbs.Ethernet, Software: true}}}
	for name, want := range map[string][]found{
		"": {ib, roce, soft}, "rxe0": {soft}, "mlx5_0": {roce}, "mlx5_0/1": {roce}, "mlx5_0/2": nil, "mlx4_0": {ib}, "mlx5_9": nil, "strange0": nil,
	} {
		got, err := scan(tree(), name, 0)
		if !reflect.DeepEqual(got, want) || (want == nil) != errors.Is(err, ErrNoDevice) {
			t.Errorf("%q: %+v, %v", name, got, err)
		}
	}
	if _, err := scan(fstest.MapFS{}, "", 0); !errors.Is(err, ErrNoDevice) {
		t.Error(err)
	}
}

// TestScanPartition: of the ports those that are of the partition, by the entry that makes them
// full members if there is one.
func TestScanPartition(t *testing.T) {
	for want, index := range map[verbs.Partition]int{0x8001: 3, 0x0001: 3, 0x8002: 4, 0xffff: 0, 0x7fff: 0} {
		got, err := scan(tree(), "", want)
		if err != nil || len(got) != 1 || len(got[0].ports) != 1 {
			t.Errorf("%v: %+v, %v", want, got, err)
			continue
		}
		if p := got[0].ports[0]; p.Device != "mlx4_0" || p.PKey != index || !p.Partition.Same(want) {
			t.Errorf("%v: %+v", want, p)
		}
	}
	for _, name := range []string{"", "mlx4_0", "rxe0"} {
		if got, err := scan(tree(), name, 0x8005); got != nil || !errors.Is(err, ErrNoPartition) || !strings.Contains(err.Error(), "0x8005") {
			t.Errorf("%q: %+v, %v", name, got, err)
		}
	}
	if _, err := scan(tree(), "mlx5_0/2", 0x8001); !errors.Is(err, ErrNoDevice) {
		t.Errorf("a port that is down: %v", err)
	}
}

// TestNoLibrary: a machine without libibverbs says so.
func TestNoLibrary(t *testing.T) {
	if _, err := load("libibverbs-that-is-not-there.so.1"); !errors.Is(err, ErrNoLibrary) {
		t.Error(err)
	}
	if _, err := load("libc.so.6"); !errors.Is(err, ErrNoLibrary) {
		t.Errorf("another library: %v", err)
	}
}
