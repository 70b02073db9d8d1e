// Package soft is a CUDA device made of CPU cores: driver.Backend for machines without a GPU.
// Subpackage ptx decodes device code, exec runs kernels; this package is everything between them
// and the driver interface: contexts, memory, streams, events, modules, launches.
//
// Owners: the worker goroutine calls every operation and owns the tables, the contexts and what
// hangs on them. Work becomes tasks in a queue; a task whose predecessors are done runs on a
// goroutine that lives while there is such work. Tasks touch memory, the queue, a context's sticky
// error and driver.Host, nothing else.
//
// Device addresses are addresses of this process, in an arena at a fixed place, so that they can be
// had again in another process. No address from the guest is used before space has found the live
// allocation around it.
//
// Locks: space.mu and queue.mu, never both held.
package soft
