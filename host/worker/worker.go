package worker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"sync"
	"sync/atomic"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/driver"
	"causeway/host/schedule/gate"
	"causeway/remote"
	"causeway/remote/sys"
)

// Worker is one session.
type Worker struct {
	log     *slog.Logger
	carrier remote.Carrier
	ring    remote.Ring
	bell    remote.Doorbell
	memory  remote.GuestMemory
	mapper  remote.Mapper // nil: the carrier cannot map
	lender  remote.Lender // nil: it keeps no addresses
	lent    map[uint32]lent
	onHost  map[uint32]uint64 // bytes of MemCreate's memory that lies on the host
	early   *early            // nil: nothing of guest memory comes early
	gpu     *gpuDirect        // nil: no adapter reaches the GPU's memory

	session driver.Session
	ordered driver.Ordered // session, if it issues from threads of its own
	front   *front
	ctx     context.Context // ends with the session, by cancel
	cancel  context.CancelFunc

	// The consumer's.
	dispatch wire.Dispatcher
	call     wire.Call
	incoming remote.Incoming
	waits    bool // the guest waits for the last request, which will be answered later
	longPoll longPoll
	blobs    blobs
	record   *recorder
	host     *hostMemory
	extra    uint64 // what the driver keeps of the current request
	guest    guest
	graphs   graphs
	count    counting
	room     room
	throttle throttle
	// Holds back what gives the GPU work; nil: nothing does. Set before the consumer runs.
	gate *gate.Gate

	keep        func(variables int) bool // keepInstance
	instanceFee uint64                   // reserved by it, until the operation is over

	questions atomic.Int32 // link.Measure that wait for their answer

	slots   [remote.SlotCount]slot
	guestMu sync.RWMutex // held for writing while guest memory is out of reach
	// A request is made again, by who may hold guestMu. Of what the driver says of that the guest
	// hears nothing: errors and text are those that come with the session.
	replays  atomic.Bool
	deferred atomic.Uint32
	sticky   atomic.Uint32
	console  console
	sharing  sharing
	calls    callbacks
	watch    watch

	regionMu sync.RWMutex
	regions  map[uint32]driver.Region

	tasks   chan func() error
	pending atomic.Bool // tasks has something
	ended   chan struct{}

	asked waited // the loop's; nil: nobody wants to know

	parked *parking    // the link goroutine's; nil: the session is not parked
	away   atomic.Bool // guest memory has no pages here
}

// New makes a session on a carrier whose handshake is not finished yet. It takes over the carrier
// unless it fails.
func New(c remote.Carrier, b driver.Backend, o driver.Options, log *slog.Logger) (*Worker, error) {
	w := newWorker(o, log)
	if err := w.carry(c); err != nil {
		return nil, err
	}
	if err := w.open(b, o); err != nil {
		return nil, err
	}
	return w, nil
}

func newWorker(o driver.Options, log *slog.Logger) *Worker {
	w := &Worker{
		log:     log,
		regions: map[uint32]driver.Region{},
		tasks:   make(chan func() error, 1),
		ended:   make(chan struct{}),
		onHost:  map[uint32]uint64{},
		asked:   newWaited(log),

		longPoll: longPollOn(runtime.NumCPU()),
	}
	w.ctx, w.cancel = context.WithCancel(context.Background())
	w.keep = w.keepInstance
	w.watch.budget = o.Budget
	w.hold(&hostMemory{log: log})
	return w
}

// carry gives it its carrier.
func (w *Worker) carry(c remote.Carrier) error {
	w.carrier, w.ring, w.bell, w.memory = c, c.Ring(), c.Doorbell(), c.Memory()
	w.lender, _ = w.memory.(remote.Lender)
	w.lent = map[uint32]lent{}
	if w.mapper, _ = w.memory.(remote.Mapper); w.mapper == nil {
		w.early = newEarly(w.ring, w.memory)
	}
	return w.addRegion0()
}

// open has a GPU, which needs no carrier before its first operation.
func (w *Worker) open(b driver.Backend, o driver.Options) error {
	s, err := b.Open(w, o)
	if err != nil {
		return fmt.Errorf("open the %s GPU: %w", b.Name(), err)
	}
	w.session = s
	w.ordered, _ = s.(driver.Ordered)
	if x, ok := s.(driver.Capturer); ok {
		w.dispatch.Captures = x.Captures()
	}
	w.front = &front{Session: s, w: w}
	w.graphs.init(w)
	return nil
}

// hold has the session keep its accounts in a budget. Nothing is in them yet.
func (w *Worker) hold(h *hostMemory) {
	h.refused = w.count.hostRefused
	w.host, w.record = h, newRecorder(h)
	w.blobs.init(h)
}

func (w *Worker) addRegion0() error {
	d, err := w.memory.Await(context.Background(), 0)
	if err != nil {
		return err
	}
	r := driver.Region{ID: 0, VA: d.VA, Size: d.Size, IO: regionIO{w.memory, w.early, 0}}
	if w.mapper != nil {
		if r.Mem, err = w.mapper.Map(0, 0); err != nil {
			return err
		}
	}
	w.regions[0] = r
	return nil
}

