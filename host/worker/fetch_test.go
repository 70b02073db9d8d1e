package worker

import (
	"errors"
	"io"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"causeway/cuda/wire"
	"causeway/host/driver"
	"causeway/remote/shm"
)

// lendingGPU lends memory, and takes what is lent as a test says.
type lendingGPU struct {
	*plainGPU
	kept, fetched, exports int
	refuses                error
}

func (g *lendingGPU) Lend() ([]driver.Lent, error) {
	fd, err := unix.MemfdCreate("lent", unix.MFD_CLOEXEC)
	return []driver.Lent{{Addr: 1 << 40, Size: 2 << 20, Dev: 3, File: fd}}, err
}
func (g *lendingGPU) Keep()                      { g.kept++ }
func (g *lendingGPU) Borrow([]driver.Lent) error { return errors.New("of another GPU") }
func (g *lendingGPU) Borrowed() error            { return nil }
func (g *lendingGPU) ExportMemory(func(addr, size uint64, r io.Reader) error) error {
	g.exports++
	return nil
}

// readingGPU does so on a GPU that reads others' memory.
type readingGPU struct{ *lendingGPU }

func (g readingGPU) Fetch(list []driver.Lent) (uint64, error) {
	g.fetched++
	driver.CloseLent(list)
	if len(list) != 1 || list[0].Addr != 1<<40 || list[0].Size != 2<<20 || list[0].Dev != 3 {
		return 0, errors.New("not what was lent")
	}
	return 2 << 20, g.refuses
}

// TestLentToAnotherGPU: a successor on another GPU reads what is lent when it has made the session
// again, or says why it does not, and then all is sent; a session that cannot be made again is
// refused with its reason, whatever was lent, and goes on where it was.
func TestLentToAnotherGPU(t *testing.T) {
	no := errors.New("no way between the two")
	for what, c := range map[string]struct {
		reads, broken, same bool
		refuses             error
		lends               bool // to whom
		kept, fetched       int
		err                 string
	}{
		"it reads":                   {reads: true, lends: true, fetched: 1},
		"the driver refuses":         {reads: true, lends: true, refuses: no, kept: 1, fetched: 1},
		"it cannot be made again":    {reads: true, lends: true, broken: true, err: "replay"},
		"a GPU that reads nothing":   {},
		"it, and cannot":             {broken: true, err: "replay"},
		"the same GPU, and it wants": {same: true, lends: true, kept: 1},
	} {
		from, to := newRecorded(t), newRecorded(t)
		from.must(1, &wire.CtxCreateArgs{Ctx: 1}, &wire.StreamCreateArgs{Stream: 30})
		wrap := func(s *recorded) *lendingGPU {
			g := &lendingGPU{plainGPU: s.gpu, refuses: c.refuses}
			s.w.session = g
			if c.reads {
				s.w.session = readingGPU{g}
			}
			return g
		}
		old, next := wrap(from), wrap(to)
		snap := from.snapshot()
		snap.Unix = &shm.UnixState{}
		if c.broken {
			to.gpu.things[30] = &thing{}
		}
		a, b := stream(t)
		out, err := newHandover(a, localMost)
		if err != nil {
			t.Fatal(err)
		}
		in, err := newHandover(b, localMost)
		if err != nil {
			t.Fatal(err)
		}
		out.elsewhere, in.elsewhere = !c.same, !c.same
		done := make(chan error, 1)
		go func() {
			defer in.close()
			done <- func() error {
				lent, err := in.receiveLent()
				if err != nil {
					return err
				}
				snap, err := readSnapshot(in.in)
				if err != nil {
					return err
				}
				if err := in.restore(to.w, snap, lent); err != nil {
					return in.sendVerdict(err) // as adopt does
				}
				return in.receiveMemory(to.w)
			}()
		}()
		lender, err := out.lend(from.w)
		if err != nil || (lender != nil) != c.lends {
			t.Fatalf("%s: it lends: %v, %v", what, lender != nil, err)
		}
		_, err = out.sendSession(from.w, snap, lender)
		if err == nil && c.err != "" { // what was sent was not waited for
			err = out.receiveVerdict()
		}
		if err = out.refusal(err); c.err == "" && err != nil || c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)) {
			t.Errorf("%s: %v", what, err)
		}
		if err := <-done; err != nil {
			t.Errorf("%s: the successor: %v", what, err)
		}
		out.close()
		if old.kept != c.kept || next.fetched != c.fetched || old.exports == 0 != (c.broken && c.lends) {
			t.Errorf("%s: kept %d, read %d, sent %d times", what, old.kept, next.fetched, old.exports)
		}
	}
}
