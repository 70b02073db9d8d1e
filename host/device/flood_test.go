package device

import (
	"errors"
	"log/slog"
	"syscall"
	"testing"
	"time"

	"causeway/host/api"
	"causeway/remote"
	"causeway/virtio/fs"
	"causeway/virtio/fs/fstest"
)

// TestDoor: a burst at once, then a bounded rate, with so many in wait; time brings the burst back.
func TestDoor(t *testing.T) {
	d := newDoor()
	now := time.Now()
	for i := range openBurst {
		if wait, err := d.enter(0, now); wait != 0 || err != nil {
			t.Fatalf("%d of the burst: %v, %v", i, wait, err)
		}
	}
	last := time.Duration(0)
	waiting := 0
	for {
		wait, err := d.enter(0, now)
		if err != nil {
			if !errors.Is(err, errTooFast) {
				t.Fatal(err)
			}
			break
		}
		if wait <= last || wait > openPatience {
			t.Fatalf("waits %v after one that waits %v", wait, last)
		}
		last = wait
		waiting++
	}
	if want := int(openPatience.Seconds() * openRate); waiting != want {
		t.Errorf("%d wait, want %d", waiting, want)
	}
	if _, err := d.enter(0, now.Add(time.Second/openRate)); err != nil {
		t.Errorf("after a token's time: %v", err)
	}
	if wait, err := d.enter(0, now.Add(time.Hour)); wait != 0 || err != nil {
		t.Errorf("an hour later: %v, %v", wait, err)
	}
	for range openBurst - 1 {
		if wait, err := d.enter(0, now.Add(time.Hour)); wait != 0 || err != nil {
			t.Fatalf("another burst: %v, %v", wait, err)
		}
	}
	if wait, _ := d.enter(0, now); wait <= 0 { // a clock that goes back
		t.Errorf("waits %v", wait)
	}
}

// TestUserSessions: one user of the guest gets no more than its part of the sessions, others the
// rest, and root, who can be anybody, all.
func TestUserSessions(t *testing.T) {
	d := &Device{users: map[uint32]guestUser{}, limits: withDefaults(api.Limits{Sessions: 8})}
	take := func(uid uint32, want int, why error) {
		t.Helper()
		n := 0
		var err error
		for ; n <= 8 && err == nil; n++ {
			err = d.admitLocked(uid)
		}
		if n-1 != want || !errors.Is(err, why) {
			t.Fatalf("user %d got %d sessions, want %d: %v", uid, n-1, want, err)
		}
	}
	take(1000, 4, errUser)
	take(1001, 4, errSessions)
	for range 4 {
		d.departLocked(1000)
		d.departLocked(1001)
	}
	take(0, 8, errSessions)
	for range 8 {
		d.departLocked(0)
	}
	d.limits.UserSessions = 3
	take(1000, 3, errUser)
	take(1001, 3, errUser)
	take(1002, 2, errSessions)
	for uid, n := range map[uint32]int{1000: 3, 1001: 3, 1002: 2} {
		for range n {
			d.departLocked(uid)
		}
	}
	if len(d.users) != 0 || d.admitted != 0 {
		t.Errorf("%d users, %d sessions are left", len(d.users), d.admitted)
	}
}

// TestUserOpens: files that are only opened do not shut others out.
func TestUserOpens(t *testing.T) {
	d := &Device{users: map[uint32]guestUser{}, sessions: map[*session]struct{}{}, opened: make(chan struct{}, 1), log: slog.New(slog.DiscardHandler)}
	var open []fs.ControlHandle
	for {
		h, errno := d.Open(fs.Caller{UID: 1000})
		if errno != 0 {
			break
		}
		open = append(open, h)
	}
	other, errno := d.Open(fs.Caller{UID: 1001})
	if errno != 0 || len(open) != mostSessions/2 {
		t.Errorf("%d files of one user, then %v for another", len(open), errno)
	}
	for _, h := range append(open, other) {
		h.Release()
	}
	d.ending.Wait()
	if len(d.users) != 0 {
		t.Errorf("%d users are left", len(d.users))
	}
}

