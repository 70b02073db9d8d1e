package device

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"causeway/host/api"
	"causeway/host/inventory"
	"causeway/host/limit"
	"causeway/host/schedule"
	"causeway/host/schedule/memory"
	"causeway/host/worker/link"
	"causeway/host/worker/spawn"
	"causeway/remote/sys"
	"causeway/vhostuser"
	"causeway/virtio"
	"causeway/virtio/fs"
)

// Limits of one VM.
const (
	maxRegions    = 256       // per session
	maxPieces     = 16384     // per session
	maxDeclared   = 256 << 30 // bytes per session
	maxWaits      = 1024      // pending waits per session
	requestQueues = 1
)

// Options of a Device.
type Options struct {
	Tree    Tree
	Worker  link.Config // what every worker of the VM is told
	Spawner *spawn.Spawner
	Pool    *spawn.Pool // workers that are ready; may be nil
	// Machine says how the GPUs are, for the guest's NVML; nil: NVML tells names only.
	Machine func(ctx context.Context) (*inventory.Reading, error)
	// Limits hold until SetLimits changes them. Their memory and sessions are kept here; share and
	// cap are the scheduler's.
	Limits api.Limits
	// CheckMemory says what is wrong with a limit of memory on this GPU; may be nil.
	CheckMemory func(limit.Memory) error
	UUID        string // of the GPU, for Status
	// Scheduler makes the virtual GPU a member at the scheduler of GPU time; nil, or if it returns
	// nil: GPU time is not shared. It is an error if the limits name what would not hold.
	Scheduler func(api.Limits) (*schedule.Membership, error)
	// Audit is how often the memory in use is compared with what Machine says of it; 0: never, as
	// for software GPUs.
	Audit time.Duration
	// Swap: sessions have no room on the GPU until SetRoom gives it, for which they wait.
	Swap bool
	// SuspendTo is the folder that holds suspended sessions for which nobody names another; empty:
	// the host's memory does.
	SuspendTo string
	// Leave is called when the virtual GPU has left the GPU that it began with; may be nil.
	Leave func()
	// Elsewhere finds another GPU of this host for Relocate, and judges it; nil: there is none.
	Elsewhere func(ctx context.Context, from *Place, to api.Relocation) (*Place, error)
	// FarMachine is Machine for the GPU of a server to which the programs go; nil: it stays what it
	// is.
	FarMachine func(api.Upstream) func(ctx context.Context) (*inventory.Reading, error)
	// Reached hears of the parts of a session's move as they begin, and may hold them up; nil:
	// nobody does. It is for tests of what is killed then.
	Reached func(part string)
	// Idle hears that the last session has gone, at most once a second; nil: nobody does.
	Idle func()
	// LoanTerm is how long the guest's pages are lent without being renewed; 0: loanTerm. Longer
	// is for tests whose guest has no kernel, and renews when the machine has time for it.
	LoanTerm time.Duration
	// Leased: another host has it, whose programs' connections ServeLease takes. There is no VM,
	// and no Tree.
	Leased bool
	// Programs: it is for programs of this host, whose connections ServePrograms takes. There is no
	// VM.
	Programs bool
	// Keeper answers the guest when this process has died; nil: nobody does.
	Keeper *Keeper
	Log    *slog.Logger
}

// Device is one VM's virtual GPU.
type Device struct {
	mem  *vhostuser.Memory
	fs   *fs.Device
	opts Options
	log  *slog.Logger

	workers workers
	hands   chan struct{} // one for each extent that is being copied

	budget *memory.Page  // the GPU's memory, of all sessions
	host   *memory.Page  // the host's memory that requests hold
	apart  apart         // what rehearsals have beside them
	door   *door         // through which they come
	starts chan struct{} // one for each worker that starts
	comes  chan struct{} // one for each that starts for a session that comes with its VM
	audit  audit
	card   card // by the driver's account

	telling sync.Mutex // orders what workers are told of the limit; before mu

	began     time.Time
	connected atomic.Bool // a front end is
	looking   looking     // whether a VM that moves can

	departs    chan struct{}           // a migration has begun: for who waits for that
	along      chan another            // connections for pre-copies; nothing waits in it
	out        atomic.Pointer[copyOut] // nil: no memory goes ahead
	in         copyIn                  // nor comes
	copyRounds atomic.Uint64           // numbers the rounds of all pre-copies
	// Of pre-copies that have ended: bytes that went ahead, and why the last did. mu is held.
	copied uint64
	// copySaved is what compression saved of it.
	copySaved uint64
	copyEnd   string
	saveEnd   string // why the VM's state could not be saved last; mu is held

	relocating sync.Mutex // held by who moves all sessions to another GPU

	mu         sync.Mutex
	at         *Place
	relocation progress
	turn       turn // to another GPU server
	rooms      rooms
	stays      stays
	limits     api.Limits
	hand       handing              // who may take over the lease of the GPU server
	upstream   api.UpstreamState    // how the GPU server is, as was said last
	member     *schedule.Membership // nil: none
	admitted   int                  // sessions that count
	departed   chan struct{}        // closed when one counts no more; nil: nobody waits for that
	users      map[uint32]guestUser
	sessions   map[*session]struct{}
	opened     chan struct{} // tells routineTick of a first session; one message is enough
	last       uint64
	begun      uint64 // sessions that were let in
	refused    uint64
	past       api.Counters   // of sessions that have ended
	ending     sync.WaitGroup // sessions whose worker is not gone yet

	lendable lendable    // the guest's queue
	crowded  func() bool // whether the host is short of CPU now
}

