package exec

import (
	"causeway/host/driver/soft/ptx"
)

// AddressSpace is the set of live device allocations. Find must be safe for
// concurrent use and quick: a warp asks whenever it leaves the ranges it saw
// last. An answer is used for the rest of the block at most.
type AddressSpace interface {
	// Find returns the live allocation that contains addr.
	Find(addr uint64) (base, size uint64, writable, ok bool)
}

// Heap is where kernels get memory by malloc. Calls may come from several
// goroutines at once.
type Heap interface {
	Malloc(size uint64) (addr uint64) // 0: there is none left
	Free(addr uint64) bool            // false: not what Malloc gave
}

// AllocFunc provides memory for a module variable. mem is the memory at addr
// as host bytes, len(mem) == size; Load fills it with the initialiser and
// keeps no reference. nil: the memory holds what it is to hold. space is ptx.Global or ptx.Const.
type AllocFunc func(name string, size, align uint64, space ptx.Space) (addr uint64, mem []byte, err error)

// Global is a module variable visible to the driver (cuModuleGetGlobal).
type Global struct {
	Name    string
	Space   ptx.Space // ptx.Global or ptx.Const
	Addr    uint64
	Size    uint64
	Managed bool // declared __managed__
}

// Param is one kernel parameter's place in Config.Params.
type Param struct{ Offset, Size, Align uint64 }

// Attributes are a kernel's numbers as cuFuncGetAttribute reports them.
type Attributes struct {
	SharedBytes        uint32 // static shared memory per block
	ConstBytes         uint64 // user constant memory of the module
	LocalBytes         uint64 // local memory per thread
	Registers          uint32 // estimate from register pressure, at most 255
	MaxThreadsPerBlock uint32 // 1024 or what .maxntid/.reqntid allow
	PTXVersion         int    // for example 90
	BinaryVersion      int    // for example 90
	RequiredBlock      [3]uint32
	RequiredCluster    [3]uint32 // zero: none
	ExplicitCluster    bool      // launches must give a cluster
}

// Config describes one launch.
type Config struct {
	Grid, Block [3]uint32
	Cluster     [3]uint32 // blocks of a cluster; zero: what the kernel says, or none
	DynShared   uint32    // bytes of dynamic shared memory
	Params      []byte    // packed parameters; may be longer than needed, not shorter
	Space       AddressSpace
	Textures    Textures // nil: there are none
	Heap        Heap     // nil: malloc in kernels finds no memory
	// Printf receives each formatted device printf. Calls may come from several
	// goroutines at once; nil discards the text.
	Printf func(text []byte)
	// SetConditional receives what kernels in graphs decide by cudaGraphSetConditional. Calls may
	// come from several goroutines.
	SetConditional func(handle uint64, value uint32)
	// Cores bounds the goroutines running blocks; 0 means GOMAXPROCS.
	Cores int
	// StackBytes bounds the local memory of a thread, all call frames together;
	// 0 means 512 KiB.
	StackBytes uint64
	// Cooperative makes all blocks resident at once, so that they may wait for
	// each other.
	Cooperative bool
	GridID      uint64 // %gridid
	SMs         uint32 // %nsmid; 0 means Cores
	depth       int    // of launches by kernels

	// Stats, if not nil, receives counts when Launch returns, also on error.
	Stats *Stats
}

// Stats counts work done by a launch.
type Stats struct {
	WarpInstructions uint64 // instructions issued for a warp or part of it
	LaneInstructions uint64 // the same times active lanes
}

// Kernels returns all kernels in source order.
func (m *Module) Kernels() []*Kernel { return m.kernels }

// Globals returns the module's variables in source order.
func (m *Module) Globals() []Global { return m.globals }

// Name is the kernel's (mangled) name.
func (k *Kernel) Name() string { return k.name }

// Params returns the parameters' layout; the caller must not change it.
func (k *Kernel) Params() []Param { return k.params }

// ParamBytes is the length Config.Params must have at least.
func (k *Kernel) ParamBytes() uint64 { return k.bytes }

// Unsupported returns why no launch of the kernel can succeed, usually an
// *UnsupportedError, or nil.
func (k *Kernel) Unsupported() error { return k.err }

// UsesHeap reports whether the kernel can reach malloc or free.
func (k *Kernel) UsesHeap() bool { return k.heap }

// Attributes returns the kernel's attributes.
func (k *Kernel) Attributes() Attributes { return k.attrs }