// TestDoorOfUsers: one user that floods waits and is refused; another comes in meanwhile, at once
// and at half of the rate.
func TestDoorOfUsers(t *testing.T) {
	d := newDoor()
	now := time.Now()
	at, refused := 0, 0
	for range 1000 {
		switch wait, err := d.enter(1000, now); {
		case errors.Is(err, errTooFast):
			refused++
		case err != nil:
			t.Fatal(err)
		case wait == 0:
			at++
		}
	}
	if at != openBurst/2 || refused < 800 {
		t.Errorf("of a flood %d come in at once and %d are refused", at, refused)
	}
	if wait, err := d.enter(1001, now); err != nil || wait > 5*time.Second {
		t.Errorf("another waits %v, %v", wait, err)
	}
	for range 10 * openRate { // seconds of both
		now = now.Add(time.Second / (openRate / 2))
		if _, err := d.enter(1001, now); err != nil {
			t.Fatalf("another is refused beside a flood: %v", err)
		}
		for range 10 {
			_, _ = d.enter(1000, now)
		}
	}
	for uid := range uint32(2 * mostPaces) { // who came long ago is forgotten
		now = now.Add(time.Minute)
		_, _ = d.enter(2000+uid, now)
	}
	if len(d.users) > mostPaces {
		t.Errorf("%d users are remembered", len(d.users))
	}
}

// TestUserQuestions: one user does not hold all files that ask NVML.
func TestUserQuestions(t *testing.T) {
	f := newNVMLFile(nil, slog.New(slog.DiscardHandler))
	var open []fs.ControlHandle
	for range mostOthers {
		if h, errno := f.Open(fs.Caller{UID: 1000}); errno == 0 {
			open = append(open, h)
		}
	}
	other, errno := f.Open(fs.Caller{UID: 1001})
	if errno != 0 || len(open) != mostOthers/2 {
		t.Errorf("%d files of one user, then %v for another", len(open), errno)
	}
	for _, h := range append(open, other) {
		h.Release()
	}
	if len(f.open) != 0 {
		t.Errorf("%v are left", f.open)
	}
}

// TestQuestionsOfUsers: one user's questions that wait leave others room for theirs.
func TestQuestionsOfUsers(t *testing.T) {
	f := newNVMLFile(nil, slog.New(slog.DiscardHandler))
	wait := func(uid uint32, n int) (waiting int) {
		for range n {
			if f.ask(uid) {
				waiting++
			}
		}
		return waiting
	}
	const half = maxQuestions / 2
	if one, other, root := wait(1000, maxQuestions), wait(1001, 1), wait(0, maxQuestions); one != half || other != 1 || root != half-1 {
		t.Errorf("of %d questions %d are one user's, %d another's, %d root's", maxQuestions, one, other, root)
	}
	if wait(1002, 1) != 0 {
		t.Error("more wait than may")
	}
	f.answered(1000)
	if wait(1000, 2) != 1 {
		t.Error("a question that was answered leaves no room, or more than it had")
	}
	for uid, n := range map[uint32]int{0: half - 1, 1000: half, 1001: 1} {
		for range n {
			f.answered(uid)
		}
	}
	if len(f.asking) != 0 || f.waits != 0 {
		t.Errorf("left: %v, %d", f.asking, f.waits)
	}
}

// TestPlaceOfOneThatEnds: a session that finds no place waits for that of one whose worker is on
// its way out, and for no other.
func TestPlaceOfOneThatEnds(t *testing.T) {
	inKernel(t, func(k *kernel) {
		k.d.limits.Sessions = 1
		hello := func() *fstest.Call {
			c := k.control(remote.Hello{Type: remote.MsgHello, Va: 0x7f0000000000, Size: remote.Region0Size})
			k.settle()
			return c
		}
		k.begin()
		first, w := k.file, k.worker()
		k.open()
		k.want("while the first runs", hello(), syscall.EUSERS)
		if err := k.file.Close(); err != nil {
			t.Fatal(err)
		}
		// It has nothing of the guest's any more that its end would wait for.
		k.sleep(loanTerm + shortestNap)
		w.hang(true) // its end takes stopGrace
		if err := first.Close(); err != nil {
			t.Fatal(err)
		}
		k.open()
		c := hello()
		k.pending("while the first one's worker ends", c)
		k.sleep(stopGrace)
		k.want("when it has ended", c, 0)
		if k.worker() == w {
			t.Error("no worker was started")
		}
	})
}