var _ fs.ControlFile = (*Device)(nil)

// New makes the device. Serve runs it.
func New(o Options) (*Device, error) {
	d := &Device{crowded: crowded, mem: vhostuser.NewMemory(), workers: spawned{}, opts: o, at: o.firstPlace(), log: o.Log, sessions: map[*session]struct{}{}, users: map[uint32]guestUser{}, opened: make(chan struct{}, 1),
		hands: make(chan struct{}, copyHands(runtime.NumCPU())), starts: make(chan struct{}, startsAtOnce()), comes: make(chan struct{}, arrivalsAtOnce), door: newDoor(), departs: make(chan struct{}, 1), along: make(chan another), began: time.Now(), limits: withDefaults(o.Limits)}
	var nvml fs.ControlFile
	if o.Machine != nil {
		nvml = newNVMLFile(d.inventory(), o.Log)
	}
	err := o.Limits.Check()
	if err != nil {
		return nil, err
	}
	if d.budget, err = memory.New(o.Limits.Memory); err != nil {
		return nil, err
	}
	runtime.AddCleanup(d, func(p *memory.Page) { p.Close() }, d.budget)
	d.countKept(d.at)
	if o.Swap {
		d.budget.SetRoom(noRoom)
	}
	if d.host, err = memory.New(d.limits.HostMemory); err != nil {
		return nil, err
	}
	runtime.AddCleanup(d, func(p *memory.Page) { p.Close() }, d.host)
	if d.apart, err = newApart(d.limits); err != nil {
		return nil, err
	}
	runtime.AddCleanup(d, apart.close, d.apart)
	if o.Scheduler != nil {
		if d.member, err = o.Scheduler(d.limits); err != nil {
			return nil, err
		}
	}
	if d.opts.LoanTerm == 0 {
		d.opts.LoanTerm = loanTerm
	}
	if d.opts.Reached == nil {
		d.opts.Reached = func(string) {}
	}
	if d.opts.Idle == nil {
		d.opts.Idle = func() {}
	}
	if o.Leased || o.Programs {
		return d, nil
	}
	root, err := o.Tree.build(d, nvml, func() shown { return shown{d.place().GPU, d.Limits().Memory, d.largestRead()} })
	if err != nil {
		return nil, err
	}
	var track func(int) *virtio.InFlight
	if o.Keeper != nil {
		track = o.Keeper.inFlight
	}
	d.fs, err = fs.New(d.mem, root, fs.Options{
		RequestQueues: requestQueues, MaxHandles: mostSessions + mostOthers, Logger: o.Log, Track: track,
		OnDisconnect: func() {
			d.log.Info("VM is gone")
			d.in.unclaimed(func(a *arrival) bool { return a.whole })
			if o := d.out.Load(); o != nil {
				o.end(errVMGone)
			}
		},
		OnReset: func() { d.log.Info("VM was reset") },
	})
	if err != nil {
		return nil, err
	}
	d.mem.Observe(d) // after fs: pages come back before the worker hears that their memory goes
	return d, nil
}

// Serve serves front ends on ln until ctx ends, then ends all sessions.
func (d *Device) Serve(ctx context.Context, ln *net.UnixListener) error {
	tick, stop := context.WithCancel(ctx)
	defer stop()
	var wg sync.WaitGroup
	wg.Go(func() { d.routineTick(tick) })
	wg.Go(d.fs.SumTree) // not when a VM moves and stands
	wg.Go(func() { d.routineAudit(tick) })
	o := vhostuser.Options{Logger: d.log, Front: d.connected.Store, Logging: func() { d.begins(tick) }}
	if d.opts.Keeper != nil {
		o.Mirror = d.opts.Keeper
	}
	err := vhostuser.NewServer(d.mem, telling{d.fs, d}, o).Serve(ctx, ln)
	stop()
	wg.Wait()
	d.ending.Wait()
	d.membership().Close()
	return err
}

