package sys_test

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"causeway/remote/sys"
)

// TestPeer: who is at the other end of a pair is this process; a connection that is closed has
// nobody.
func TestPeer(t *testing.T) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fds[1])
	c, err := sys.UnixConn(fds[0], "test")
	if err != nil {
		t.Fatal(err)
	}
	who, err := sys.Peer(c)
	if err != nil || int(who.Pid) != os.Getpid() || int(who.Uid) != os.Geteuid() || int(who.Gid) != os.Getegid() {
		t.Errorf("%+v, %v", who, err)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if who, err := sys.Peer(c); err == nil {
		t.Errorf("closed: %+v", who)
	}
}

// TestTrusted: root and one's own user.
func TestTrusted(t *testing.T) {
	own := uint32(os.Geteuid())
	for uid, want := range map[uint32]bool{0: true, own: true, own + 1: false, 65534: own == 65534} {
		if err := sys.Trusted(unix.Ucred{Uid: uid}); (err == nil) != want {
			t.Errorf("user %d: %v", uid, err)
		}
	}
}
