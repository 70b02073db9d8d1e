package cuda

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/driver"
	"causeway/host/driver/cuda/bind"
)

// maxObjects bounds the handles of one kind that a guest process may hold.
const maxObjects = 1 << 20

// session is one guest process on the real driver.
type session struct {
	wire.Unsupported
	graphState
	vmmState
	arrayState
	hostState

	drv   *bind.Driver
	space *bind.Space
	warm  *warmth // nil if nothing was made ready
	host  driver.Host
	opt   driver.Options

	current       uint32 // guest id of the context that is current on the worker's thread; 0: none
	ctxs          table[*context_]
	modules       owned[module]
	libs          table[bind.Library]
	images        table[bind.Image] // of libraries: the driver reads them as long as these live
	funcs         owned[*function]
	streams       owned[*stream]
	events        owned[*event]
	pools         table[bind.MemoryPool]
	threads       map[threadKey]*stream // per-thread default streams
	ofThreads     driver.ThreadStreams[threadKey, *stream]
	legacy        map[uint32]*stream    // the legacy stream of each context
	allocs        map[uint64]allocation // live device allocations by address
	used          uint64                // bytes booked: allocs, arrays, memory without addresses
	budget        driver.Budget
	pooling       pooling
	arenas        arenas
	shown         bind.Registered // of Pin, none: zero
	regions       map[uint32]registration
	detached      []uint32    // regions that are registered again as soon as there is a context
	lingering     []lingering // contexts that the guest has ended and the driver not yet
	lookedAt      time.Time   // when they were last looked at
	devices       []deviceInfo
	origins       map[uint32]bind.Event // of each context: what happened first after a move
	consoleMu     sync.Mutex            // guards stdout, stderr and the order of their text
	stdout        *capture
	stderr        *capture
	watch         *watcher
	users         users
	submitters    submitters
	gauge         gauge
	epoch         uint64 // counts operations that may record events in ways of their own
	fences        *fencePool
	inline, carry bind.Buffer // C memory for copies that must not start in pinned memory
	// A word: how many copies of copyAfterAll, of those that were counted, have ended.
	after    bind.Buffer
	afters   uint32 // how many were counted
	batch    bind.Batch
	printing bool // a loaded image may print: waits must go through the driver
}

type context_ struct {
	handle  bind.Context
	dev     uint32
	primary bool
	green   bool // a green context's, with which it ends
	retains int
	// Bytes of local memory that a thread is known to have; 0: nobody has asked.
	local   uint32
	lingers bool // it is about to be forgotten, and goes on in session.lingering
	// non-blocking stream of ours that waits for events, nil until needed
	hidden  *stream
	answers [wire.SlotCount]answers // behind copies from the GPU
}

// Open implements driver.Backend.
func (b *Backend) Open(h driver.Host, o driver.Options) (driver.Session, error) {
	s := newSession(b.drv, h, o)
	s.warm = b.warm
	var err error
	if s.stdout, err = captureOutput(1); err != nil {
		return nil, err
	}
	if s.stderr, err = captureOutput(2); err != nil {
		return nil, errors.Join(err, s.stdout.close())
	}
	return s, nil
}

func newSession(d *bind.Driver, h driver.Host, o driver.Options) *session {
	s := &session{
		drv: d, space: bind.NewSpace(d), host: h, opt: o, budget: o.Memory(),
		threads: map[threadKey]*stream{}, legacy: map[uint32]*stream{}, allocs: map[uint64]allocation{},
		regions: map[uint32]registration{},
	}
	s.arenas.on = o.Migratable
	s.watch = newWatcher(s)
	s.submitters.init()
	return s
}

// Close implements driver.Session. Contexts die with the process; what must not outlive the session
// is the watcher.
func (s *session) Close() error {
	s.submitters.stop()
	s.watch.stop()
	s.closeHosts()
	for _, im := range s.images.m { // nothing calls into their libraries any more
		im.Release()
	}
	for _, old := range s.retired {
		old.image.Release()
	}
	return errors.Join(s.stdout.close(), s.stderr.close())
}

