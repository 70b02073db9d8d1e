package device

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"slices"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"causeway/host/api"
	"causeway/host/worker/precopy"
)

// Errors of pre-copies.
var (
	errCopyFrame = errors.New("bad frame of a pre-copy")
	errCopyBusy  = errors.New("a pre-copy of this vGPU is under way")
	errCopyOver  = errors.New("the pre-copy has ended")
	errVMGone    = errors.New("QEMU here has let go of the vGPU")
)

// CopyOptions say how a device sends memory ahead.
type CopyOptions struct {
	Bandwidth uint64        // bytes a second; 0: as fast as goes
	Pause     time.Duration // what the last round may take; 0: DefaultCopyPause
	// Connections is how many there are in all, 0: one. The others come by CopyAlong, with the same
	// Attempt.
	Connections int
	Attempt     uint64
	// Throttle has programs held back, more and more, as long as they change memory as fast as it
	// is sent.
	Throttle bool
}

// DefaultCopyPause is how long the memory that is left may take to send when rounds end.
const DefaultCopyPause = 50 * time.Millisecond

// Times of a source.
const (
	helloLimit = 10 * time.Second
	pingEvery  = 5 * time.Second
	// sealLimit is how much longer the VM stands when the other host has gone silent: then all
	// memory goes with the state.
	sealLimit = 2 * time.Second
	// keepUpLeast, or keepUp times what it takes, lies between rounds when what is left fits the
	// pause.
	keepUpLeast = 500 * time.Millisecond
	keepUp      = 3
)

// copyOut sends the memory of a device's sessions ahead of them.
type copyOut struct {
	d     *Device
	conn  io.ReadWriteCloser
	opt   CopyOptions
	limit *rate.Limiter // nil: none

	order  sync.Mutex  // of frames of streams
	seq    uint64      // of the last one; order is held
	frames chan []byte // to whichever connection has room; nothing waits in it

	welcome chan struct{}
	told    chan struct{}   // something about a stream
	over    context.Context // ends with the pre-copy, its cause says why
	end     context.CancelCauseFunc
	hurry   context.Context // ends when the VM stands: no limit of bandwidth holds from then on
	hasten  context.CancelFunc

	mu      sync.Mutex
	streams map[*session]*outStream
	last    uint32
	st      api.Copy
}

// CopyTo sends the memory of all sessions ahead over conn, which it takes over, until ctx or the
// connection ends, or the VM is gone.
func (d *Device) CopyTo(ctx context.Context, conn io.ReadWriteCloser, opt CopyOptions) error {
	if opt.Pause <= 0 {
		opt.Pause = DefaultCopyPause
	}
	opt.Connections = max(opt.Connections, 1)
	o := &copyOut{
		d: d, conn: conn, opt: opt, frames: make(chan []byte), welcome: make(chan struct{}), told: make(chan struct{}, 1), streams: map[*session]*outStream{},
		st: api.Copy{Way: api.CopyOut, Since: time.Now(), Connections: opt.Connections},
	}
	if opt.Bandwidth > 0 {
		o.limit = rate.NewLimiter(rate.Limit(opt.Bandwidth), max(int(min(opt.Bandwidth/20, 64<<20)), copyHeader+mostCopyData))
	}
	o.over, o.end = context.WithCancelCause(ctx)
	o.hurry, o.hasten = context.WithCancel(o.over)
	defer o.hasten()
	defer context.AfterFunc(o.over, func() { _ = conn.Close() })()
	if !d.out.CompareAndSwap(nil, o) {
		_ = conn.Close()
		return errCopyBusy
	}
	go o.routineAnswers()
	err := o.run()
	o.end(err)
	err = context.Cause(o.over)
	_ = conn.Close()
	o.close()
	o.letGo()
	o.known()
	d.mu.Lock()
	st := o.status()
	d.copied += st.Total
	d.copySaved += st.Saved
	d.copyEnd = err.Error()
	d.mu.Unlock()
	d.out.Store(nil)
	d.log.Info("pre-copy has ended", "rounds", st.Rounds, "bytes", st.Total, "reason", err)
	return err
}

func (o *copyOut) run() error {
	if err := o.begin(); err != nil {
		return err
	}
	pace := precopy.Pace{Pause: o.opt.Pause}
	for {
		begin := time.Now()
		r := o.round()
		if o.over.Err() != nil {
			return context.Cause(o.over)
		}
		took := time.Since(begin)
		little := o.counted(r, took, &pace)
		nap := time.Duration(0)
		if little {
			nap = max(keepUpLeast, keepUp*took)
		}
		select {
		case <-o.over.Done():
			return context.Cause(o.over)
		case <-o.told:
		case <-time.After(nap):
		}
	}
}

