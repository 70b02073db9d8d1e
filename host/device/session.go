package device

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"causeway/host/worker/link"
	"causeway/host/worker/spawn"
	"causeway/remote"
	"causeway/remote/sys"
	"causeway/virtio/fs"
)

var (
	errLoan  = errors.New("pages cannot be lent")
	errState = errors.New("message does not fit the session's state")
)

// state is where a session stands.
type state int

const (
	idle      state = iota // opened, no Hello
	opening                // Hello came; loans of region 0 may come
	starting               // MsgStart waits for the worker
	running                // the worker consumes
	parking                // the worker lets go of guest memory
	parked                 // it did; waits for loans
	suspended              // there is no worker; waits for the doorbell
	dead                   // the worker is gone, the file is still open
	released               // the file is closed
)

func (s state) String() string {
	return [...]string{"idle", "opening", "starting", "running", "parking", "parked", "suspended", "dead", "ended"}[s]
}

// session is one open control file: one CUDA process in the guest.
type session struct {
	dev       *Device
	id        uint64
	log       *slog.Logger
	caller    fs.Caller
	opened    time.Time
	rehearses bool   // it ends when it was made; set before routine does anything of it
	elsewhere string // why it cannot be rebuilt at the host to which a pre-copy goes; mu is held
	// link.Config's, since it has a worker: that of the vGPU where it began; routine's
	base uint64
	fits bool // a worker of its GPU server that waits ready will do (link.Fits); routine's

	counted bool // by the limits of sessions; dev.mu guards it

	// Who, if it came over a connection, of another host's program; set before routine does
	// anything.
	connected string
	called    remote.SessionID // by its relay

	mu        sync.Mutex
	state     state
	at        *Place        // of its worker, or the last; routine writes it
	proc      workerProcess // nil until Hello
	moving    workerProcess // the session is leaving it
	bell      *sys.Bell     // the worker's doorbell; nil: it has none
	regions   map[uint32]*region
	pieces    int
	declared  uint64
	promised  int               // of all regions
	waits     map[uint32][]wait // by slot
	tokens    map[uint32]bool   // slots whose wake-up came before their READ
	waiting   int
	why       string // text of the last refused control write
	parks     uint64
	rang      bool      // the doorbell, since the session was to be suspended
	stored    *stored   // suspended: the session
	reviving  bool      // goOn is at it
	active    time.Time // when the program was last seen to have done something
	did       uint64    // what it had done then
	here      time.Time // when it came to the GPU
	stays     time.Time // until when it is not to be suspended for others
	unmovable string    // why the session could not move when it was asked last; "": it could
	looked    time.Time // then
	paused    bool      // the VM stands, and so do the terms of what it lent
	lapsed    time.Time // since when a loan is overdue, as far as tick has seen; zero: none is
	lives     bool      // a loan came while the session was parking
	telling   bool      // sendRegions is queued
	crowded   bool      // the host was short of CPU meanwhile
	arrival   *arrival  // its worker waits for it; nil: none does; routine writes it

	head       *sessionHead // as it was saved, or is to be loaded; routine's
	unexpected error        // why no worker waits for it; routine's

	copying  sync.RWMutex         // held for reading while an extent is copied; taken before mu
	extents  map[*extent]struct{} // not begun
	underway map[*extent]struct{} // begun
	moved    atomic.Int64         // bytes of extents

	direct *direct // what the program says, if it is an RDMA end itself
	apart  string  // why it is not, if it was to be one; as it says

	res   *resources    // nil: no worker was started, or the last is gone
	hurry chan struct{} // closed when what waits must not
	rush  sync.Once     // closes hurry

	starter   *fs.WriteRequest // MsgStart that waits for loans
	startedAt time.Time

	jobs chan func() // for routine
	over chan struct{}
}

// wait is a READ that ends when its slot is answered.
type wait struct {
	req   *fs.ReadRequest
	since time.Time
}

var _ fs.ControlHandle = (*session)(nil)

func newSession(d *Device, id uint64, c fs.Caller) *session {
	return &session{
		dev: d, id: id, caller: c, opened: time.Now(),
		log:     d.log.With("session", id, "guest_pid", c.PID),
		regions: map[uint32]*region{}, waits: map[uint32][]wait{}, tokens: map[uint32]bool{}, extents: map[*extent]struct{}{}, underway: map[*extent]struct{}{},
		jobs: make(chan func(), 1024), over: make(chan struct{}), hurry: make(chan struct{}),
	}
}

