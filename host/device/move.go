package device

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"causeway/host/worker/link"
	"causeway/host/worker/spawn"
	image "causeway/host/worker/state"
	"causeway/remote"
	"causeway/remote/sys"
	"causeway/virtio/fs"
)

/*
A VM that is saved or migrated takes its sessions along. All rings have stopped then, and every
worker has let go of guest memory. Save has each worker write its session into the state that QEMU
carries; Load has a worker at the destination make the same of it, parked, before there is any guest
memory. What the devices know of all sessions comes first: workers of all of them start at once, and
then follow the streams side by side. From there on it is an ordinary park: the guest finds its
loans ended, lends its pages again, and the worker goes on, on whichever side that is. So the
source keeps its workers until its QEMU has gone.
*/

var (
	_ fs.MovableFile   = (*Device)(nil)
	_ fs.MovableHandle = (*session)(nil)
)

// moveLimit bounds how long either side of a session's move may be silent.
const moveLimit = 2 * time.Minute

// errElsewhere says that a session cannot go on here.
var errElsewhere = errors.New("the session cannot move to this virtual GPU")

// Movable implements fs.MovableHandle: the worker of a session that runs is asked. One that does
// not find the time may move, for all that is known.
func (s *session) Movable(ctx context.Context) error {
	s.mu.Lock()
	why := s.elsewhere
	s.mu.Unlock()
	if why != "" {
		return fmt.Errorf("%s cannot be rebuilt there: %s", s.peer(), why)
	}
	return s.mayMove(ctx, link.Probe{Together: true})
}

// mayMove is Movable in another way.
func (s *session) mayMove(ctx context.Context, how link.Probe) error {
	found := make(chan error, 1)
	if !s.do(func() { found <- s.probe(ctx, how) }) {
		return nil
	}
	select {
	case err := <-found:
		return err
	case <-ctx.Done():
	case <-s.over:
	}
	return nil
}

// probe asks the worker of a session that runs.
func (s *session) probe(ctx context.Context, how link.Probe) error {
	s.mu.Lock()
	p, st := s.proc, s.state
	s.mu.Unlock()
	if st != running || ctx.Err() != nil {
		return nil
	}
	if err := s.bound(); err != nil {
		s.mu.Lock()
		s.unmovable, s.looked = err.Error(), time.Now()
		s.mu.Unlock()
		return fmt.Errorf("%s: %w", s.peer(), err)
	}
	m, err := p.Probe(ctx, how)
	if err != nil {
		return nil
	}
	program := ""
	s.mu.Lock()
	s.unmovable, s.looked = m.Text, time.Now()
	if s.res != nil {
		_, program = s.res.meter.Guest()
	}
	s.mu.Unlock()
	if m.Errno == 0 {
		return nil
	}
	return fmt.Errorf("%s %s: %s", s.peer(), program, m.Text)
}

// Look has Status say what cannot be moved as it is now, if the workers find the time.
func (d *Device) Look() {
	ctx, cancel := context.WithTimeout(context.Background(), lookLimit)
	defer cancel()
	var wg sync.WaitGroup
	for _, s := range d.all() {
		s.mu.Lock()
		fresh := time.Since(s.looked) < lookAgain
		s.mu.Unlock()
		if !fresh {
			wg.Go(func() { _ = s.Movable(ctx) })
		}
	}
	wg.Wait()
}

// How long Look waits, and how long what it found holds.
const (
	lookLimit = 100 * time.Millisecond
	lookAgain = time.Second
)

// SaveHead implements fs.MovableHandle.
func (s *session) SaveHead() ([]byte, error) { return askRoutine(s, s.saveHead) }

func (s *session) saveHead() ([]byte, error) {
	if err := s.dev.awaitHanded(); err != nil {
		return nil, fmt.Errorf("session %d, %s: %w", s.id, s.peer(), err)
	}
	here := s.dev.place()
	s.mu.Lock()
	p, stored := s.proc, s.stored
	h := &sessionHead{base: s.base, backend: here.backend(), gpu: here.GPU, stage: s.state}
	for _, r := range s.regions {
		came := regionHead{id: r.id, va: r.va, size: r.size, sent: r.sent}
		if h.stage < dead { // else it is about to give them back, or has
			came.reads = uint32(r.promised)
		}
		h.regions = append(h.regions, came)
	}
	for slot := range s.tokens {
		h.tokens = append(h.tokens, slot)
	}
	s.mu.Unlock()
	switch h.stage {
	case starting, running, parking:
		return nil, fmt.Errorf("session %d, %s, has not let go of guest memory", s.id, s.peer())
	}
	if h.stage == suspended {
		h.stage = parked
	}
	if h.stage == parked && stored == nil {
		h.ahead = s.seal(p)
	}
	s.head = h
	var b bytes.Buffer
	out := image.NewWriter(&b)
	h.write(out)
	err := out.Flush()
	return b.Bytes(), err
}

// Save implements fs.MovableHandle.
func (s *session) Save(w io.Writer) error { return s.onRoutine(func() error { return s.save(w) }) }

func (s *session) save(w io.Writer) error {
	s.mu.Lock()
	p, stored := s.proc, s.stored
	s.mu.Unlock()
	h := s.head
	if h == nil || h.stage != parked {
		return nil
	}
	if stored != nil {
		r := stored.read()
		defer r.Close()
		_, err := io.Copy(w, r)
		return err
	}
	s.dev.opts.Reached("saving")
	begin := time.Now()
	n, _, err := s.export(w, p, link.Export{Ahead: len(h.ahead) > 0, Together: true})
	if err != nil {
		return s.named(err)
	}
	s.log.Info("session saved", "bytes", n, "took", time.Since(begin).Round(time.Millisecond))
	return nil
}

