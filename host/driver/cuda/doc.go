// Package cuda runs a session's operations on the machine's NVIDIA driver. libcuda.so.1 is loaded
// at run time, so building needs no CUDA. It is called through package bind alone, whose types make
// sure that a guest's numbers were looked at.
//
// Owners: the worker goroutine, locked to its thread, calls every operation and owns the tables.
// The watcher goroutine, locked to a thread of its own, only queries streams and events of pending
// waits. The two share pending under watcher.mu; nothing else is shared.
//
// Waits cost the worker nothing: behind the work goes a stream memory operation aimed at the
// waiting thread's reply slot (or at a fence word when the reply carries bytes), so the GPU itself
// answers; the watcher wakes sleepers and finds the contexts that died before they could answer.
package cuda
