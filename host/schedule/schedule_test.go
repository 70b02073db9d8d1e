package schedule

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"causeway/host/schedule/page"
	"causeway/host/schedule/policy"
	"causeway/remote/sys"
)

var quietLog = slog.New(slog.DiscardHandler)

// TestShare: two workers at 3:1 get that, then the other way round when the limits change, and the
// rest has everything when one leaves. The bounds are wide, and a second in which they do not hold
// is followed by another: the clock of a loaded machine is no measure. How exact it is, the
// policy's tests say by a clock of their own.
func TestShare(t *testing.T) {
	leaks(t)
	socket := filepath.Join(t.TempDir(), "s")
	serve(t, socket)
	g := &gpu{}
	a, b := join(t, socket, "a", 300, 0), join(t, socket, "b", 100, 0)
	x, y := add(t, a), add(t, b)
	v, w := work(t, g, x, 200*time.Microsecond), work(t, g, y, 200*time.Microsecond)
	defer v.stop()
	within := func(what string, least, most float64) {
		t.Helper()
		inTime(t, what, least, most, func() float64 {
			time.Sleep(100 * time.Millisecond)
			p, q := v.done.Load(), w.done.Load()
			time.Sleep(time.Second)
			return float64(v.done.Load()-p) / float64(max(w.done.Load()-q, 1))
		})
	}
	within("3:1", 2, 4.5)
	a.SetLimits(policy.Limits{Weight: 100})
	b.SetLimits(policy.Limits{Weight: 400})
	within("1:4", 0.15, 0.5)
	st, err := ReadStatus(context.Background(), socket)
	if err != nil || len(st.GPUs) != 1 || len(st.GPUs[0].Shares) != 2 || st.GPUs[0].Shares[0].Sessions != 1 {
		t.Fatalf("status %+v, %v", st, err)
	}
	if busy, waited, _ := y.Use(); busy == 0 || waited == 0 {
		t.Errorf("busy %v, waited %v", busy, waited)
	}
	w.stop()
	y.Close()
	b.Close()
	eventually(t, "free", func() bool { return x.g.Word().Free() })
}

// TestDies: when the scheduler ends, workers go on, also one that stood at its gate; another takes
// over.
func TestDies(t *testing.T) {
	leaks(t)
	socket := filepath.Join(t.TempDir(), "s")
	stop := serve(t, socket)
	g := &gpu{}
	a, b := join(t, socket, "a", 1, 0), join(t, socket, "b", 1, 0)
	x, y := add(t, a), add(t, b)
	v, w := work(t, g, x, 200*time.Microsecond), work(t, g, y, 200*time.Microsecond)
	defer v.stop()
	defer w.stop()
	contended := func() bool {
		return !x.g.Word().Free() && !y.g.Word().Free() && x.u.Waits.Load() > 3 && y.u.Waits.Load() > 3
	}
	eventually(t, "contended", contended)
	stop()
	eventually(t, "open", func() bool { return x.g.Word().Free() && y.g.Word().Free() })
	p, q := v.done.Load(), w.done.Load()
	eventually(t, "both go on", func() bool { return v.done.Load() > p+100 && w.done.Load() > q+100 })
	x.u.Waits.Store(0)
	y.u.Waits.Store(0)
	serve(t, socket)
	eventually(t, "contended again", contended)
	if !a.Connected() || !b.Connected() {
		t.Error("not connected")
	}
}

// TestAwait: a member that found nobody is served by the scheduler that comes, or says in time that
// none did.
func TestAwait(t *testing.T) {
	leaks(t)
	socket := filepath.Join(t.TempDir(), "s")
	m := Join(socket, Member{GPU: "GPU-1", Key: "a", Weight: 100}, quietLog)
	defer m.Close()
	short, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if m.Await(short) {
		t.Error("nobody serves it, and it is served")
	}
	serve(t, socket)
	if !m.Await(t.Context()) || !m.Connected() {
		t.Error("the scheduler that came does not serve it")
	}
}

