package ibv_test

import (
	"bytes"
	"context"
	"errors"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"causeway/remote/remotetest"
	"causeway/remote/sys"
	"causeway/remote/verbs"
	"causeway/remote/verbs/ibv"
)

// run runs a program of the VM's.
func run(t *testing.T, command string) {
	t.Helper()
	words := strings.Fields(command)
	if out, err := exec.Command(words[0], words[1:]...).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v: %s", command, err, out)
	}
}

// openTwo opens a second device, too, soft RoCE on a wire of its own, and says what it is on.
func openTwo(t *testing.T) (ds *ibv.Devices, nic string) {
	t.Helper()
	if os.Getenv("RDMA_ROLE") != "alone" {
		t.Skip("scripts/rdma.sh's VM may have a second device made")
	}
	nic = "ve2"
	for _, c := range []string{
		"/usr/bin/ip link add ve2 mtu 9000 type veth peer name ve3 mtu 9000", "/usr/bin/ip link set ve3 up",
		"/usr/bin/ip addr add 10.9.1.1/24 dev ve2", "/usr/bin/ip link set ve2 up", "rdma link add rxe1 type rxe netdev ve2",
	} {
		run(t, c)
	}
	t.Cleanup(func() {
		run(t, "rdma link delete rxe1")
		run(t, "/usr/bin/ip link delete ve2")
	})
	for end := time.Now().Add(remotetest.Limit); ; time.Sleep(10 * time.Millisecond) {
		// Its port becomes active, and has its address.
		ds, err := ibv.Open("", 0)
		if err != nil {
			t.Fatal(err)
		}
		ready := 0
		for _, a := range ds.Adapters() {
			for _, g := range a.Port().GIDs {
				if g.RoCEv2 && g.Addr[10] == 0xff {
					ready++
				}
			}
		}
		if ready == 2 {
			t.Cleanup(func() {
				if err := ds.Close(); err != nil {
					// Also if anything is left of its queue pairs and memory.
					t.Error(err)
				}
			})
			return ds, nic
		}
		if err := ds.Close(); err != nil {
			t.Fatal(err)
		}
		if time.Now().After(end) {
			t.Fatal("the second device does not become ready")
		}
	}
}

// TestRails: copies by three queue pairs over two devices, and by what is left when the link of one
// goes down.
func TestRails(t *testing.T) {
	ds, nic := openTwo(t)
	nearBase, farBase := pair(t)
	other := make(chan net.Conn, 1)
	up := func(c net.Conn, client bool) net.Conn {
		up, err := verbs.UpgradeWide(context.Background(), c, ds.Adapters(), "", client, 3)
		if err != nil {
			t.Error(err)
		}
		return up
	}
	go func() { other <- up(farBase, false) }()
	near, ok := up(nearBase, true).(*verbs.Conn)
	far, also := (<-other).(*verbs.Conn)
	if !ok || !also {
		t.FailNow()
	}
	t.Logf("by %v", near)
	if near.Pairs() != 3 || far.Pairs() != 3 {
		t.Errorf("%d and %d queue pairs", near.Pairs(), far.Pairs())
	}
	const size = 1 << 20
	fd, mem, err := sys.NewPage("reached", size, 0)
	if err != nil {
		t.Fatal(err)
	}
	_ = unix.Close(fd)
	t.Cleanup(func() { sys.UnmapPage(mem) })
	g, revoke, err := near.Grant(mem)
	if err != nil {
		t.Fatal(err)
	}
	p, got := make([]byte, size), make([]byte, size)
	copies := func(seed int) {
		t.Helper()
		for i := range p {
			p[i] = byte(i*i>>9 + seed)
		}
		if err := errors.Join(far.Store(p, g, 0), far.Settle(), far.Fetch(got, g, 0)); err != nil || !bytes.Equal(p, got) || !bytes.Equal(mem, p) {
			t.Errorf("copy %d: other bytes, or %v", seed, err)
		}
	}
	copies(1)
	run(t, "/usr/bin/ip link set "+nic+" down")
	// What its queue pair takes of them fails, and is done by the others, which may be through with
	// a copy before it takes a part.
	for seed, end := 2, time.Now().Add(remotetest.Limit); seed < 4 || far.Pairs() > 2 && time.Now().Before(end); seed++ {
		copies(seed)
	}
	t.Logf("by %v", far)
	if far.Pairs() > 2 {
		t.Errorf("%d queue pairs, one of a link that is down", far.Pairs())
	}
	revoke()
	closed(t, near, far)
}
