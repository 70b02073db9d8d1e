// Package exec lowers a parsed PTX module to flat operations and executes
// kernels on the CPU. It knows nothing of streams, contexts or modules as the
// driver sees them: it is given memory, parameters and a grid, and runs.
//
// # Memory
//
// Device addresses are host virtual addresses; the caller's AddressSpace says
// which are live, and every access is checked against it. Shared, local and
// parameter memory have generic windows in the non-canonical half of the
// address range, which no allocation can reach (mem_unsafe.go). Constants lie
// in device memory.
//
// # Execution
//
// A worker runs blocks one after another (launch.go), the warps of a block in
// slices (block.go). A warp executes an operation for all its active lanes
// before the next operation (warp.go, ops_*.go). Where lanes diverge the warp
// splits, and the split at the lowest block of code runs first until it meets
// the others (sched.go, order.go). Threads make progress independently, as
// since sm_70: a split that spins is made to wait for one that it may be
// waiting for, and so are warps and blocks. Faults travel as a panic inside of
// the package and leave Launch as errors (raise.go).
//
// # Concurrency
//
// A Module and its Kernels are immutable after Load, so any number of Launch
// calls may run at once. Launch runs blocks on its caller's goroutine and on
// others of its own, all of which have ended when it returns. A block and its
// warps belong to one worker; workers share nothing but device memory, touched
// as the kernel touches it, the counters of the launch, and its mutex, which
// guards the first error and the statistics and is a leaf lock.
package exec
