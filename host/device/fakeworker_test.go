package device

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"causeway/host/worker/bulk"
	"causeway/host/worker/link"
	"causeway/host/worker/spawn"
	"causeway/remote"
)

// fakeWorkers start workers that exist in the test only. Each does what it is told at once, unless
// the test lets it hang.
type fakeWorkers struct {
	// Whether the guest's kernel has the page back, which is when nobody may touch it.
	lent func(gpa uint64) bool
	fail func(format string, args ...any)

	mu      sync.Mutex
	started []*fakeWorker
	refuses error  // of those that are to adopt
	adopts  func() // called once one has adopted
}

// refusesAll has no session adopted; nil: they are.
func (f *fakeWorkers) refusesAll(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.refuses = err
}

// tookConnection is what a worker says on a connection over which its session goes on.
const tookConnection = "taken"

// fakeWorker follows a session's messages as a worker does, and remembers which pages it could
// touch.
type fakeWorker struct {
	of      *fakeWorkers
	replies chan link.ToParent
	done    chan struct{}
	wake    func(slot uint32)
	cfg     link.Config

	mu      sync.Mutex
	regions map[uint32]*fakeRegion
	parked  bool
	hangs   bool // what is sent now waits in backlog
	backlog []link.ToWorker
	ended   bool
	err     error
	parks   int
	resumes int
	starts  int
	refuses bool // answers Start with an error
	spare   bool // may be one that waited
	tenant  bool
	carrier string
	busy    bool // its GPU does not let go when it is to park
	waiting bool // its program has submitted more when it is exported
	exports func()
	relays  relaying
	heard   string // of other GPU servers
}

type fakeRegion struct {
	va, size uint64
	pieces   map[uint64][]link.Range
	whole    bool // the last piece of a list has come
}

func (f *fakeWorkers) start(_ *Place, cfg link.Config, wake func(slot uint32)) (workerProcess, error) {
	w := &fakeWorker{of: f, cfg: cfg, spare: cfg.Spare, tenant: cfg.Tenant, carrier: cfg.Carrier, wake: wake, replies: make(chan link.ToParent, 64), done: make(chan struct{}), regions: map[uint32]*fakeRegion{}}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.started = append(f.started, w)
	return w, nil
}

func (f *fakeWorkers) connect(at *Place, cfg link.Config, conn int) (workerProcess, error) {
	if cfg.Carrier == link.CarrierUnix {
		_, _ = syscall.Write(conn, []byte(tookConnection))
	}
	return f.start(at, cfg, nil)
}

// last is the worker that was started last; nil: none was.
func (f *fakeWorkers) last() *fakeWorker {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.started) == 0 {
		return nil
	}
	return f.started[len(f.started)-1]
}

var errHangs = errors.New("the worker hangs")

func (f *fakeWorkers) rebuild(_ context.Context, old workerProcess, at *Place, cfg link.Config) (workerProcess, error) {
	o := old.(*fakeWorker)
	o.mu.Lock()
	hangs := o.hangs
	o.mu.Unlock()
	if hangs {
		return nil, errHangs
	}
	p, err := f.start(at, cfg, o.wake)
	if err != nil {
		return nil, err
	}
	n := p.(*fakeWorker)
	o.mu.Lock()
	n.regions, o.regions = o.regions, map[uint32]*fakeRegion{}
	o.mu.Unlock()
	o.exit(nil)
	return n, nil
}

func (f *fakeWorkers) adopt(at *Place, cfg link.Config, wake func(slot uint32), stream, _ int, _ bulk.Files) (workerProcess, error) {
	f.mu.Lock()
	err := f.refuses
	f.mu.Unlock()
	if err != nil {
		return nil, err
	}
	p, err := f.start(at, cfg, wake)
	if err != nil {
		return nil, err
	}
	w := p.(*fakeWorker)
	w.parked = true
	w.answer(link.Started{})
	fd, err := unix.Dup(stream)
	if err != nil {
		return nil, err
	}
	go w.load(os.NewFile(uintptr(fd), "stream"))
	f.mu.Lock()
	adopts := f.adopts
	f.mu.Unlock()
	if adopts != nil {
		adopts()
	}
	return w, nil
}

