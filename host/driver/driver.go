package driver

import (
	"context"
	"errors"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"causeway/cuda"
	"causeway/cuda/wire"
)

// Backend is one kind of GPU that this machine can offer.
type Backend interface {
	// Name is what users type and see: "soft", "cuda".
	Name() string
	// Devices describes the GPUs, without creating contexts.
	Devices() ([]DeviceSummary, error)
	// Open starts the driver for one guest process. A worker process opens one session in its life.
	Open(h Host, o Options) (Session, error)
}

// DeviceSummary is what an operator wants to know of a GPU before using it.
type DeviceSummary struct {
	Index    int
	Name     string
	UUID     string // "GPU-xxxxxxxx-..."
	TotalMem uint64 // bytes
	PCIBusID string // "dddd:bb:dd.f"
	Compute  uint32 // major*10 + minor
	Reach    Reach
}

// Meter is a Session that can say what it uses. The worker calls it like an operation, between two
// of them.
type Meter interface {
	MemoryUse() []DeviceUse
}

// DeviceUse is device memory that a session has allocated.
type DeviceUse struct {
	UUID  [16]byte
	Bytes uint64
}

// Options are the choices made for a session before its guest process says anything.
type Options struct {
	Devices []int    // host ordinals offered to the guest, in guest order; nil: all
	Visible []string // names of Devices for the driver's environment: UUIDs; nil: their numbers
	// Bytes over all devices when the session opens, 0: no limit. What devices say they have.
	MemoryLimit uint64
	Budget      Budget // what holds while it runs; nil: MemoryLimit, for this session alone
	// Hears when the GPU works for the session, if the backend knows; nil: nobody asks.
	Busy  Clock
	Cores int // soft only: parallel blocks, 0: all
	// ReachWorker: sessions may start where kernels can address all memory of the process that
	// opened the GPU (DeviceSummary.Reach).
	ReachWorker bool
	// Migratable: what the session allocates gets addresses that another process can give out
	// again. The software GPU's always are.
	Migratable bool
	// Rehearsal: operations are replayed to see whether they can be. What a session that may move
	// allocates has addresses, and no memory.
	Rehearsal bool
}

// Clock keeps how long the GPU has worked for a session.
type Clock interface {
	// Begin says that the GPU has work again, End that it has none. They alternate; one follows the
	// other in order.
	Begin()
	End()
}

// Session executes one guest process's operations.
type Session interface {
	wire.Driver
	Snapshotter
	// Close frees everything. It waits for nothing that runs on the GPU.
	Close() error
}

// Snapshotter moves a session's memory between processes. Objects are rebuilt by replaying recorded
// operations with Call.Replay set; then memory is filled in.
type Snapshotter interface {
	// Quiesce returns when nothing runs or is queued on any stream.
	Quiesce(ctx context.Context) error
	// ExportMemory calls fn for each live allocation, module globals included.
	ExportMemory(fn func(addr, size uint64, r io.Reader) error) error
	// ImportMemory fills one allocation that a replayed operation has created.
	ImportMemory(addr, size uint64, r io.Reader) error
}

// Movable is a Session that can say beforehand that it cannot be rebuilt in another process, and
// why: what of it, by name. The worker calls it like an operation, between two of them; work may be
// queued.
type Movable interface {
	Movable() error
}

// Companion is a Session that can share memory and events with others of its virtual GPU. While it
// does it is rebuilt together with them, or not at all. The worker calls it like an operation,
// between two of them.
type Companion interface {
	// Shared says what is shared with other sessions, or may be; nil: nothing.
	Shared() error
	// Foreign lists the tokens of what others share with this session.
	Foreign() []ShareToken
	// Rejoin takes what others share with a session that was rebuilt. Replayed operations have only
	// taken the addresses and names of it: the others are rebuilt at the same time.
	Rejoin() error
}

// Precopier is a Session whose memory can be read while it works.
type Precopier interface {
	// ExportRunning is ExportMemory at any time, from any goroutine. What is freed while it is read
	// reads as ErrGone.
	ExportRunning(fn func(addr, size uint64, r io.Reader) error) error
}

// Summer is a reader of memory that ExportMemory or ExportRunning gives which has the GPU sum up
// what nobody has to read.
type Summer interface {
	// Sums fills sums with those of the blocks of size bytes from the next byte to the last, which
	// may be shorter: 128 bits under a key that guests do not know, zero for zeros only. It may
	// wait for the GPU's work, until ctx ends. errors.ErrUnsupported: these bytes must be read.
	Sums(ctx context.Context, block uint64, key [2]uint64, sums [][2]uint64) error
	// ReadSums reads p from the next byte on, with the sums of just these bytes: what is written
	// meanwhile is in both or in neither.
	ReadSums(p []byte, block uint64, key [2]uint64, sums [][2]uint64) error
	// Skip leaves the next n bytes out.
	Skip(n uint64)
}

