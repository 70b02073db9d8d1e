package systemd

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/coreos/go-systemd/v22/dbus"

	"causeway/host/sandbox/cgroup"
)

// fakeBus answers with result, or err.
type fakeBus struct {
	name   string
	props  map[string]any
	result string
	err    error
	closed bool
}

func (b *fakeBus) StartTransientUnitContext(_ context.Context, name, _ string, props []dbus.Property, ch chan<- string) (int, error) {
	b.name, b.props = name, map[string]any{}
	for _, p := range props {
		b.props[p.Name] = p.Value.Value()
	}
	if b.err == nil && b.result != "" {
		ch <- b.result
	}
	return 1, b.err
}

func (b *fakeBus) Close() { b.closed = true }

func TestPlace(t *testing.T) {
	denied := errors.New("denied")
	for name, c := range map[string]struct {
		bus  fakeBus
		want string
	}{
		"done":    {fakeBus{result: "done"}, ""},
		"failed":  {fakeBus{result: "failed"}, "the job is failed"},
		"refused": {fakeBus{err: denied}, "denied"},
		"silent":  {fakeBus{}, "deadline"},
	} {
		limit := time.Minute
		if name == "silent" {
			limit = 50 * time.Millisecond
		}
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		b := c.bus
		s := Scopes{Connect: func(context.Context) (Bus, error) { return &b, nil }}
		err := s.Place(ctx, UnitName("vm-1", "gpu0"), "d", 42, cgroup.Limits{CPU: 250, Memory: 1 << 30, High: 1 << 29})
		cancel()
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
		pids, _ := b.props["PIDs"].([]uint32)
		if b.name != `causeway-vm\x2d1-gpu0.scope` || len(pids) != 1 || pids[0] != 42 || b.props["Slice"] != Slice || b.props["Delegate"] != true || !b.closed ||
			b.props["CPUQuotaPerSecUSec"] != uint64(2_500_000) || b.props["MemoryMax"] != uint64(1<<30) || b.props["MemoryHigh"] != uint64(1<<29) || b.props["TasksMax"] != nil {
			t.Errorf("%s: %s %v, closed %v", name, b.name, b.props, b.closed)
		}
	}
	s := Scopes{Connect: func(context.Context) (Bus, error) { return nil, denied }}
	if err := s.Place(t.Context(), "x.scope", "", 1, cgroup.Limits{}); !errors.Is(err, denied) {
		t.Error(err)
	}
}

func TestJournalOpen(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	j := Journal{Socket: path}
	if _, err := j.Open("x"); err == nil {
		t.Error("there is no journal")
	}
	ln, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	f, err := j.Open("causeway-a-gpu0")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString("hello\n"); err != nil {
		t.Error(err)
	}
	_ = f.Close()
	c, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	b, err := io.ReadAll(c)
	if want := "causeway-a-gpu0\n\n6\n0\n0\n0\n0\nhello\n"; err != nil || string(b) != want {
		t.Errorf("%q, %v, want %q", b, err, want)
	}
}

func TestJournalRead(t *testing.T) {
	reader := filepath.Join(t.TempDir(), "journalctl")
	script := "#!/bin/sh\necho \"$@\"\ncase \"$*\" in *--follow*) exec sleep 60;; *bad*) echo broken >&2; exit 1;; esac\n"
	if err := os.WriteFile(reader, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	j := Journal{Reader: []string{reader}}
	var out strings.Builder
	if err := j.Read(t.Context(), &out, "a", 3, time.Unix(5, 0), false); err != nil || out.String() != "--quiet --no-pager --output=cat --identifier=a --lines=3 --since=@5\n" {
		t.Errorf("%q, %v", out.String(), err)
	}
	if err := j.Read(t.Context(), io.Discard, "bad", -1, time.Time{}, false); err == nil || !strings.Contains(err.Error(), "broken") {
		t.Error(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := j.Read(ctx, io.Discard, "a", -1, time.Time{}, true); err != nil {
		t.Error(err)
	}
}