// SessionInit starts the driver with the guest's environment.
func (s *session) SessionInit(c *wire.Call, a *wire.SessionInitArgs, r *wire.SessionInitReply) cuda.Result {
	if s.warm == nil {
		applyEnvironment(a.Env, offered(s.opt))
		w, res := start(s.drv)
		if res != cuda.Success {
			return res
		}
		s.warm = w
	}
	if err := s.warm.permitted(s.opt); err != nil {
		slog.Error("session refused", "error", err)
		return cuda.ErrorNotPermitted
	}
	var list []byte
	for _, info := range s.warm.devices {
		info.TotalMem = s.limited(info.TotalMem)
		s.devices = append(s.devices, info)
		list = info.append(list)
	}
	version, n := s.warm.version, len(s.warm.devices)
	r.DriverVersion, r.DeviceCount, r.MemLimit, r.Devices = version, uint32(n), s.budget.Limit(), list
	if reg, ok := s.host.Region(0); ok && reg.Mem != nil {
		r.Caps |= wire.CapMap
	}
	if s.makesOnHost(n) {
		r.Caps |= wire.CapMemOnHost
	}
	return cuda.Success
}

// SessionFence answers by being consumed.
func (s *session) SessionFence(*wire.Call) cuda.Result { return cuda.Success }

// Use implements wire.User: the call's context is made current on the worker's thread.
func (s *session) Use(c *wire.Call) cuda.Result { return s.use(c) }

func (s *session) use(c *wire.Call) cuda.Result {
	if c.Ctx == s.current && c.Ctx != 0 && len(s.detached) == 0 {
		return cuda.Success
	}
	ctx, ok := s.ctxs.get(c.Ctx)
	if !ok || ctx.handle.IsZero() {
		return cuda.ErrorInvalidContext
	}
	if r := s.drv.CtxSetCurrent(ctx.handle); r != cuda.Success {
		s.current = 0
		return r
	}
	s.current = c.Ctx
	if len(s.detached) > 0 {
		return s.attach()
	}
	return cuda.Success
}

// RegionAdd registers a mapped region with the driver so that the GPU reaches it.
func (s *session) RegionAdd(c *wire.Call, a *wire.RegionAddArgs, r *wire.RegionAddReply) cuda.Result {
	reg, ok := s.host.Region(a.Region)
	if !ok {
		return cuda.ErrorInvalidValue
	}
	if reg.Mem == nil || reg.Away {
		if c.Replay { // its pages come later: the next operation registers it
			s.detached = append(s.detached, a.Region)
			return cuda.Success
		}
		if a.Kind == wire.RegionPinned {
			return cuda.ErrorNotSupported
		}
		return cuda.Success // staging through the carrier
	}
	if res := s.use(c); res != cuda.Success {
		if c.Replay { // it has outlived the context that was current: the next one takes it
			s.detached = append(s.detached, a.Region)
			return cuda.Success
		}
		return res
	}
	mem, res := s.register(reg)
	if res == cuda.Success {
		r.Dev = mem.Address().Value()
	}
	return res
}

// registration is a region that the driver has pinned: with the guest's context that did it. It
// ends with that.
type registration struct {
	bind.Registered
	ctx uint32
}

// register pins a region for the GPU, once.
func (s *session) register(reg driver.Region) (bind.Mem, cuda.Result) {
	if r, ok := s.regions[reg.ID]; ok {
		return r.Mem(), cuda.Success
	}
	// Sixteen pages a fault, where the driver would meet each page by itself. What cannot be done
	// here it does.
	_ = unix.Madvise(reg.Mem, unix.MADV_POPULATE_READ)
	all, ok := bind.Mapped(reg.Mem, 0, uint64(len(reg.Mem)))
	if !ok {
		return bind.Mem{}, cuda.ErrorInvalidValue
	}
	r, res := s.drv.Register(all)
	if res != cuda.Success {
		return bind.Mem{}, res
	}
	s.regions[reg.ID] = registration{r, s.current}
	if dev := r.Mem().Address().Value(); reg.Kind == wire.RegionPinned && dev != reg.VA {
		slog.Warn("pinned region has another device address than the guest's", "va", reg.VA, "dev", dev)
		s.unregister(reg.ID)
		return bind.Mem{}, cuda.ErrorNotSupported
	}
	if reg.Kind == wire.RegionPinned && reg.ID != 0 {
		s.space.Pin(reg.ID, r)
	}
	return r.Mem(), cuda.Success
}