// Expecter is a Session that takes memory before the operations that allocate it are replayed: of
// one that still runs elsewhere. The worker calls its methods like operations.
type Expecter interface {
	// Expects reports whether this session does at all; false: nothing below is to be called.
	Expects() bool
	// Expect puts zeros where a replayed operation will allocate size bytes. errors.ErrUnsupported:
	// this memory cannot be there before that.
	Expect(addr, size uint64) error
	// Fill reads a part of what was expected, and Zero clears it. Both reach it also when an
	// operation has allocated it since.
	Fill(addr, size uint64, r io.Reader) error
	Zero(addr, size uint64) error
	// Forget gives back what is expected no more.
	Forget(addr, size uint64) error
	// Landed is what ImportMemory is for memory that was not expected: an operation has allocated
	// it as expected, with its bytes in place.
	Landed(addr, size uint64) error
	// Settle waits until all bytes are in their place, and gives back what no operation has
	// allocated. Nothing is expected afterwards.
	Settle() error
}

// Lender is a Session whose memory another process of the same host can take over without copying
// it.
type Lender interface {
	// Lend lists memory of a session that stands still; nil: there is none, or too much of it. The
	// descriptors are the caller's. ExportMemory then leaves it out, until Keep, or the end of the
	// process.
	Lend() ([]Lent, error)
	Keep()
	// Borrow gives a session that is about to be rebuilt the memory that another has lent. It takes
	// over the descriptors. After an error none of it is used.
	Borrow([]Lent) error
	// Borrowed says, when it was rebuilt, whether its allocations lie in that memory.
	Borrowed() error
}

// Fetcher is a Lender on a GPU that can read the memory of another GPU of the host itself, over
// what links the two.
type Fetcher interface {
	Lender
	// Fetch copies what a session on another GPU has lent into the memory of this one, which was
	// rebuilt, and says how many bytes that were. It takes over the descriptors, and keeps nothing
	// of them. After an error all bytes have to come another way.
	Fetch([]Lent) (uint64, error)
}

// Lent is memory behind addresses of a device.
type Lent struct {
	Addr, Size uint64
	Dev        uint32
	File       int // descriptor
}

// CloseLent closes the descriptors of what was lent, for whoever has taken them over.
func CloseLent(list []Lent) {
	for _, l := range list {
		if l.File >= 0 {
			_ = unix.Close(l.File)
		}
	}
}

// Pinner is a Session that copies straight to and from memory of this process that the GPU reaches:
// what readers are asked to fill, and what fills memory, may lie there.
type Pinner interface {
	// Pin has the GPU reach mem, which is outside of Go's heap and stays until release. The worker
	// calls both like an operation.
	Pin(mem []byte) (release func(), err error)
}

// ErrGone says that memory was freed.
var ErrGone = errors.New("memory is gone")

// GraphKeeper is a Session of which a worker can describe graphs, and keep them after their end, so
// that another process can make them again, and what is executable of them.
type GraphKeeper interface {
	// Capturing reports whether a stream captures.
	Capturing() bool
	// HoldsPages reports whether what is executable refers to regions' pages as they were
	// registered when it was made.
	HoldsPages() bool
	// GraphRoot is the graph that no node owns and which a graph is, or is inside of; NodeRoot is
	// that of a node. 0: there is none.
	GraphRoot(graph wire.ID) wire.ID
	NodeRoot(node wire.ID) wire.ID
	// NodeSerial tells nodes apart that there are at the same time, whatever they are called; 0:
	// there is none of that id.
	NodeSerial(node wire.ID) uint64
	// CloneOf is the serial of the node of which a node is the clone; 0: of none that there is.
	// SetCloneOf makes it one.
	CloneOf(node wire.ID) (serial uint64)
	SetCloneOf(node, original wire.ID)
	// RenameGraph gives a graph another id, and fresh ones to what in it has a name; it tells which
	// graphs inside it were renamed. False: to is in use, or graph is none, and nothing has
	// changed.
	RenameGraph(graph, to wire.ID, fresh func() wire.ID, told func(old, name wire.ID)) bool
	// Unname takes ids away from nodes and child graphs, which then have none until a list asks for
	// them.
	Unname(ids []wire.ID)
}