// TestHangs: a scheduler that takes requests and does nothing is given up by those whose sessions
// wait for it.
func TestHangs(t *testing.T) {
	leaks(t)
	socket := filepath.Join(t.TempDir(), "s")
	ln, err := Listen(socket)
	if err != nil {
		t.Fatal(err)
	}
	conns := make(chan *net.UnixConn, 16)
	var hung atomic.Bool
	go func() {
		for {
			c, err := ln.AcceptUnix()
			if err != nil {
				close(conns)
				return
			}
			conns <- c
			go func() {
				b := make([]byte, maxPacket)
				for {
					if n, err := c.Read(b); err != nil || n == 0 {
						return
					}
					if !hung.Load() {
						_, _ = c.Write([]byte("{}"))
					}
				}
			}()
		}
	}()
	defer func() {
		_ = ln.Close()
		for c := range conns {
			_ = c.Close()
		}
	}()
	s := join(t, socket, "a", 1, 0)
	x := add(t, s)
	hung.Store(true)
	x.g.Set(page.Metered, time.Millisecond) // the last that it did
	w := work(t, &gpu{}, x, 200*time.Microsecond)
	defer w.stop()
	eventually(t, "goes on", func() bool { return w.done.Load() > 10 })
}

// TestLate: a membership that begins before there is a scheduler is open until one comes.
func TestLate(t *testing.T) {
	leaks(t)
	socket := filepath.Join(t.TempDir(), "s")
	s := join(t, socket, "a", 1, 0)
	x := add(t, s)
	if !x.g.Word().Free() || s.Connected() {
		t.Errorf("grant %#x", x.g.Word())
	}
	serve(t, socket)
	eventually(t, "connected", s.Connected)
}

// TestAlone: a cap without a node's scheduler.
func TestAlone(t *testing.T) {
	leaks(t)
	s := Alone(Member{GPU: "GPU-1", Key: "a", Weight: 1, Cap: 20}, quietLog)
	defer s.Close()
	x := add(t, s)
	w := work(t, &gpu{}, x, 200*time.Microsecond)
	defer w.stop()
	inTime(t, "what a cap of 20 % leaves", 0.1, 0.3, func() float64 {
		time.Sleep(100 * time.Millisecond)
		before := w.done.Load()
		time.Sleep(time.Second)
		return float64(w.done.Load()-before) / 5000
	})
}

// TestHostile: a worker that writes anything into its usage, and rings without end, changes nothing
// for another.
func TestHostile(t *testing.T) {
	leaks(t)
	socket := filepath.Join(t.TempDir(), "s")
	serve(t, socket)
	g := &gpu{}
	a, b := join(t, socket, "good", 1, 0), join(t, socket, "bad", 1, 50)
	x, y := add(t, a), add(t, b)
	v := work(t, g, x, 200*time.Microsecond)
	defer v.stop()
	var stop atomic.Bool
	var group sync.WaitGroup
	group.Go(func() {
		var one [8]byte
		binary.NativeEndian.PutUint64(one[:], 1)
		for n := uint64(1); !stop.Load(); n = n*6364136223846793005 + 1442695040888963407 {
			y.u.Active.Store(uint32(n >> 60 & 1))
			y.u.Drained.Store(uint32(n >> 20))
			y.u.Busy.Store(n)
			y.u.Waited.Store(^n)
			_, _ = unix.Write(y.files[2], one[:])
			if n>>40&0xfff == 0 {
				time.Sleep(time.Millisecond)
			}
		}
	})
	before := v.done.Load()
	time.Sleep(1500 * time.Millisecond)
	eventually(t, "the good one makes its kernels", func() bool { return v.done.Load() >= before+500 })
	st, err := ReadStatus(context.Background(), socket)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range st.GPUs[0].Shares {
		if s.Held < 0 || s.Busy < 0 || s.Waited < 0 || s.Held > 10*time.Second || s.Busy > 10*time.Second {
			t.Errorf("%+v", s)
		}
	}
	stop.Store(true)
	group.Wait()
}

