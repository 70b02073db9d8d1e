// Package driver states what a GPU is to a worker: a Backend opens a Session, and a Session
// executes the operations of cuda/wire. host/driver/cuda does so with the machine's libcuda,
// host/driver/soft by executing PTX on the CPU.
//
// One worker goroutine, locked to its thread, calls a Session's operations, in ring order.
// Operations never block on the GPU: one that must wait takes Call.Later and finishes from another
// goroutine. Host methods may be called from any goroutine.
package driver