// routine does what waits for the worker, one job after the other, until the session is released.
func (s *session) routine() {
	defer s.finish()
	for {
		select {
		case job := <-s.jobs:
			job()
		case <-s.over:
			return
		}
	}
}

// do queues a job. A session with too many is broken.
func (s *session) do(job func()) bool {
	select {
	case s.jobs <- job:
		return true
	default:
		s.log.Error("session has too many requests in flight")
		return false
	}
}

// finish ends the worker of a released session.
func (s *session) finish() {
	s.mu.Lock()
	p, bell := s.proc, s.bell
	stored := s.stored
	s.proc, s.bell, s.stored = nil, nil, nil
	s.mu.Unlock()
	s.releaseRegions()
	if stored != nil && stored.away {
		s.dev.away(stored, false)
	}
	stored.close()
	s.dev.dropNeed(s)
	if p != nil {
		p.Stop(stopGrace)
		s.yield(p)
		s.log.Info("session ended", "extent_bytes", s.moved.Load())
	}
	s.yield(nil)
	bell.Close()
	s.dev.forget(s)
}

// stopGrace is how long a worker may take to end by itself.
const stopGrace = time.Second

// Write implements fs.ControlHandle.
func (s *session) Write(w *fs.WriteRequest) {
	switch {
	case uint64(w.Offset) == remote.FileDoorbell:
		s.ring()
		w.Complete(w.Size, 0)
	case uint64(w.Offset) == remote.FileDirect && w.Size <= int(remote.FileDirectMost):
		s.writeDirect(w)
	case uint64(w.Offset) >= remote.FileExtent:
		s.queueExtent(&extent{off: uint64(w.Offset), size: w.Size, req: w, in: true, end: w.Complete})
	case uint64(w.Offset) == remote.FileControl && w.Size <= remote.HelloSize+remote.MaxText:
		h, text, err := remote.ParseHello(w.Data())
		if err != nil {
			s.refuse(w, syscall.EINVAL, err)
			return
		}
		if h.Type == remote.MsgHello && text != "" {
			s.mu.Lock()
			s.apart = text
			s.mu.Unlock()
		}
		if errno, err := s.control(h, w); err != nil {
			s.refuse(w, errno, err)
		}
	default:
		s.refuse(w, syscall.EINVAL, fmt.Errorf("WRITE of %d bytes at %#x", w.Size, w.Offset))
	}
}

// ring wakes the worker, or has one made of a suspended session.
func (s *session) ring() {
	s.mu.Lock()
	s.rang = true
	asleep := s.state == suspended && !s.reviving
	s.reviving = s.reviving || asleep
	if s.bell != nil {
		s.bell.Ring()
	}
	s.mu.Unlock()
	if asleep {
		s.goOn(resumeAgain)
	}
}

// refuse answers a WRITE with an error, whose text can be read at FileError.
func (s *session) refuse(w *fs.WriteRequest, errno syscall.Errno, err error) {
	s.mu.Lock()
	s.why = err.Error()
	s.mu.Unlock()
	s.log.Warn("control message refused", "error", err)
	w.Complete(0, errno)
}

// control follows a handshake message. With a nil error the WRITE has been, or will be, completed.
func (s *session) control(h remote.Hello, w *fs.WriteRequest) (syscall.Errno, error) {
	if h.Version != remote.ProtocolVersion {
		return syscall.EPROTO, fmt.Errorf("guest library speaks protocol version %d, this host %d: use the library of this mount", h.Version, remote.ProtocolVersion)
	}
	if s.isDirect() {
		return s.controlDirect(h, w)
	}
	switch h.Type {
	case remote.MsgHello:
		return s.hello(h, w)
	case remote.MsgDirect:
		return s.beginDirect(h, w)
	case remote.MsgStart:
		return s.start(w)
	case remote.MsgRegion:
		return s.declare(h, w)
	case remote.MsgRegionEnd:
		return s.endRegion(h, w)
	}
	return syscall.EINVAL, fmt.Errorf("unknown message %d", h.Type)
}

func (s *session) hello(h remote.Hello, w *fs.WriteRequest) (syscall.Errno, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.state != idle || h.Region != 0 || h.Size != remote.Region0Size {
		return syscall.EINVAL, fmt.Errorf("hello for region %d of %#x bytes: %w", h.Region, h.Size, errState)
	}
	if err := s.addRegionLocked(h); err != nil {
		// It is idle, as before: no session moves in its opening without a region.
		return regionErrno(err), err
	}
	s.state = opening
	if !s.do(func() { s.spawn(h, w) }) {
		return syscall.EBUSY, errState
	}
	return 0, nil
}