// dialRaw is a client that says anything.
func dialRaw(t *testing.T, socket string) (ask func(text string, files ...int) string) {
	t.Helper()
	c, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: socket, Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return func(text string, files ...int) string {
		t.Helper()
		if err := sys.SendPacket(c, []byte(text), files); err != nil {
			t.Fatal(err)
		}
		b := make([]byte, maxPacket)
		n, err := c.Read(b)
		if err != nil {
			t.Fatal(err)
		}
		var a answer
		if err := json.Unmarshal(b[:n], &a); err != nil {
			t.Fatal(err)
		}
		return a.Error
	}
}

// TestRefusals: what makes no sense is refused by a sentence, costs nobody anything, and leaves
// nothing behind.
func TestRefusals(t *testing.T) {
	leaks(t)
	socket := filepath.Join(t.TempDir(), "s")
	serve(t, socket)
	ask := dialRaw(t, socket)
	f, err := os.Create(filepath.Join(t.TempDir(), "f"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Truncate(4096); err != nil {
		t.Fatal(err)
	}
	plain := int(f.Fd())
	mem, _, err := sys.NewPage("test", 4096, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(mem)
	bell, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(bell)
	for _, c := range []struct {
		text  string
		files []int
		want  string
	}{
		{`{`, nil, "bad request"},
		{`{"op":"fly"}`, nil, "no operation"},
		{`{"op":"status","x":1}`, nil, "unknown field"},
		{`{"op":"add","session":1}`, []int{mem, mem, bell}, "before join"},
		{`{"op":"limits","weight":1}`, nil, "before join"},
		{`{"op":"join","key":"k"}`, nil, "which GPU"},
		{`{"op":"join","gpu":"g","key":"k","cap":101}`, nil, "cap"},
		{`{"op":"join","gpu":"` + strings.Repeat("g", 300) + `","key":"k"}`, nil, "too long"},
		{`{"op":"join","gpu":"g","key":"k","weight":1}`, []int{mem}, ""},
		{`{"op":"join","gpu":"g","key":"k","weight":1}`, nil, "has joined"},
		{`{"op":"add","session":1}`, nil, "0 files"},
		{`{"op":"add","session":1}`, []int{mem, mem, bell, bell}, "4 files"},
		{`{"op":"add","session":1}`, []int{plain, mem, bell}, "not a shared page"},
		{`{"op":"add","session":1}`, []int{mem, plain, bell}, "not a shared page"},
		{`{"op":"add","session":1}`, []int{mem, mem, plain}, "bell"},
		{`{"op":"add","session":1}`, []int{mem, mem, bell}, ""},
		{`{"op":"add","session":1}`, []int{mem, mem, bell}, "there already"},
		{`{"op":"remove","session":2}`, nil, "no session 2"},
		{`{"op":"remove","session":1}`, nil, ""},
		{`{"op":"status"}`, []int{mem, mem}, ""},
	} {
		got := ask(c.text, c.files...)
		if (got == "") != (c.want == "") || !strings.Contains(got, c.want) {
			t.Errorf("%s with %d files: %q, want %q", c.text, len(c.files), got, c.want)
		}
	}
}

// TestTwo: a second scheduler on a socket is refused, and one whose socket was left behind is
// replaced.
func TestTwo(t *testing.T) {
	leaks(t)
	socket := filepath.Join(t.TempDir(), "s")
	stop := serve(t, socket)
	if _, err := Listen(socket); err == nil || !strings.Contains(err.Error(), "another scheduler") {
		t.Errorf("%v", err)
	}
	stop()
	ln, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: socket, Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	ln.SetUnlinkOnClose(false)
	_ = ln.Close()
	serve(t, socket)
	if _, err := ReadStatus(context.Background(), socket); err != nil {
		t.Error(err)
	}
}

// TestOthers: other users are not let in, even if the socket's mode would.
func TestOthers(t *testing.T) {
	if os.Getenv("CAUSEWAY_SCHEDULE_DIAL") != "" {
		_, err := ReadStatus(context.Background(), os.Getenv("CAUSEWAY_SCHEDULE_DIAL"))
		if err == nil {
			os.Exit(3)
		}
		_, _ = io.WriteString(os.Stdout, err.Error())
		os.Exit(0)
	}
	if os.Geteuid() != 0 {
		t.Skip("needs root, to become somebody else")
	}
	leaks(t)
	dir, err := os.MkdirTemp("/tmp", "causeway-schedule")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	socket := filepath.Join(dir, "s")
	serve(t, socket)
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	exe, err := os.Open("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	defer exe.Close()
	for mode, want := range map[os.FileMode]string{0o600: "permission denied", 0o666: ""} {
		if err := os.Chmod(socket, mode); err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command("/proc/self/fd/3", "-test.run", "^TestOthers$")
		cmd.ExtraFiles = []*os.File{exe}
		cmd.Env = []string{"CAUSEWAY_SCHEDULE_DIAL=" + socket}
		cmd.Dir = "/"
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		out, err := cmd.CombinedOutput()
		if err != nil || !strings.Contains(string(out), want) {
			t.Errorf("mode %v: %s, %v", mode, out, err)
		}
	}
}

// TestAccount: the driver's account reaches the scheduler, which says what it charged for it; one
// that makes no sense is refused, and costs nothing.
func TestAccount(t *testing.T) {
	leaks(t)
	path := filepath.Join(t.TempDir(), "s")
	serve(t, path)
	membership := Join(path, Member{GPU: "GPU-1", Key: "vm/gpu0", Weight: 1, Cap: 20}, quietLog)
	defer membership.Close()
	if n := membership.Account(0, 5*time.Second); n != 0 {
		t.Errorf("charged %v for nothing", n)
	}
	if n := membership.Account(5*time.Second, 5*time.Second); n != 0 {
		t.Errorf("charged %v of a time before it joined", n)
	}
	const period = 400 * time.Millisecond
	time.Sleep(period)
	if n := membership.Account(period, period); n < period*3/4 || n > period {
		t.Errorf("charged %v for %v that nobody counted", n, period)
	}
	if n := membership.Account(2*time.Hour, 0); n != 0 || !membership.Connected() {
		t.Errorf("an account without a period: charged %v, connected %v", n, membership.Connected())
	}
	st, err := ReadStatus(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	if s := st.GPUs[0].Shares[0]; s.Card != 5*time.Second+period || s.Charged < period*3/4 || !s.Throttled {
		t.Errorf("%+v", s)
	}
	for _, text := range []string{`{"op":"account"}`, `{"op":"account","card_ns":-1,"period_ns":1}`, `{"op":"account","card_ns":1,"period_ns":-1}`, `{"op":"account","period_ns":3600000000001}`} {
		if r, err := decodeRequest([]byte(text)); !errors.Is(err, ErrRequest) {
			t.Errorf("%s is %+v, %v", text, r, err)
		}
	}
}

// FuzzDecodeRequest: what a client says is a request within bounds or an error.
func FuzzDecodeRequest(f *testing.F) {
	for _, s := range []string{
		`{"op":"join","gpu":"GPU-1","key":"vm/gpu0","weight":100,"cap":25,"soft":true}`, `{"op":"limits","weight":1}`,
		`{"op":"add","session":18446744073709551615}`, `{"op":"remove","session":0}`, `{"op":"status"}`, `{"op":"account","card_ns":5,"period_ns":5000000000}`, `{"op":"account"}`, `{"op":"status"}{}`, `{"op":"join","weight":-1}`, `[]`, ``,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := decodeRequest(b)
		if err != nil {
			return
		}
		if r.Cap > 100 || len(r.Key) > maxText || len(r.GPU) > maxText || r.Weight > 1_000_000 || r.Op == "" {
			t.Errorf("%+v", r)
		}
		again, err := json.Marshal(&r)
		if err != nil {
			t.Fatal(err)
		}
		if v, err := decodeRequest(again); err != nil || v != r {
			t.Errorf("%+v became %+v, %v", r, v, err)
		}
	})
}
