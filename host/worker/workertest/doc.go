// Package workertest is a guest process for tests, fuzzers and benchmarks of workers: it owns
// region 0 in a memfd, appends records as the guest library does, and waits for replies by
// spinning, then by futex.
//
// A Guest belongs to one goroutine, except that Call may run in several if each uses a slot of its
// own (Slot).
package workertest
