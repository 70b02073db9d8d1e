package worker

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"causeway/host/driver"
	"causeway/host/worker/link"
	"causeway/host/worker/link/linktest"
)

// stage is a time in a worker's life at which it follows its parent.
type stage struct {
	name string
	// follow has a worker at that stage follow the one message that the parent has sent, and
	// returns when it has.
	follow func(t *testing.T, l *link.WorkerEnd) error
}

var errNoGPU = errors.New("no GPU")

// noGPU is a worker process that has no GPU.
func noGPU() *Process {
	return &Process{
		Backend: func(string) (driver.Backend, error) { return nil, errNoGPU },
		Logger:  func(slog.Level) *slog.Logger { return slog.New(slog.DiscardHandler) },
	}
}

var stages = []stage{
	{"first", func(_ *testing.T, l *link.WorkerEnd) error {
		p := noGPU()
		return (&starter{link: l, backend: p.Backend}).begin(context.Background(), p)
	}},
	{"awaits pages", func(_ *testing.T, l *link.WorkerEnd) error {
		return (&starter{link: l, cfg: link.Config{Shared: true}}).awaitPages()
	}},
	{"awaits start", func(t *testing.T, l *link.WorkerEnd) error {
		c := newVirtiofs(l)
		defer c.Close()
		return (&starter{link: l, virtiofs: c}).prepare(c, receive(t, l))
	}},
	{"runs on a connection", func(t *testing.T, l *link.WorkerEnd) error {
		return (&starter{link: l}).follow(over(), receive(t, l), func() {})
	}},
	{"runs on lent memory", func(t *testing.T, l *link.WorkerEnd) error {
		c := newVirtiofs(l)
		defer c.Close()
		return (&starter{link: l, virtiofs: c}).follow(over(), receive(t, l), func() {})
	}},
	{"passes on a connection", func(t *testing.T, l *link.WorkerEnd) error {
		return passing(t, &starter{link: l})
	}},
	{"passes on lent memory", func(t *testing.T, l *link.WorkerEnd) error {
		c := newVirtiofs(l)
		defer c.Close()
		return passing(t, &starter{link: l, virtiofs: c})
	}},
}

// passing follows a message while the session is passed on, and its connection is waited for.
func passing(t *testing.T, s *starter) error {
	p := newPasser(t.Context(), s, func() {})
	p.waits.Store(true)
	err := p.follow(receive(t, s.link))
	select {
	case m := <-p.connected:
		_ = unix.Close(m.Connection.FD())
	default:
	}
	return err
}

// over is a session whose consumer has ended: nothing that is to be done between two records is
// done.
func over() *Worker {
	w := &Worker{ended: make(chan struct{})}
	close(w.ended)
	return w
}

