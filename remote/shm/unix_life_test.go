package shm

import (
	"context"
	"errors"
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"causeway/remote"
)

// overBy waits for a session's end, which is about to come.
func overBy(t *testing.T, what string, u *Unix) {
	t.Helper()
	select {
	case <-u.Done():
	case <-time.After(20 * time.Second):
		t.Fatalf("%s: the session does not end", what)
	}
}

// TestThawedIsFollowed: the connection of a session that stays after all is followed again, and
// that of one that another process has taken over.
func TestThawedIsFollowed(t *testing.T) {
	for what, next := range map[string]func(*Unix) *Unix{
		"it stays": func(u *Unix) *Unix {
			if err := u.Freeze(); err != nil {
				t.Fatal(err)
			}
			u.Thaw()
			return u
		},
		"it goes": func(u *Unix) *Unix { return moved(t, u) },
	} {
		guest, u := begun(t)
		u.pid = 7
		if err := u.mem.WriteAt(0, make([]byte, len(controlPage())), 0); err != nil {
			// Which nobody reads again.
			t.Fatal(err)
		}
		u = next(u)
		if u.PID() != 7 {
			t.Errorf("%s: it is process %d", what, u.PID())
		}
		_ = guest.Close()
		if overBy(t, what, u); u.Err() != nil {
			t.Errorf("%s: %v", what, u.Err())
		}
		if err := u.Freeze(); !errors.Is(err, remote.ErrClosed) {
			t.Errorf("%s: a session that has ended moves: %v", what, err)
		}
		_ = u.Close()
	}
}

// TestPatienceIsForTheHello: how long a guest may take to say hello bounds nothing behind it.
func TestPatienceIsForTheHello(t *testing.T) {
	for patience := 10 * time.Millisecond; ; patience *= 2 {
		guest, host := saidHello(t, controlPage())
		u, err := accept(newUnix(host), patience)
		late := time.NewTimer(patience)
		if err != nil {
			if _ = guest.Close(); patience > time.Minute {
				t.Fatal(err)
			}
			continue // a slow machine
		}
		<-late.C
		_ = guest.Close()
		overBy(t, "it closes late", u)
		if err := errors.Join(u.Err(), u.Close()); err != nil && !errors.Is(err, net.ErrClosed) {
			t.Error(err)
		}
		return
	}
}

// TestEndedRegionsStay: a region that has ended is none of a session that moves, and the others
// come with their descriptors.
func TestEndedRegionsStay(t *testing.T) {
	guest, u := begun(t)
	defer guest.Close()
	for _, h := range []remote.Hello{
		{Type: remote.MsgRegion, Region: 1, Va: 0x6a0000400000, Size: pageSize}, {Type: remote.MsgRegion, Region: 2, Va: 0x6a0000800000, Size: 2 * pageSize}, {Type: remote.MsgRegionEnd, Region: 1},
	} {
		var files []int
		if h.Type == remote.MsgRegion {
			files = append(files, memfile(t, int64(h.Size)))
		}
		if err := u.message(h, files); err != nil {
			t.Fatal(err)
		}
	}
	if err := u.Freeze(); err != nil {
		t.Fatal(err)
	}
	s, files, err := u.State()
	if err != nil || len(s.Regions) != 2 || len(files) != 4 {
		t.Fatalf("%+v, %d descriptors, %v", s, len(files), err)
	}
	for i, r := range s.Regions {
		var st unix.Stat_t
		if err := unix.Fstat(files[2+i], &st); err != nil || uint64(st.Size) != r.Size || r.ID != 0 && (r.ID != 2 || r.VA != 0x6a0000800000) {
			t.Errorf("%+v of a file of %#x bytes, %v", r, st.Size, err)
		}
	}
	if err := u.Close(); err != nil {
		t.Error(err)
	}
}

// TestLookFindsTheEnd: who looks for a region finds a guest that has gone, which is no error, and
// one that breaks a rule, whose connection ends.
func TestLookFindsTheEnd(t *testing.T) {
	over, cancel := context.WithCancel(t.Context())
	cancel()
	for what, x := range map[string]struct {
		does  func(guest *net.UnixConn) error
		want  error
		reads bool // its connection is open
	}{
		"nothing": {func(*net.UnixConn) error { return nil }, nil, true},
		"it goes": {func(guest *net.UnixConn) error { return guest.CloseWrite() }, nil, true},
		"it breaks a rule": {func(guest *net.UnixConn) error {
			return errors.Join(send(guest, remote.FormatHello(remote.Hello{Type: remote.MsgHello}, "")), send(guest, remote.FormatHello(remote.Hello{Type: remote.MsgWelcome}, "")))
		}, remote.ErrProtocol, false},
	} {
		guest, u := begun(t)
		if err := u.Freeze(); err != nil { // nobody else follows it
			t.Fatal(err)
		}
		if err := x.does(guest); err != nil {
			t.Fatal(err)
		}
		if _, err := u.mem.Await(over, 7); !errors.Is(err, remote.ErrUnknownRegion) {
			t.Errorf("%s: %v", what, err)
		}
		if err := u.Err(); !errors.Is(err, x.want) || (err == nil) != (x.want == nil) {
			t.Errorf("%s: ended by %v", what, err)
		}
		if err := u.Welcome(0, ""); (err == nil) != x.reads {
			t.Errorf("%s: what is said to it: %v", what, err)
		}
		_, _ = u.Close(), guest.Close()
	}
}