func (s *session) unregister(id uint32) cuda.Result {
	r, ok := s.regions[id]
	if !ok {
		return cuda.Success
	}
	delete(s.regions, id)
	s.space.Unpin(id)
	return s.drv.Unregister(r.Registered)
}

// RegionDrop lets go of a region; the worker unmaps it afterwards. The driver waits for copies that
// still use it.
func (s *session) RegionDrop(_ *wire.Call, a *wire.RegionDropArgs) cuda.Result {
	s.detached = slices.DeleteFunc(s.detached, func(id uint32) bool { return id == a.Region })
	r, ok := s.regions[a.Region]
	if !ok {
		return cuda.Success
	}
	if res := s.useContext(r.ctx); res != cuda.Success { // the caller may have none
		return res
	}
	return s.unregister(a.Region)
}

// Quiesce implements driver.Snapshotter: it waits for everything, then lets go of guest memory,
// which may be other pages when work goes on. The next operation registers the regions anew. Worker
// goroutine.
func (s *session) Quiesce(ctx context.Context) error {
	if !s.settleAll(ctx) {
		return fmt.Errorf("the driver still takes work for this session: %w", ctx.Err())
	}
	done := make(chan cuda.Result, 1)
	var handles []bind.Context
	var used []any
	var greens []bind.Stream // whose green contexts have no context of their own
	for _, c := range s.ctxs.m {
		if !c.handle.IsZero() {
			handles, used = append(handles, c.handle), append(used, c.handle)
		}
	}
	for _, st := range s.streams.m {
		if st.green != 0 {
			greens, used = append(greens, st.handle), append(used, st.handle)
		}
	}
	leave := s.users.enter(used...)
	s.watch.group.Go(func() {
		runtime.LockOSThread() // the thread ends with its context bindings
		defer leave()
		for _, h := range handles {
			res := s.drv.CtxSetCurrent(h)
			if res == cuda.Success {
				res = s.note(s.drv.CtxSynchronize())
			}
			if res != cuda.Success && !res.Sticky() {
				done <- res
				return
			}
		}
		for _, st := range greens {
			if res := s.note(s.drv.StreamSynchronize(st)); res != cuda.Success && !res.Sticky() {
				done <- res
				return
			}
		}
		done <- cuda.Success
	})
	select {
	case <-ctx.Done():
		return fmt.Errorf("the GPU still works for this session: %w", ctx.Err())
	case res := <-done:
		if res != cuda.Success {
			return fmt.Errorf("wait for the GPU: %w", res)
		}
	}
	s.watch.settle()
	return s.detach()
}

// detach unregisters all regions until the next operation.
func (s *session) detach() error {
	if len(s.regions) == 0 {
		return nil
	}
	for id, c := range s.ctxs.m {
		if c.handle.IsZero() {
			continue
		}
		if res := s.useContext(id); res != cuda.Success {
			return fmt.Errorf("let go of guest memory: %w", res)
		}
		break
	}
	for id := range s.regions {
		// A poisoned context refuses; then nothing of it runs any more either.
		if res := s.unregister(id); res != cuda.Success && !res.Sticky() {
			return fmt.Errorf("let go of region %d: %w", id, res)
		}
		s.detached = append(s.detached, id)
	}
	s.current = 0 // every operation now passes use
	return nil
}

// attach registers what detach let go of. The current context is set.
func (s *session) attach() cuda.Result {
	var absent []uint32
	for ; len(s.detached) > 0; s.detached = s.detached[1:] {
		reg, ok := s.host.Region(s.detached[0])
		if ok && (reg.Mem == nil || reg.Away) {
			absent = append(absent, reg.ID)
			continue
		}
		if !ok {
			continue
		}
		if _, res := s.register(reg); res != cuda.Success {
			s.detached = append(s.detached, absent...)
			return res
		}
	}
	s.detached = absent
	return cuda.Success
}