// addRegionLocked notes a region that is declared.
func (s *session) addRegionLocked(h remote.Hello) error {
	r, err := s.newRegionLocked(h)
	if err != nil {
		return err
	}
	if err := s.promiseLocked(r, s.dev.reads(r.size)); err != nil {
		return fmt.Errorf("region %d of %#x bytes: %w", h.Region, h.Size, err)
	}
	s.noteLocked(r)
	return nil
}

// newRegionLocked is a region that the session may have.
func (s *session) newRegionLocked(h remote.Hello) (*region, error) {
	switch {
	case h.Size == 0 || h.Size%pageSize != 0 || h.Va%pageSize != 0 || h.Va+h.Size < h.Va || h.Size > maxDeclared-s.declared:
		return nil, fmt.Errorf("region %d: %#x bytes at %#x", h.Region, h.Size, h.Va)
	case s.regions[h.Region] != nil:
		return nil, fmt.Errorf("region %d is declared twice", h.Region)
	case len(s.regions) >= maxRegions:
		return nil, fmt.Errorf("more than %d regions", maxRegions)
	}
	return &region{id: h.Region, va: h.Va, size: h.Size, pieces: map[uint64]*piece{}}, nil
}

func (s *session) noteLocked(r *region) {
	s.declared += r.size
	s.regions[r.id] = r
}

func (s *session) declare(h remote.Hello, w *fs.WriteRequest) (syscall.Errno, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.state == idle || s.state >= dead || h.Region == 0 {
		return syscall.EINVAL, fmt.Errorf("region %d: %w", h.Region, errState)
	}
	if err := s.addRegionLocked(h); err != nil {
		return regionErrno(err), err
	}
	w.Complete(w.Size, 0)
	return 0, nil
}

// endRegion ends a region's loans once the worker has let go of it. Region 0 ends the session.
func (s *session) endRegion(h remote.Hello, w *fs.WriteRequest) (syscall.Errno, error) {
	s.mu.Lock()
	r := s.regions[h.Region]
	if r == nil || r.ending {
		s.mu.Unlock()
		return syscall.EINVAL, fmt.Errorf("end of region %d, which is not declared", h.Region)
	}
	r.ending = true
	s.mu.Unlock()
	if !s.do(func() { s.dropRegion(r, w) }) {
		return syscall.EBUSY, errState
	}
	return 0, nil
}

func (s *session) dropRegion(r *region, w *fs.WriteRequest) {
	if r.id == 0 {
		s.fail(nil)
		w.Complete(w.Size, 0)
		return
	}
	_, _ = s.resume() // what is stored has the region
	s.mu.Lock()
	p, sent := s.proc, r.sent
	s.mu.Unlock()
	if sent && p != nil {
		err := p.Send(link.EndRegion{Region: r.id})
		if err == nil {
			ctx, cancel := context.WithTimeout(context.Background(), silence)
			_, err = spawn.Next[link.RegionEnded](ctx, p)
			cancel()
		}
		switch {
		case errors.Is(err, spawn.ErrEnded) && p.Err() == nil:
			s.fail(nil) // the program exits with the region in use: the worker ended in order
		case err != nil:
			s.fail(fmt.Errorf("end of region %d: %w", r.id, err))
		}
	}
	s.mu.Lock()
	reqs := r.takeBack()
	s.pieces -= len(r.pieces)
	s.declared -= r.size
	delete(s.regions, r.id)
	s.mu.Unlock()
	s.settle()
	completeAll(reqs, 0)
	s.releaseRegion(r)
	w.Complete(w.Size, 0)
	s.sendRegions() // a parked session may have waited for this region alone
}

// send passes a message to the worker, if there is one.
func (s *session) send(m link.ToWorker) {
	s.mu.Lock()
	p := s.proc
	s.mu.Unlock()
	if p != nil {
		_ = p.Send(m) // a worker that it does not reach is gone, which workerGone sees
	}
}

// Flush implements fs.ControlHandle: closing one of several descriptors means nothing.
func (s *session) Flush(uint64) {}

// Release implements fs.ControlHandle.
func (s *session) Release() {
	s.mu.Lock()
	if s.state == released {
		s.mu.Unlock()
		return
	}
	s.state = released
	s.mu.Unlock()
	close(s.over)
}

func completeAll(reqs []*fs.ReadRequest, errno syscall.Errno) {
	for _, r := range reqs {
		r.Complete(0, errno)
	}
}