func receive(t *testing.T, l *link.WorkerEnd) link.Received[link.ToWorker] {
	t.Helper()
	r, err := l.Receive()
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// follows lists the stages at which a worker does something about a kind of message. At all others
// it refuses it by its name, and ends.
var follows = map[string][]string{
	"configure":     {"first"},
	"warm":          {"first"},
	"add memory":    {"awaits start", "runs on lent memory", "passes on lent memory"},
	"remove memory": {"awaits start", "runs on lent memory", "passes on lent memory"},
	"add region":    {"awaits start", "runs on lent memory", "passes on lent memory"},
	"add pages":     {"awaits start", "runs on lent memory", "passes on lent memory"},
	"end region":    {"awaits start", "runs on lent memory", "passes on lent memory"},
	"start":         {"awaits start"},
	"park":          {"runs on a connection", "runs on lent memory", "passes on a connection", "passes on lent memory"},
	"resume":        {"runs on a connection", "runs on lent memory", "passes on a connection", "passes on lent memory"},
	"rebuild":       {"runs on a connection", "runs on lent memory", "passes on a connection", "passes on lent memory"},
	"quit":          {"awaits start", "runs on a connection", "runs on lent memory", "passes on a connection", "passes on lent memory"},
	"measure":       {"runs on a connection", "runs on lent memory", "passes on a connection", "passes on lent memory"},
	"answer":        {"runs on a connection", "runs on lent memory"},
	"share pages":   {"awaits pages", "awaits start", "runs on a connection", "runs on lent memory", "passes on a connection", "passes on lent memory"},
	"set limit":     {"awaits start", "runs on a connection", "runs on lent memory", "passes on a connection", "passes on lent memory"},
	"leave":         {"runs on a connection", "runs on lent memory", "passes on a connection", "passes on lent memory"},
	"probe":         {"runs on a connection", "runs on lent memory", "passes on a connection", "passes on lent memory"},
	"export":        {"runs on a connection", "runs on lent memory", "passes on a connection", "passes on lent memory"},
	"copy":          {"runs on a connection", "runs on lent memory", "passes on a connection", "passes on lent memory"},
	"cut copy":      {"runs on a connection", "runs on lent memory", "passes on a connection", "passes on lent memory"},
	"connected":     {"passes on a connection", "passes on lent memory"},
	"reconnected":   {}, // only a lease's session follows it: TestRelayProcessReset
	"throttle":      {"runs on a connection", "runs on lent memory", "passes on a connection", "passes on lent memory"},
	"room":          {"runs on a connection", "runs on lent memory"},
	"divert":        {"passes on a connection", "passes on lent memory"},
	"settle":        {"passes on a connection", "passes on lent memory"},
	"rehearse":      {"passes on a connection", "passes on lent memory"},
}

// TestEveryKind: at each stage a worker follows each kind of message, or refuses it by its name;
// none is dropped in silence, and no descriptor that came with one is kept.
func TestEveryKind(t *testing.T) {
	null, err := os.Open("/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	for _, m := range linktest.ToWorker(int(null.Fd())) {
		name := link.Name(m)
		followed, ok := follows[name]
		if !ok {
			t.Errorf("nobody says at which stage a worker follows %q", name)
		}
		for _, s := range stages {
			t.Run(name+"/"+s.name, func(t *testing.T) {
				before := descriptors(t)
				parent, worker := ends(t)
				if err := parent.Send(m); err != nil {
					t.Fatal(err)
				}
				_ = parent.Close() // the last word
				err := s.follow(t, worker)
				if got, want := !errors.Is(err, link.ErrUnexpected), slices.Contains(followed, s.name); got != want {
					t.Errorf("followed: %v (%v), want %v", got, err, want)
				}
				_ = worker.Close()
				if after := descriptors(t); after > before {
					t.Errorf("%d descriptors before, %d after", before, after)
				}
			})
		}
	}
}

// TestWarmAndGone: a worker that got ready ends without an error when nobody needs it, and is not
// made ready twice.
func TestWarmAndGone(t *testing.T) {
	for name, c := range map[string]struct {
		second link.ToWorker
		want   error
	}{"quit": {link.Quit{}, nil}, "its parent goes": {nil, nil}, "warm again": {link.Warm{}, link.ErrUnexpected}} {
		t.Run(name, func(t *testing.T) {
			parent, worker := ends(t)
			defer worker.Close()
			for _, m := range []link.ToWorker{link.Warm{}, c.second} {
				if m == nil {
					continue
				}
				if err := parent.Send(m); err != nil {
					t.Fatal(err)
				}
			}
			_ = parent.Close()
			p := noGPU()
			if err := (&starter{link: worker, backend: p.Backend}).begin(context.Background(), p); !errors.Is(err, c.want) || c.want == nil && err != nil {
				t.Errorf("%v, want %v", err, c.want)
			}
		})
	}
}

func ends(t *testing.T) (*link.ParentEnd, *link.WorkerEnd) {
	t.Helper()
	parent, f, err := link.Pair()
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		t.Fatal(err)
	}
	worker, err := link.NewWorkerEnd(fd)
	if err != nil {
		t.Fatal(err)
	}
	return parent, worker
}

func descriptors(t *testing.T) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}
