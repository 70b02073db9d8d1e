package daemon_test

import (
	"errors"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"causeway/host/api"
	"causeway/host/daemon"
	"causeway/host/daemon/config"
	"causeway/host/daemon/daemontest"
	"causeway/host/limit"
)

// between is two GPU servers, and a host with a vGPU at the first.
type between struct {
	t        *testing.T
	one, two *host
	here     *host
	word     string // file of daemontest.DivertEnv
	throttle bool   // what moves asks for
	was      api.VGPU
}

func newBetween(t *testing.T) *between {
	t.Helper()
	return newBetweenOf(t, daemontest.Soft, false)
}

// newBetweenOf is newBetween with servers that have such GPUs, and a vGPU that asks to be
// migratable, or not.
func newBetweenOf(t *testing.T, gpus func(memory uint64) *daemontest.Machine, migratable bool) *between {
	t.Helper()
	dir := t.TempDir()
	b := &between{t: t, word: filepath.Join(dir, "word")}
	server := func(name string) *host {
		h := newHost(t, gpus(4<<30)).knownAs(hostFiles(t, dir, name))
		h.cfg.Remote = config.Remote{}
		return h.start().serves()
	}
	b.one, b.two = server("gpu1"), server("gpu2")
	b.here = newHost(t, daemontest.Soft(1<<30)).knownAs(hostFiles(t, dir, "hosta"))
	b.here.cfg.Remote.Servers = []string{b.one.address, b.two.address}
	b.here.env(daemontest.DivertEnv, b.word).start()
	w := one
	w.Remote, w.Memory = b.one.address, 1<<30
	if migratable {
		w.Migratable = true
	}
	b.was = b.here.ensure(w)
	return b
}

// says has the device processes find the word, and never a file with nothing in it, which says that
// the programs go.
func (b *between) says(word string) {
	b.t.Helper()
	next := b.word + ".next"
	if err := errors.Join(os.WriteFile(next, []byte(word), 0o600), os.Rename(next, b.word)); err != nil {
		b.t.Fatal(err)
	}
}

// moves has it move. What did not begin, as one of the processes had no time to answer on a busy
// machine, is asked for again.
func (b *between) moves(to string) (did api.Relocated, err error) {
	for end := time.Now().Add(time.Minute); ; {
		did, err = b.here.c.Move(b.t.Context(), one.VM, one.Name, api.Relocation{Remote: to, Throttle: b.throttle})
		if err == nil || !slow(err) || time.Now().After(end) {
			return did, err
		}
	}
}

// slow: a process did not answer in time.
func slow(err error) bool {
	return strings.Contains(err.Error(), "deadline exceeded") || strings.Contains(err.Error(), "does not answer")
}

// begins has c move it, and waits until it is under way.
func (b *between) begins(c *api.Client, to string) <-chan error {
	b.t.Helper()
	done := make(chan error, 1)
	begin := func() {
		go func() {
			_, err := c.Move(b.t.Context(), one.VM, one.Name, api.Relocation{Remote: to})
			done <- err
		}()
	}
	begin()
	until(b.t, "it is under way", func() bool {
		select {
		case err := <-done:
			if err == nil || !slow(err) {
				b.t.Fatal("it has ended: ", err)
			}
			begin()
		default:
		}
		st := b.here.vgpu(one).Status
		return st != nil && !st.Next.IsZero()
	})
	return done
}

// promises is what a server has promised.
func (b *between) promises(h *host) uint64 {
	b.t.Helper()
	gpus, err := h.c.GPUs(b.t.Context())
	if err != nil {
		b.t.Fatal(err)
	}
	return gpus[0].Promised
}

// is waits until the vGPU is at one server, whose lease its device process has, and nothing is left
// at the other.
func (b *between) is(at, other *host) {
	b.t.Helper()
	until(b.t, "the vGPU is at one server, and nothing is left at the other", func() bool {
		v := b.here.vgpu(one)
		return v.Upstream != nil && v.Status != nil && v.Spec.Remote == at.address && v.Upstream.Server == at.address && v.Upstream.Lease == v.Status.Lease && !v.Upstream.Lost &&
			b.promises(at) == 1<<30 && b.promises(other) == 0
	})
}

// TestMoveServer: a vGPU goes from one GPU server to another and back, also across a restart of
// causewayd; one lease ends, and the other is renewed.
func TestMoveServer(t *testing.T) {
	t.Parallel()
	b := newBetween(t)
	did, err := b.moves(b.two.address)
	if err != nil || did.Nanos == 0 || did.Held != 0 {
		t.Fatal(did, err)
	}
	b.is(b.two, b.one)
	last := b.here.vgpu(one).Upstream.Renewed
	until(t, "it is renewed there", func() bool { return b.here.vgpu(one).Upstream.Renewed.After(last) })
	if _, err := b.moves(b.two.address); err == nil || !strings.Contains(err.Error(), "already") {
		t.Error(err)
	}
	b.here.stop()
	b.here.start()
	b.is(b.two, b.one)
	b.throttle = true
	if did, err := b.moves(b.one.address); err != nil || did.Held == 0 {
		t.Fatal(did, err)
	}
	b.is(b.one, b.two)
	if err := b.here.c.Release(t.Context(), one.VM, one.Name, false); err != nil {
		t.Error(err)
	}
	if b.promises(b.one)+b.promises(b.two) != 0 {
		t.Error("a lease is left")
	}
}