// Open implements fs.ControlFile.
func (d *Device) Open(c fs.Caller) (fs.ControlHandle, syscall.Errno) {
	d.mu.Lock()
	defer d.mu.Unlock()
	// Files that nobody begins a session with take room from others, too.
	if len(d.sessions) >= mostSessions || c.UID != 0 && d.users[c.UID].opened >= mostSessions/2 {
		d.refused++
		return nil, syscall.EMFILE
	}
	d.userLocked(c.UID, func(u *guestUser) { u.opened++ })
	d.last++
	s := newSession(d, d.last, c)
	d.sessions[s] = struct{}{}
	select {
	case d.opened <- struct{}{}:
	default: // routineTick is told already
	}
	d.ending.Add(1)
	go func() {
		defer d.ending.Done()
		s.routine()
	}()
	return s, 0
}

// refusedOne counts a session that a limit refused.
func (d *Device) refusedOne() {
	d.mu.Lock()
	d.refused++
	d.mu.Unlock()
}

func (d *Device) forget(s *session) {
	d.mu.Lock()
	delete(d.sessions, s)
	d.userLocked(s.caller.UID, func(u *guestUser) { u.opened-- })
	d.mu.Unlock()
}

func (d *Device) all() []*session {
	d.mu.Lock()
	defer d.mu.Unlock()
	list := make([]*session, 0, len(d.sessions))
	for s := range d.sessions {
		list = append(list, s)
	}
	return list
}

// Terms. Guests renew every second. A killed process leaves when its loans have lapsed and its
// worker has let go of them: within two seconds of its end. A loan that lapses too early costs its
// session no more than a pause.
const (
	loanTerm = 1700 * time.Millisecond
	waitTerm = time.Second

	longestNap  = waitTerm // what comes during a nap is not due before its end
	shortestNap = 10 * time.Millisecond
)

// routineTick ends what is overdue, when it is, while there are sessions.
func (d *Device) routineTick(ctx context.Context) {
	t := time.NewTimer(longestNap)
	defer t.Stop()
	for had := false; ; {
		list := d.all()
		if len(list) == 0 {
			t.Stop()
			if had {
				had = false
				d.opts.Idle()
			}
			select {
			case <-ctx.Done():
				return
			case <-d.opened:
				t.Reset(longestNap)
			}
			continue
		}
		select {
		case <-ctx.Done():
			return
		case now := <-t.C:
			had = true
			d.unattendedNeeds(now)
			next := now.Add(longestNap)
			for _, s := range list {
				s.tick(now)
				if due := s.due(); !due.IsZero() && due.Before(next) {
					next = due
				}
			}
			t.Reset(max(time.Until(next), shortestNap))
		}
	}
}

// backedMemory is the VM's memory for a worker: descriptors are duplicates, the caller's to close.
func (d *Device) backedMemory() ([]link.BackedMemory, []int, error) {
	v := d.mem.View()
	defer v.Release()
	var mem []link.BackedMemory
	var files []int
	for _, r := range v.Regions() { // others' descriptors may be closed, and their numbers taken
		fd, err := syscall.Dup(r.FD())
		if err != nil {
			sys.CloseAll(files)
			return nil, nil, fmt.Errorf("guest memory: %w", err)
		}
		syscall.CloseOnExec(fd)
		mem = append(mem, link.BackedMemory{MemoryRegion: regionOf(r), File: fd})
		files = append(files, fd)
	}
	return mem, files, nil
}

func regionOf(r *vhostuser.Region) link.MemoryRegion {
	return link.MemoryRegion{GPA: r.GPA(), Size: r.Size(), Offset: r.Offset()}
}

// MemoryAdded implements vhostuser.Observer.
func (d *Device) MemoryAdded(r *vhostuser.Region) {
	d.boundInPlace(nil)
	m := link.AddMemory{Memory: []link.BackedMemory{{MemoryRegion: regionOf(r), File: r.FD()}}}
	for _, s := range d.all() {
		s.send(m)
	}
}

// MemoryRemoving implements vhostuser.Observer.
func (d *Device) MemoryRemoving(r *vhostuser.Region) {
	d.boundInPlace(r)
	for _, s := range d.all() {
		s.send(link.RemoveMemory{GPA: r.GPA()})
	}
}

// boundInPlace has programs' managed memory that lies on the host in place of the VM's own (the
// worker's reserveInPlace) be no more, all together, than the VM has memory, but for what leaves
// it. A VM whose last memory leaves is gone, or about to have other.
func (d *Device) boundInPlace(leaving *vhostuser.Region) {
	var all uint64
	for _, r := range d.mem.Regions() {
		if r != leaving {
			all += r.Size()
		}
	}
	if all > 0 {
		d.host.SetPart(all)
	}
}