// export copies what the worker writes of its session, in one of link.Export's ways. waiting: its
// program had submitted more when it was parked.
func (s *session) export(w io.Writer, p workerProcess, how link.Export) (n int64, waiting bool, err error) {
	ours, theirs, err := streamPair()
	if err != nil {
		return 0, false, err
	}
	defer ours.Close()
	how.Stream = link.FileOf(theirs)
	err = p.Send(how)
	_ = unix.Close(theirs)
	if err != nil {
		return 0, false, fmt.Errorf("%w: %w", spawn.ErrEnded, err)
	}
	n, err = io.Copy(w, patient{ours})
	_ = ours.Close() // a worker that still writes is told
	ctx, cancel := context.WithTimeout(context.Background(), moveLimit)
	defer cancel()
	did, gone := spawn.Next[link.Exported](ctx, p)
	if gone != nil {
		s.fail(gone)
		return n, false, gone
	}
	if err == nil {
		err = did.Err()
	}
	return n, did.Waiting, err
}

// Expect implements fs.MovableFile: the worker of a session that needs one starts.
func (d *Device) Expect(c fs.Caller, head []byte) (fs.MovableHandle, error) {
	in := image.NewReader(bytes.NewReader(head), headMost)
	h, err := readHead(in)
	if n, _ := io.Copy(io.Discard, in.Rest()); err == nil && n > 0 {
		in.Refuse("%d bytes behind the head of a session", n)
		err = in.Err()
	}
	if err != nil {
		return nil, err
	}
	d.opts.Reached("loading")
	switch here := d.place(); {
	case h.backend != here.backend():
		return nil, fmt.Errorf("%w: it comes from the backend %q, this is %q", errElsewhere, h.backend, here.backend())
	case h.gpu != here.GPU:
		return nil, fmt.Errorf("%w: it comes from a GPU %q, this is %q", errElsewhere, h.gpu, here.GPU)
	}
	s, err := d.in.claim(h.ahead, c)
	if err != nil {
		return nil, err
	}
	if s == nil {
		opened, errno := d.Open(c)
		if errno != 0 {
			return nil, fmt.Errorf("%w: %w", errElsewhere, errno)
		}
		s = opened.(*session)
	}
	if !s.do(func() {
		if s.head = h; h.stage == parked && s.arrival == nil {
			s.base = h.base
			s.unexpected = s.expect(true)
		}
	}) {
		s.Release()
		return nil, errState
	}
	return s, nil
}

// Load implements fs.MovableHandle.
func (s *session) Load(ctx context.Context, r io.Reader) error {
	defer context.AfterFunc(ctx, func() { s.fail(nil) })()
	err := s.onRoutine(func() error { return s.load(s.head, r) })
	if err != nil {
		s.fail(nil)
	}
	return err
}

// load makes the session what it was elsewhere. Nothing of the guest comes meanwhile.
func (s *session) load(h *sessionHead, rest io.Reader) error {
	if h.stage != opening { // which has done nothing yet
		s.base = h.base
	}
	s.mu.Lock()
	for _, came := range h.regions {
		r, err := s.newRegionLocked(remote.Hello{Region: came.id, Va: came.va, Size: came.size})
		if err != nil {
			s.mu.Unlock()
			return err
		}
		r.sent = came.sent && h.stage == parked
		// As was counted there: how large READs are is not known here yet.
		s.bringLocked(r, int(came.reads))
		s.noteLocked(r)
	}
	for _, slot := range h.tokens {
		s.tokens[slot] = true
	}
	s.mu.Unlock()
	if h.stage > idle && h.stage < dead && (s.regions[0] == nil || s.regions[0].size != remote.Region0Size) {
		return fmt.Errorf("%w: a session without a ring", errElsewhere)
	}
	switch h.stage {
	case opening: // it has done nothing yet: it begins with a worker of this host
		s.do(func() {
			if errno, err := s.begin(remote.Hello{Type: remote.MsgHello, Va: s.regions[0].va, Size: remote.Region0Size}); err != nil {
				s.log.Warn("session does not begin again", "error", err, "errno", errno)
			}
		})
	case parked:
		if err := s.adopt(rest); err != nil {
			return err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.state >= dead { // another has failed, and with it the move
		return errGone
	}
	s.state = h.stage
	return nil
}

// streamPair is a stream: one end for this process, one for a worker.
func streamPair() (ours *net.UnixConn, theirs int, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, -1, fmt.Errorf("socketpair: %w", err)
	}
	if ours, err = sys.UnixConn(fds[0], "stream of a session"); err != nil {
		_ = unix.Close(fds[1])
	}
	return ours, fds[1], err
}

// patient bounds each step of a stream whose other end may hang.
type patient struct{ conn *net.UnixConn }

// Read implements io.Reader.
func (p patient) Read(b []byte) (int, error) {
	_ = p.conn.SetReadDeadline(time.Now().Add(moveLimit))
	return p.conn.Read(b)
}

// Write implements io.Writer.
func (p patient) Write(b []byte) (int, error) {
	_ = p.conn.SetWriteDeadline(time.Now().Add(moveLimit))
	return p.conn.Write(b)
}