// load takes the regions that another fake worker has written.
func (w *fakeWorker) load(f *os.File) {
	defer f.Close()
	list := map[uint32][2]uint64{}
	err := json.NewDecoder(f).Decode(&list)
	w.mu.Lock()
	defer w.mu.Unlock()
	for id, r := range list {
		w.regions[id] = &fakeRegion{va: r[0], size: r[1], pieces: map[uint64][]link.Range{}}
	}
	w.replies <- link.Adopted{Status: link.StatusOf(unix.EIO, err)}
}

// save writes them.
func (w *fakeWorker) save(fd int) {
	list := map[uint32][2]uint64{}
	for id, r := range w.regions {
		list[id] = [2]uint64{r.va, r.size}
	}
	fd, err := unix.Dup(fd)
	if err == nil {
		f := os.NewFile(uintptr(fd), "stream")
		err = json.NewEncoder(f).Encode(list)
		_ = f.Close()
	}
	w.replies <- link.Exported{Waiting: w.waiting, Status: link.StatusOf(unix.EIO, err)}
}

// holds lists the pages that the worker may touch. w.mu is held.
func (w *fakeWorker) holds() (list []uint64) {
	if w.parked || w.ended {
		return nil
	}
	for _, r := range w.regions {
		if !r.whole {
			continue
		}
		for _, es := range r.pieces {
			for _, e := range es {
				for at := e.GPA; at < e.GPA+e.Size; at += pageSize {
					list = append(list, at)
				}
			}
		}
	}
	return list
}

// check fails the test if the worker may touch a page that the guest's kernel has back.
func (w *fakeWorker) check(when string) {
	for _, page := range w.holds() {
		if !w.of.lent(page) {
			w.of.fail("%s: the worker holds page %#x, whose READ was completed", when, page)
			return
		}
	}
}

func (w *fakeWorker) Send(m link.ToWorker) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ended {
		return spawn.ErrEnded
	}
	if w.hangs {
		w.backlog = append(w.backlog, m)
		return nil
	}
	w.handle(m)
	return nil
}

// handle does what a message says. w.mu is held.
func (w *fakeWorker) handle(m link.ToWorker) {
	w.check("at message " + link.Name(m))
	switch m := m.(type) {
	case link.AddRegion:
		w.regions[m.Region] = &fakeRegion{va: m.VA, size: m.Size, pieces: map[uint64][]link.Range{}}
	case link.AddPages:
		r := w.regions[m.Region]
		if r == nil {
			w.of.fail("pages of region %d, which the worker was not told of", m.Region)
			return
		}
		if r.whole && !w.parked {
			w.of.fail("pages of region %d are listed again while the worker uses them", m.Region)
		}
		r.pieces[m.At], r.whole = m.Ranges, m.Last
	case link.EndRegion:
		if w.regions[m.Region] == nil {
			w.of.fail("end of region %d, which the worker was not told of", m.Region)
		}
		delete(w.regions, m.Region)
		w.answer(link.RegionEnded{Region: m.Region})
	case link.Start:
		w.starts++
		var refused error
		if w.refuses {
			refused = errors.New("no GPU")
		}
		w.answer(link.Started{Status: link.StatusOf(syscall.EIO, refused)})
	case link.Park:
		var busy error
		if w.busy {
			busy = errors.New("the GPU works")
		}
		w.parks++
		w.parked = !w.busy
		w.answer(link.Parked{Number: m.Number, Status: link.StatusOf(syscall.EBUSY, busy)})
	case link.Throttle:
		w.heard += fmt.Sprintf("throttle %d ", m.Share)
	case link.Reconnected:
		_, _ = syscall.Write(m.Connection.FD(), []byte(tookConnection))
	case link.Export:
		if !w.parked {
			w.of.fail("export of a worker that is not parked")
		}
		if w.exports != nil {
			w.exports()
		}
		w.save(m.Stream.FD())
	case link.Resume:
		if !w.parked {
			w.of.fail("resume of a worker that is not parked")
		}
		w.resumes++
		w.parked = false
		w.check("after Resume")
	}
}

func (w *fakeWorker) answer(m link.ToParent) { w.replies <- m }

// hang has the worker do nothing any more, or all that it was told meanwhile.
func (w *fakeWorker) hang(yes bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.hangs = yes
	if !yes {
		list := w.backlog
		w.backlog = nil
		for _, m := range list {
			if !w.ended {
				w.handle(m)
			}
		}
	}
}