// TestMoveServerRefused: what cannot be is refused by name, and leaves nothing behind.
func TestMoveServerRefused(t *testing.T) {
	t.Parallel()
	b := newBetween(t)
	b.says("refuse")
	_, err := b.moves(b.two.address)
	refused(t, err, http.StatusConflict, "a program stays")
	b.is(b.one, b.two)
	for to, want := range map[string]string{"gpu9": "no GPU server", api.RemoteAny: "not said", b.one.address: "already"} {
		if _, err := b.moves(to); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("to %s: %v", to, err)
		}
	}
	_, err = b.here.c.Move(t.Context(), one.VM, one.Name, api.Relocation{GPU: "0"})
	refused(t, err, http.StatusConflict, "--remote")
	_, err = b.here.c.Move(t.Context(), one.VM, one.Name, api.Relocation{GPU: "0", Remote: b.two.address})
	refused(t, err, http.StatusBadRequest, "GPU server")
	_, err = b.one.c.Move(t.Context(), far.VM, far.Name, api.Relocation{Remote: b.two.address})
	refused(t, err, http.StatusConflict, "leased to the host hosta")
	here := api.Spec{VM: "vm2", Name: "gpu0", Limits: api.Limits{Memory: 1 << 28}}
	b.here.ensure(here)
	_, err = b.here.c.Move(t.Context(), here.VM, here.Name, api.Relocation{Remote: b.two.address})
	refused(t, err, http.StatusConflict, "not on a GPU server")
	b.is(b.one, b.two)
	st := *b.here.vgpu(one).Status
	st.Sessions = nil
	b.here.tell(one, st)
	v := b.one.vgpu(far) // a program that is not the device process's
	far1 := *v.Status
	far1.Sessions = []api.Session{{ID: 1}}
	b.one.tell(far, far1)
	_, err = b.moves(b.two.address)
	refused(t, err, http.StatusConflict, "run --remote")
	b.is(b.one, b.two)
}

// TestMoveServerUnknown: whether the programs moved is asked of their device process where its
// answer is lost, also by the next causewayd, and while it is not decided both leases are renewed.
func TestMoveServerUnknown(t *testing.T) {
	t.Parallel()
	for word, moved := range map[string]bool{"lost": true, "vain": false} {
		t.Run("the answer is lost, "+word, func(t *testing.T) {
			t.Parallel()
			b := newBetween(t)
			b.says(word)
			if _, err := b.moves(b.two.address); (err == nil) != moved {
				t.Error(err)
			}
			b.settled(moved)
		})
		t.Run("causewayd ends, "+word, func(t *testing.T) {
			t.Parallel()
			b := newBetween(t)
			b.says("wait")
			done := b.begins(b.here.c, b.two.address)
			b.here.stop()
			if err := <-done; err == nil {
				t.Error("said to have moved before that was decided")
			}
			b.here.start()
			if b.promises(b.one) == 0 || b.promises(b.two) == 0 {
				t.Error("a lease has ended that the programs may have")
			}
			_, err := b.moves(b.two.address)
			refused(t, err, http.StatusConflict, "not known yet")
			err = b.here.c.HandOver(t.Context(), &b.was.Spec, api.Handover{Host: "127.0.0.1:1"})
			refused(t, err, http.StatusConflict, "not known yet")
			more := limit.Memory(2 << 30)
			_, err = b.here.c.SetLimits(t.Context(), one.VM, one.Name, api.Change{Memory: &more})
			refused(t, err, http.StatusConflict, "not known yet")
			b.says(word)
			b.settled(moved)
		})
	}
}

func (b *between) settled(moved bool) {
	b.t.Helper()
	if moved {
		b.is(b.two, b.one)
	} else {
		b.is(b.one, b.two)
	}
}

func realGPUs(memory uint64) *daemontest.Machine {
	return daemontest.Real(1, "NVIDIA H100", memory)
}

