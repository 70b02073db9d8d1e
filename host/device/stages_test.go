package device

import (
	"bytes"
	"slices"
	"syscall"
	"testing"

	"github.com/hanwen/go-fuse/v2/fuse"

	"causeway/remote"
)

// TestStagesMove: a session is after a move what it was before, or what begins again: opened, in
// its opening, parked with its regions, or lost.
func TestStagesMove(t *testing.T) {
	inKernel(t, func(k *kernel) {
		to := newKernel(t, quietDevice(k.d.opts.Tree.Lib))
		k.t.Cleanup(to.halt) // within the bubble
		var want []state
		next := func(stage state, does func()) {
			if does(); k.session() == nil {
				t.Fatal("no session")
			}
			want = append(want, stage)
			f, err := k.g.Open(syscall.O_RDWR, fuse.Caller{Pid: 9}, "session")
			if err != nil {
				t.Fatal(err)
			}
			k.file = f
		}
		next(idle, func() {})
		next(opening, func() {
			k.want("hello", k.control(remote.Hello{Type: remote.MsgHello, Va: 0x7f0000000000, Size: remote.Region0Size}), 0)
		})
		next(parked, func() {
			k.begin()
			k.want("region", k.declare(2, 6), 0)
			k.lend(loanAt(2, 0), k.pages(6))
			k.want("another", k.declare(3, 1), 0) // whose pages have not come
		})
		next(dead, func() {
			k.begin()
			k.worker().exit(nil)
			k.settle()
		})
		want = append(want, idle) // the one that next left open
		if kept := k.d.fs.Pause(1); kept {
			t.Error("something is kept of a GPU that is idle")
		}
		k.settle()
		var b bytes.Buffer
		if err := k.d.fs.Save(&b); err != nil {
			t.Fatal(err)
		}
		if err := to.d.fs.Load(&b); err != nil {
			t.Fatal(err)
		}
		to.settle()
		list := to.d.all()
		slices.SortFunc(list, func(a, b *session) int { return int(a.id) - int(b.id) })
		if len(list) != len(want) {
			t.Fatalf("%d sessions, not %d", len(list), len(want))
		}
		for i, s := range list {
			if s.state != want[i] {
				t.Errorf("session %d is %v, was %v", i, s.state, want[i])
			}
		}
		moved := list[2]
		if len(moved.regions) != 3 || !moved.regions[2].sent || moved.regions[3].sent || moved.declared != remote.Region0Size+7*pageSize {
			t.Errorf("%d regions of %#x bytes", len(moved.regions), moved.declared)
		}
		if list[1].proc == nil {
			t.Error("a session in its opening has no worker")
		}
		if got := len(to.workers.started); got != 2 {
			t.Errorf("%d workers were started", got)
		}
	})
}

// TestPauseOfASlowWorker: a worker that answers later than a VM waits for its pause is not ended
// for it: what it lent goes back when the VM goes on.
func TestPauseOfASlowWorker(t *testing.T) {
	inKernel(t, func(k *kernel) {
		zero := k.begin()
		c := k.lend(loanAt(0, 0), zero)
		w := k.worker()
		w.hang(true)
		paused := make(chan bool)
		go func() { paused <- k.d.fs.Pause(1) }()
		if kept := <-paused; !kept {
			t.Error("nothing is kept of a worker that has not answered")
		}
		k.sleep(parkLimit / 2)
		w.hang(false)
		k.settle()
		k.pending("while the VM stands", c)
		k.d.fs.Resume(1, true)
		k.settle()
		k.want("when it goes on", c, 0)
		if w.ended {
			t.Error("the worker was ended")
		}
		k.lend(loanAt(0, 0), zero)
		if st := k.session().state; st != running {
			t.Errorf("the session is %v", st)
		}
	})
}