// Host is the worker as a driver sees it.
type Host interface {
	// Region finds a region that RegionAdd made known. Region 0 is always there.
	Region(id uint32) (Region, bool)
	// CompleteWord stores value into a completion word of the control page and wakes no one: guests
	// poll it.
	CompleteWord(word, value uint32)
	// SetSticky poisons the session: the guest returns res from every later call.
	SetSticky(res cuda.Result)
	// Deferred leaves an asynchronous error for the next reply.
	Deferred(res cuda.Result)
	// Console takes output of device printf, in order.
	Console(text []byte)
	// ConsoleError takes what belongs on the program's standard error: the words of device asserts.
	ConsoleError(text []byte)
	// CallBack has the guest run the function that it knows as id, and returns when that has
	// returned, or when the session ends: then false, and the function may not have run. status is
	// for functions that are told one. Any goroutine; many at once.
	CallBack(id uint64, status cuda.Result) bool
}

// Direct is implemented by a Host that may have an adapter move bytes between a region and GPU
// memory, without this process's memory.
type Direct interface {
	// Direct reports whether it may be worth it for a copy of so many bytes.
	Direct(size uint64) bool
	// MoveDirect does what a copy through a region says, whose GPU memory lies in m; nothing else
	// may write there meanwhile. The bytes are there when it returns. false: nothing is under way,
	// and the copy is to be done as any other.
	MoveDirect(a *wire.MemcpyStagedArgs, m DeviceMemory) (done bool, err error)
	// ForgetDirect ends what adapters know of memory that is about to be freed. Nothing of it is
	// under way when it returns.
	ForgetDirect(address, size uint64)
	// NeverDirect says why memory of this GPU is nothing for an adapter.
	NeverDirect(why error)
}

// DeviceMemory is whole pages of one allocation of the session's.
type DeviceMemory struct {
	Address, Size uint64
	Serial        uint64 // no other allocation that was or will be at this address has it
	// Export makes a dma-buf of it, which begins at the offset.
	Export func() (f *os.File, off uint64, err error)
}

// ErrNoFiles says that no memory of a GPU's can be had as a dma-buf.
var ErrNoFiles = errors.New("the GPU's driver makes none")

// Holds reports whether a copy's GPU memory lies in it.
func (m *DeviceMemory) Holds(address, size uint64) bool {
	return address >= m.Address && address-m.Address <= m.Size && size <= m.Size-(address-m.Address)
}

// Region is memory of the guest process that it shared by declaration.
type Region struct {
	ID   uint32
	Kind uint32 // wire.RegionStaging, wire.RegionPinned; 0 for region 0
	VA   uint64 // address in the guest process
	Size uint64
	// Mem is the region mapped into this process, at VA if the region is pinned. nil: the carrier
	// cannot map. It stays mapped until the RegionDrop operation returns.
	Mem []byte
	// Away: the session is parked, and Mem has no pages. They come before the next operation of the
	// guest.
	Away bool
	// IO reads and writes the region through the carrier, also when Mem is nil.
	IO interface {
		io.ReaderAt
		io.WriterAt
	}
}

// StagedReader is implemented by a Region's IO that may have asked for the bytes of a copy to the
// GPU before its turn came.
type StagedReader interface {
	// ReadStaged reads the bytes that the copy names, all of them.
	ReadStaged(p []byte, a *wire.MemcpyStagedArgs) error
}

// StagedHolder is a StagedReader by which the bytes of copies to the GPU can come to memory that
// the driver has pinned.
type StagedHolder interface {
	// Landings is that memory, which stays as long as the process does, and to which bytes come
	// from now on; nil: there is none.
	Landings() []byte
	// HoldStaged waits for the bytes of a copy that come to Landings, and says where. They stay
	// there until let is called, once, from any goroutine; not behind an error. ok: they come
	// there.
	HoldStaged(a *wire.MemcpyStagedArgs) (offset uint64, let func(), ok bool, err error)
}

// Landings is StagedHolder's of the region's IO; nil: there is none.
func (r Region) Landings() []byte {
	if h, ok := r.IO.(StagedHolder); ok {
		return h.Landings()
	}
	return nil
}

// HoldStaged is StagedHolder's of the region's IO.
func (r Region) HoldStaged(a *wire.MemcpyStagedArgs) (offset uint64, let func(), ok bool, err error) {
	if h, ok := r.IO.(StagedHolder); ok {
		return h.HoldStaged(a)
	}
	return 0, nil, false, nil
}

// ReadStaged reads the bytes that a copy to the GPU names, all of them, through the carrier.
func (r Region) ReadStaged(p []byte, a *wire.MemcpyStagedArgs) error {
	if s, ok := r.IO.(StagedReader); ok {
		return s.ReadStaged(p, a)
	}
	_, err := r.IO.ReadAt(p, int64(a.Offset))
	return err
}
