package guestend_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"causeway/remote/remotetest"
	"causeway/remote/remotetest/guestend"
	"causeway/remote/verbs"
	"causeway/remote/verbs/ibv"
)

// built is where `make build` puts what is loaded here.
const built = "../../../build/obj/libcuda/tests/ends"

func load(t *testing.T) *guestend.Library {
	t.Helper()
	path, err := filepath.Abs(filepath.Join(built, "guestend.so"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); err != nil {
		t.Skip("make build makes it: ", err)
	}
	l, err := guestend.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// flap is of how many work requests one fails.
const flap = 101

// TestConformance: the guest library's own ends do what every carrier must.
func TestConformance(t *testing.T) {
	l := load(t)
	t.Run("unix", func(t *testing.T) { remotetest.Conformance(t, l.Unix) })
	t.Run("tcp", func(t *testing.T) { remotetest.Conformance(t, l.TCP) })
	t.Run("rdma", func(t *testing.T) {
		sysfs, a, _ := fabric(t)
		remotetest.Conformance(t, func() (remotetest.Ends, error) { return l.RDMA(a, "127.0.0.1", sysfs) })
	})
	t.Run("flaps", func(t *testing.T) {
		// Its queue pairs are lost again and again, and the session goes on over others.
		sysfs, a, f := fabric(t)
		defer f.Flap(0)
		lost, refused := f.Lost(), f.Refused()
		remotetest.Conformance(t, func() (remotetest.Ends, error) {
			f.Flap(flap) // behind the beginning
			return l.RDMA(a, "127.0.0.1", sysfs)
		})
		lost, refused = f.Lost()-lost, f.Refused()-refused
		if t.Logf("%d queue pairs were lost, %d not made", lost, refused); lost < 10 || refused == 0 {
			t.Error("too few for anything to be shown")
		}
	})
}

// fabric is an adapter without hardware: that libibverbs's whose queue pairs lead from one end in
// this process to another.
func fabric(t *testing.T) (sysfs string, a verbs.Adapter, f *guestend.Fabric) {
	t.Helper()
	lib, err := filepath.Abs(filepath.Join(built, "libibverbs.so.1"))
	if err == nil {
		f, err = guestend.Preload(lib)
	}
	if err != nil {
		t.Fatal(err)
	}
	sysfs = port(t)
	ds, err := ibv.OpenIn(os.DirFS(sysfs), "", 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := ds.Close(); err != nil {
			t.Error(err)
		}
	})
	return sysfs, ds.Adapters()[0], f
}

// port is what the kernel shows of it.
func port(t *testing.T) (sysfs string) {
	sysfs = t.TempDir()
	for name, text := range map[string]string{
		"state": "4: ACTIVE", "link_layer": "Ethernet", "lid": "0x0", "gids/0": "0000:0000:0000:0000:0000:ffff:7f00:0001", "gid_attrs/types/0": "RoCE v2",
		"pkeys/0": "0xffff", "pkeys/1": "0x8001",
	} {
		path := filepath.Join(sysfs, "fake0/ports/1", name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return sysfs
}

// TestPartition: queue pairs are readied for the partition that is asked for, by where it stands in
// the port's table.
func TestPartition(t *testing.T) {
	load(t)
	sysfs, _, f := fabric(t)
	peer, err := verbs.ParseOffer(verbs.Offer{
		Link: verbs.Ethernet, MTU: 3, Queue: 7, GID: [16]byte{15: 1}, Window: verbs.Window{Address: 1 << 20, Size: verbs.LeastWindow},
	}.Append(nil))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []struct {
		partition verbs.Partition
		index     int
	}{{0x8001, 1}, {0, 0}, {0xffff, 0}, {0x0001, 1}} {
		ds, err := ibv.OpenIn(os.DirFS(sysfs), "", want.partition)
		if err != nil {
			t.Fatal(err)
		}
		q, err := ds.Adapters()[0].NewQueue(verbs.QueueSize{Send: 1, Receive: 1})
		if err != nil {
			t.Fatal(err)
		}
		if err := q.Connect(verbs.Path{MTU: 3, Peer: peer}); err != nil || f.Partition() != want.index {
			t.Errorf("%v: index %d, want %d; %v", want.partition, f.Partition(), want.index, err)
		}
		if err := errors.Join(q.Close(), ds.Close()); err != nil {
			t.Error(err)
		}
	}
}