// Run consumes until the guest process is gone or ctx ends, which is no error, or until the session
// breaks. Everything is released when it returns.
func (w *Worker) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	context.AfterFunc(ctx, w.cancel)
	go func() {
		select {
		case <-w.carrier.Done():
			cancel()
		case <-ctx.Done():
		}
	}()
	var beside sync.WaitGroup
	if w.early != nil {
		beside.Go(func() { w.early.follow(w.ended) })
	}
	err := w.guarded(ctx)
	close(w.ended)
	beside.Wait() // the ring is not there for longer than the carrier
	w.calls.end()
	if w.gate != nil {
		w.gate.Close(!errors.Is(err, errMoved))
	}
	if errors.Is(err, errMoved) {
		return nil // the session, and with it guest memory, belongs to another process now
	}
	if errors.Is(err, errEnded) {
		err = nil
	}
	if err == nil {
		err = w.carrier.Err()
	}
	if gone := (*sys.FaultError)(nil); err != nil && !errors.As(err, &gone) {
		w.ring.SetState(remote.WorkerDead)
	}
	return errors.Join(err, w.close())
}

// close releases the session. Guest memory is untouched by drivers once they are closed.
func (w *Worker) close() error {
	w.endDirect() // before anything of it is freed
	return errors.Join(w.session.Close(), w.carrier.Close())
}

// execute runs one record. An error ends the session.
func (w *Worker) execute(in *remote.Incoming) error {
	op := wire.Op(in.Op)
	info := op.Info()
	if info == nil {
		return remote.Violation("unknown operation %d", in.Op)
	}
	wants := in.Flags&remote.RecordReply != 0
	if wants {
		if in.Slot >= remote.SlotCount || in.Seq == 0 {
			return remote.Violation("%s wants its reply in slot %d with sequence %d", info.Name, in.Slot, in.Seq)
		}
		w.host.release(w.slots[in.Slot].begin(op, in.Seq))
	} else if info.Mode != wire.Async {
		return remote.Violation("%s does not want its reply", info.Name)
	}
	c := &w.call
	c.Op, c.Ctx, c.Thread, c.Slot, c.Seq = op, in.Ctx, in.Thread, in.Slot, in.Seq
	c.Placed, c.Instances, c.Locals, c.Replier, c.Refuse = c.Placed[:0], c.Instances[:0], c.Locals[:0], nil, cuda.Success
	c.Keep = w.keep
	if wants {
		c.Replier = w
		w.asked.note(op)
	}
	w.extra = 0
	fee := uint64(0)
	recorded := info.Effect != wire.NoEffect
	if recorded {
		if fee = toll(info, len(in.Bytes)); !w.host.reserve(fee) {
			c.Refuse, fee = cuda.ErrorOutOfMemory, 0
		}
	}
	node, room := w.graphs.mayCapture(info, len(in.Bytes))
	if !room {
		c.Refuse = cuda.ErrorOutOfMemory
	}
	payload, res, err := w.dispatch.Dispatch(w.front, c, in.Bytes, &w.blobs)
	if err == nil && len(c.Instances)+len(c.Locals) > 0 {
		err = w.record.noteMade(c)
	}
	if err != nil {
		return err
	}
	if w.instanceFee != 0 {
		w.host.release(w.instanceFee)
		w.instanceFee = 0
	}
	if node != 0 && room {
		w.graphs.settleCapture(c, w.dispatch.Args(), node, res == cuda.Success)
	}
	if len(w.graphs.taken) > 0 {
		w.graphs.settleCaptures()
	}
	if n := w.room.lacks(); n > 0 && res == cuda.ErrorOutOfMemory && !c.Taken() {
		if recorded {
			w.host.release(fee)
		}
		w.stall(in, n)
		return nil
	}
	w.room.denied = false
	w.blobs.settle()
	if recorded {
		w.host.release(fee)
		if res == cuda.Success {
			err = w.note(c, info, payload)
		}
		if w.record.blobs.forget(); err != nil {
			return err
		}
	}
	if w.count.to != nil && w.count.count(info.Counts, res) {
		w.count.more(w.dispatch.Args())
	}
	taken := c.Taken()
	w.waits = taken || info.Awaited && w.awaited()
	switch {
	case taken:
	case wants:
		w.Reply(in.Slot, in.Seq, res, payload)
	case res != cuda.Success:
		w.Deferred(res)
	}
	return nil
}

// awaited says that the guest waits for the last operation although it wants no reply: for bytes on
// their way into staging.
func (w *Worker) awaited() bool {
	a, ok := w.dispatch.Args().(wire.Awaiter)
	return ok && a.Awaited()
}

// note keeps what a fresh worker must know of a request that succeeded.
func (w *Worker) note(c *wire.Call, info *wire.OpInfo, payload []byte) error {
	if info.Effect == wire.NoEffect || w.graphs.becameNode(c, info, w.dispatch.Args()) {
		return nil
	}
	return w.record.note(c, info, w.dispatch.Args(), payload, w.extra)
}