// counted notes a round, and reports whether what is left is little enough, or as little as it
// gets. The VM may stop then, when it is awaited: drivers there that are still starting would do so
// while it stands.
func (o *copyOut) counted(r precopy.Round, took time.Duration, pace *precopy.Pace) (little bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.st.Rounds++
	o.st.Looked, o.st.Sent, o.st.Took = r.Looked, r.Sent, took
	past := append(o.st.Past, api.CopyRound{Looked: r.Looked, Sent: r.Sent, Took: took})
	o.st.Past = slices.Clone(past[max(0, len(past)-api.CopyPast):]) // readers have the earlier one
	if little = o.st.Ready; !little {
		if little = !pace.Next(r, took); little && pace.Stuck() && o.holdBack() {
			little = false
			pace.Again()
		}
		o.st.Ready, o.st.Unmovable = little, ""
		for _, x := range o.streams {
			o.st.Ready = o.st.Ready && x.awaited() && x.known() && x.cannot == ""
			if x.cannot != "" {
				o.st.Unmovable = x.cannot
			}
		}
		o.st.Stuck = o.st.Ready && pace.Stuck()
		if o.st.Ready {
			o.d.log.Info("pre-copy is ready for the VM to stop", "rounds", o.st.Rounds, "bytes", o.st.Total, "last", r.Sent, "took", took.Round(time.Millisecond), "falls", !pace.Stuck())
		}
	}
	o.d.log.Debug("round of a pre-copy", "round", o.st.Rounds, "looked_at", r.Looked, "sent", r.Sent, "took", took)
	return little
}

// round has all sessions that run copied once more. All streams that are new begin, those of
// rehearsals too, before anything of a session is sent, which waits there until a worker has
// started.
func (o *copyOut) round() (sum precopy.Round) {
	var wg sync.WaitGroup
	var mu sync.Mutex
	there, files := map[*session]bool{}, map[*outStream]workerEnds{}
	failed := func(s *session, err error) { s.log.Warn("its memory does not go ahead", "error", err) }
	for _, s := range o.d.all() {
		there[s] = true
		x, theirs, err := o.streamOf(s)
		if err != nil {
			failed(s, err)
		}
		if x != nil {
			files[x] = theirs
		}
	}
	for x, theirs := range files {
		wg.Go(func() {
			r, err := o.roundOf(x, theirs)
			if err != nil {
				failed(x.s, err)
			}
			mu.Lock()
			defer mu.Unlock()
			sum.Looked += r.Looked
			sum.Sent += r.Sent
		})
	}
	wg.Wait()
	o.mu.Lock()
	defer o.mu.Unlock()
	for s, x := range o.streams {
		if !there[s] {
			delete(o.streams, s)
			go o.drop(x)
		}
	}
	return sum
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// lost says that the connection has ended, however it says so.
func lost(err error) error {
	if errors.Is(err, errCopyFrame) {
		return err
	}
	return fmt.Errorf("%w: the connection to the other host is gone", errCopyOver)
}

// routineAnswers follows what the other side says.
func (o *copyOut) routineAnswers() {
	buf := make([]byte, mostCopyData)
	for {
		f, err := readCopyFrame(o.conn, buf)
		if err != nil {
			o.end(lost(err))
			return
		}
		if err := o.answered(f); err != nil {
			o.end(err)
			return
		}
	}
}

func (o *copyOut) answered(f copyFrame) error {
	switch f.kind {
	case copyWelcome:
		select {
		case <-o.welcome:
			return fmt.Errorf("%w: welcomed twice", errCopyFrame)
		default:
			close(o.welcome)
		}
		return nil
	case copyRefused, copySealed, copyReady, copyRehearsed, copyCannot:
	default:
		return fmt.Errorf("%w: kind %d from a destination", errCopyFrame, f.kind)
	}
	var why error
	if f.kind == copyRefused || f.kind == copyCannot {
		why = fmt.Errorf("the other host: %s", printable(f.body))
	}
	if f.stream == 0 && why != nil {
		return why
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	for s, x := range o.streams {
		if r := x.rehearsed(); r != nil && r.id == f.stream {
			if f.kind != copyReady {
				x.ends(why, f.kind == copyCannot)
				o.news()
			}
			return nil
		}
		if x.id != f.stream {
			continue
		}
		if why != nil {
			x.fail(why)
			o.st.Why = why.Error()
			s.log.Warn("its memory does not go ahead", "error", why)
		}
		if f.kind == copyReady {
			x.mu.Lock()
			x.ready = true
			x.mu.Unlock()
		}
		o.news()
		if f.kind == copyReady {
			return nil
		}
		select {
		case x.answer <- why:
		default: // nobody asked
		}
	}
	return nil
}

// news says that something of a stream has changed.
func (o *copyOut) news() {
	select {
	case o.told <- struct{}{}:
	default: // nobody has looked since the last
	}
}

// printable is text of another host for a log.
func printable(b []byte) string { return fmt.Sprintf("%.*q", mostCopyText, b) }

func (o *copyOut) close() {
	o.mu.Lock()
	list := o.streams
	o.streams = map[*session]*outStream{}
	o.mu.Unlock()
	for _, x := range list {
		x.stop()
	}
}

func (o *copyOut) status() api.Copy {
	o.mu.Lock()
	defer o.mu.Unlock()
	st := o.st
	st.Sessions = len(o.streams) // of now: sessions end between two that begin
	return st
}