// TestMoveServerReal: programs on servers' real GPUs go where their lease is migratable, there and
// back, and otherwise are refused by the model's name, with no other lease asked for.
func TestMoveServerReal(t *testing.T) {
	t.Parallel()
	t.Run("not migratable", func(t *testing.T) {
		t.Parallel()
		b := newBetweenOf(t, realGPUs, false)
		_, err := b.moves(b.two.address)
		refused(t, err, http.StatusConflict, "NVIDIA H100", "not migratable")
		b.is(b.one, b.two)
	})
	t.Run("migratable", func(t *testing.T) {
		t.Parallel()
		b := newBetweenOf(t, realGPUs, true)
		for _, to := range []*host{b.two, b.one} {
			if _, err := b.moves(to.address); err != nil {
				t.Fatal(err)
			}
			b.is(to, map[*host]*host{b.one: b.two, b.two: b.one}[to])
			if v := to.vgpu(far); !v.Spec.Migratable {
				t.Error("its lease is not migratable any more")
			}
		}
	})
	t.Run("by the server's configuration", func(t *testing.T) {
		t.Parallel()
		b := newBetweenOf(t, realGPUs, false)
		b.one.stop()
		b.one.cfg.Devices.Migratable = true
		b.one.start().serves()
		if err := b.here.c.Release(t.Context(), one.VM, one.Name, false); err != nil {
			t.Fatal(err)
		}
		w := one
		w.Remote, w.Memory = b.one.address, 1<<30
		b.here.ensure(w)
		if _, err := b.moves(b.two.address); err != nil {
			t.Error(err)
		}
		b.is(b.two, b.one)
	})
	t.Run("another driver", func(t *testing.T) {
		t.Parallel()
		next := "580.1"
		b := newBetweenOf(t, func(memory uint64) *daemontest.Machine {
			m := realGPUs(memory)
			m.Change(func(r *daemon.Reading) { r.GPUs[0].Driver, next = next, "590.2" })
			return m
		}, true)
		_, err := b.moves(b.two.address)
		refused(t, err, http.StatusConflict, "590.2", "580.1")
		b.is(b.one, b.two)
	})
}

// TestMoveServerItself: a second name of the vGPU's server is found out before that ends the lease
// of the name for another.
func TestMoveServerItself(t *testing.T) {
	t.Parallel()
	b := newBetween(t)
	_, port, err := net.SplitHostPort(b.one.address)
	if err != nil {
		t.Fatal(err)
	}
	other := net.JoinHostPort("localhost", port)
	b.here.stop()
	b.here.cfg.Remote.Servers = append(b.here.cfg.Remote.Servers, other)
	b.here.start()
	lease := b.here.vgpu(one).Upstream.Lease
	_, err = b.moves(other)
	refused(t, err, http.StatusConflict, "by another name")
	b.is(b.one, b.two)
	if now := b.here.vgpu(one).Upstream.Lease; now != lease {
		t.Errorf("lease %v, was %v", now, lease)
	}
}

// TestMoveServerEnded: a vGPU of which it is not known where its programs are can be deleted, and
// both leases end; so they do when its device process ends.
func TestMoveServerEnded(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(b *between){
		"deleted": func(b *between) {
			if err := b.here.c.Release(b.t.Context(), one.VM, one.Name, true); err != nil {
				b.t.Error(err)
			}
		},
		"killed": func(b *between) {
			if err := syscall.Kill(b.was.PID, syscall.SIGKILL); err != nil {
				b.t.Error(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBetween(t)
			b.says("wait")
			done := b.begins(b.here.c, b.two.address)
			b.here.stop()
			<-done
			b.here.start()
			end(b)
			until(t, "both leases have ended", func() bool { return b.promises(b.one)+b.promises(b.two) == 0 })
		})
	}
}

// TestMoveServerKilled: causewayd of the vGPU's host is killed behind each step of a move to
// another server. Afterwards the vGPU has one lease, by which its programs go, and which is
// renewed; the other has ended, and nothing is left.
func TestMoveServerKilled(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		at, word string
		moved    bool
	}{
		{"two leases are written", "", false},
		{"the programs have moved, or not", "", true},
		{"the programs have moved, or not", "refuse", false},
		{"the lease that is kept is written", "", true},
		{"the lease that is kept is written", "refuse", false},
	} {
		t.Run(c.at+" "+c.word, func(t *testing.T) {
			t.Parallel()
			b := newBetween(t)
			b.says(c.word)
			b.here.stop()
			d := b.here.mortal(c.at, serving{Listen: freePort(t), Files: b.here.files(), Servers: b.here.cfg.Remote.Servers})
			for {
				_, err := d.c.Move(t.Context(), one.VM, one.Name, api.Relocation{Remote: b.two.address})
				if err == nil {
					t.Error("said to have moved by who was killed")
				}
				if err == nil || !slow(err) {
					break
				}
			}
			d.killed()
			b.here.start()
			b.settled(c.moved)
			last := b.here.vgpu(one).Upstream.Renewed
			until(t, "it is renewed", func() bool { return b.here.vgpu(one).Upstream.Renewed.After(last) })
			b.here.stop() // nor does the next one find anything to settle
			b.here.start()
			b.settled(c.moved)
			b.says("")
			if _, err := b.moves(map[bool]string{true: b.one.address, false: b.two.address}[c.moved]); err != nil {
				t.Error(err)
			}
			b.settled(!c.moved)
			if err := b.here.c.Release(t.Context(), one.VM, one.Name, false); err != nil {
				t.Error(err)
			}
			if left := b.here.below(); len(left) > 0 || b.promises(b.one)+b.promises(b.two) != 0 {
				t.Errorf("left: %v, %d and %d bytes promised", left, b.promises(b.one), b.promises(b.two))
			}
		})
	}
}
