// Package exec lowers a parsed PTX module to flat operations and executes
// kernels on the CPU. It knows nothing of streams, contexts or modules as the
// driver sees them: it is given memory, parameters and a grid, and runs.
//
// Device addresses are host virtual addresses; the caller's AddressSpace says
// which are live. Shared, local and parameter memory have generic windows in
// the non-canonical half of the address range, which no allocation can reach.
//
// A Module and its Kernels are immutable after Load, so any number of Launch
// calls may run at once. Launch runs blocks on its caller's goroutine and on
// others of its own, all of which have ended when it returns. There are no locks:
// blocks share nothing but device memory, touched as the kernel touches it,
// and an atomic block counter.
package exec
