package exec

import "causeway/host/driver/soft/ptx"

// lanes is one register of a warp: a column per thread. Only the low bits that
// the instruction's type covers are meaningful; every read truncates, so writes
// may leave anything above.
type lanes = [32]uint64

const fullMask = 0xffffffff

// opFn executes one operation for the active lanes of w.
type opFn func(w *warp, o *op)

// op is one flat operation. d, a, b, c are register slots of the current
// frame, p and q predicate slots; which are used is fn's business.
type op struct {
	fn         opFn
	d, a, b, c int32
	p, q       int32
	imm        uint64
	line       int32
	x          *opExtra
}

// opExtra is what only few operations need.
type opExtra struct {
	inner   op      // guarded: what to run
	not     bool    // guarded: invert the predicate
	vec     []int32 // vector operands; -1 for a sink
	f1      func(a uint64) uint64
	f2      func(a, b uint64) uint64
	f3      func(a, b, c uint64) uint64
	cmp     func(a, b uint64) bool
	compare compare
	carry   carryKind
	space   ptx.Space // of a memory access
	size    uint64    // bytes of a memory access
	srcOff  uint64    // cp.async: offset of the source
	signed  bool      // ld.param: extend the sign
	text    string
	image   *imageOp // textures and surfaces

	product  *product        // of matrices
	fragment *fragmentAccess // wmma.load and wmma.store
	bulk     *bulkCopy       // cp.async.bulk
}

// termKind says how a block ends.
type termKind uint8

const (
	termJump    termKind = iota // to next
	termBranch                  // lanes with pred to taken, the rest to next
	termIndexed                 // brx.idx: lane's register picks from targets
	termCall                    // continue at next after the callee returned
	termRet                     // return from the function
	termExit                    // end the threads
	termSync                    // wait for the lanes named in a register, then next
	termBarrier                 // block barrier, then next
)

// block is a basic block. Blocks are numbered in scheduling priority: when
// lanes of a warp are at different blocks, the lowest number runs first, and
// order.go sees to it that this makes them meet again.
type block struct {
	ops     []op
	term    termKind
	next    int32
	taken   int32
	pred    int32
	not     bool
	reg     int32 // termIndexed: index; termSync: member mask
	targets []int32
	call    *callSite
	bar     *barrierSite
	line    int32
}

// callSite is a call with its argument traffic, as byte ranges in the local
// frames of caller and callee.
type callSite struct {
	target *code // nil: indirect
	reg    int32 // indirect: slot with the function's address
	args   []argument
	rets   []argument
	line   int32
}

// argument is one parameter at a call: a .param variable of the caller, or a
// register.
type argument struct {
	off  uint64 // in the caller's frame
	size uint64
	reg  int32 // -1: in memory
}

// slotArg is a parameter of a callee, in its frame or in a register.
type slotArg struct {
	off  uint64
	size uint64
	reg  int32
}

// code is a lowered function, immutable once Load returned.
type code struct {
	name     string
	index    int // position in Module.funcs
	blocks   []block
	consts   []uint64 // values of the last slots, the same in all lanes
	slots    int      // register slots, constants included
	preds    int
	frame    uint64 // bytes of local memory per thread and call
	params   []slotArg
	rets     []slotArg
	calls    []*code // direct callees
	indirect bool    // calls through pointers
	taken    bool    // its address is used: a call through a pointer may get here
	shared   []*sharedVar
	reserved bool // reads where the system's shared memory lies
	pressure int  // registers live at once, in units of 32 bits
	err      error
	builtin  func(w *warp, s *callSite)
	defined  bool
}

// sharedVar is a variable in shared memory. Its offset depends on the kernel,
// since each kernel places only those it can reach.
type sharedVar struct {
	v     *ptx.Var
	index int
}
