// Package worker executes one guest process's CUDA calls: it consumes the ring of a remote.Carrier,
// dispatches to a driver.Session, answers, and keeps the record from which another worker process
// could rebuild everything.
//
// # Goroutines
//
// The consumer (Worker.loop) owns the ring, the dispatcher, the blobs, the recorder and all calls
// into the driver. It is locked to an OS thread, spins for some microseconds while calls come, and
// then blocks that thread on the doorbell. An immediate reply involves no other goroutine and no
// allocation.
//
// The link goroutine (Worker.routineLink) reads what the parent process sends, and has the consumer
// run what concerns it: Worker.onLoop hands it a function, which it runs between two records.
//
// A driver answers wait operations, completes words and writes console text from goroutines of its
// own: Host and wire.Replier methods of Worker may be called from any.
//
// # Locks
//
// guestMu, then slot.mu; regionMu, console.mu and watch.mu are leaves. Whoever writes to guest
// memory outside the consumer holds guestMu for reading; parking holds it for writing until the
// loans are back.
//
// # The end
//
// A session ends when the guest process is gone, when its ring breaks a rule, or when the parent
// says so. Everything that it had dies with the process.
package worker