// exit is the end of the process.
func (w *fakeWorker) exit(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ended {
		return
	}
	w.check("at its end")
	w.ended, w.err = true, err
	close(w.done)
}

func (w *fakeWorker) Await(ctx context.Context, want func(link.ToParent) bool) (link.ToParent, error) {
	for {
		select {
		case m := <-w.replies:
			if want(m) {
				return m, nil
			}
			continue
		default:
		}
		select {
		case m := <-w.replies:
			if want(m) {
				return m, nil
			}
		case <-w.done:
			return nil, spawn.ErrEnded
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: %w", spawn.ErrSilent, ctx.Err())
		}
	}
}

// Probe implements workerProcess.
func (w *fakeWorker) Probe(context.Context, link.Probe) (link.Probed, error) {
	return link.Probed{}, spawn.ErrSilent
}

// Carried implements workerProcess.
func (w *fakeWorker) Carried() string { return "" }

// Measure implements workerProcess.
func (w *fakeWorker) Measure(context.Context) (link.Use, error) { return link.Use{}, spawn.ErrSilent }
func (w *fakeWorker) Wants() <-chan link.Want                   { return nil }
func (w *fakeWorker) Done() <-chan struct{}                     { return w.done }
func (w *fakeWorker) Err() error                                { return w.err }
func (w *fakeWorker) Kill()                                     { w.exit(errors.New("killed")) }
func (w *fakeWorker) Copied() <-chan link.Copied                { return nil }
func (w *fakeWorker) PID() int                                  { return 1 << 22 }
func (w *fakeWorker) CPU() time.Duration                        { return 0 }

// Stop ends a worker in order, or after grace if it hangs.
func (w *fakeWorker) Stop(grace time.Duration) {
	w.mu.Lock()
	hangs := w.hangs
	w.mu.Unlock()
	if hangs {
		time.Sleep(grace)
	}
	w.exit(nil)
}

// relaying is what a fake does as a relay that is told of another GPU server; without one it does
// not answer.
type relaying struct {
	rehearse func(ctx context.Context, w *fakeWorker) error // nil: it is not known
	tried    bool                                           // a session of another server's is
	ahead    func(ctx context.Context, w *fakeWorker) error // nil: without rounds
	round    func(ctx context.Context, w *fakeWorker) (link.Copied, error)
	divert   func(ctx context.Context, w *fakeWorker) error
	settle   func(w *fakeWorker, goes bool) error
}

func (w *fakeWorker) relaying() relaying {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.relays
}

// told notes what it was told, in order.
func (w *fakeWorker) told(what string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ended {
		return spawn.ErrEnded
	}
	w.heard += what
	return nil
}

// Rehearse implements workerProcess.
func (w *fakeWorker) Rehearse(ctx context.Context, to link.Relay) error {
	f := w.relaying().rehearse
	if f == nil {
		return unix.ENOSYS
	}
	if err := w.told(fmt.Sprintf("rehearse %x ", to.Lease[0])); err != nil {
		return err
	}
	return f(ctx, w)
}

// Rehearses implements workerProcess.
func (w *fakeWorker) Rehearses() bool { return w.relaying().tried }

// Ahead implements workerProcess.
func (w *fakeWorker) Ahead(ctx context.Context, to link.Relay) error {
	f := w.relaying().ahead
	if f == nil {
		return spawn.ErrNoRounds
	}
	if err := w.told(fmt.Sprintf("ahead %x ", to.Lease[0])); err != nil {
		return err
	}
	return f(ctx, w)
}

// Round implements workerProcess.
func (w *fakeWorker) Round(ctx context.Context) (link.Copied, error) {
	if err := w.told("round "); err != nil {
		return link.Copied{}, err
	}
	return w.relaying().round(ctx, w)
}

// Divert implements workerProcess.
func (w *fakeWorker) Divert(ctx context.Context, to link.Relay) error {
	if err := w.told(fmt.Sprintf("divert %x ", to.Lease[0])); err != nil {
		return err
	}
	if f := w.relaying().divert; f != nil {
		return f(ctx, w)
	}
	return nil
}

// Settle implements workerProcess.
func (w *fakeWorker) Settle(ctx context.Context, _ remote.LeaseID, goes bool) error {
	if err := w.told(fmt.Sprintf("settle %v ", goes)); err != nil {
		return err
	}
	if f := w.relaying().settle; f != nil {
		return f(w, goes)
	}
	return ctx.Err()
}
