// Package daemon is causewayd, one per node: it starts a device process for each vGPU that somebody
// asks for, places it on a GPU, tells how all of them are, and keeps GPUs that report faults out of
// use. The API is that of package api.
//
// It is policy only. Device processes and the scheduler run detached: they and the VMs notice
// nothing when causewayd ends, and the next one finds them again from what it wrote about each,
// RUN/{vm}/{name}.json, checked against the process's id and start time and the process's own
// account of itself. What cannot be checked is reported, not guessed.
//
// Order of what is written: an intent, the process, its id. A causewayd that dies in between leaves
// an intent whose process answers at its control socket (and the kernel tells its id), or nobody
// does.
//
// Locks. A vGPU's lock is held by the one request that starts, changes or ends it, and may be held
// for long; Daemon.mu guards the tables and records, gpuBook.mu what is known of the GPUs: both are
// held for moments, never while anybody is asked. Order: lock, gpuBook.mu, Daemon.mu.
//
// Goroutines: one for each connection (net/http), one for each process that is watched, one that
// looks at GPUs' health and at the size of logs, one that reads the GPUs while somebody asks for
// them, one that keeps the scheduler running. Daemon.Close ends them all.
package daemon
