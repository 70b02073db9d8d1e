// Package page is the memory through which a scheduler and a worker speak of GPU time: for each
// session a grant, which the scheduler writes and the worker reads, and a usage, the other way
// round. Both are shared pages, of memory files; who made them is the device process, so that they
// outlive a scheduler (see host/schedule).
//
// Nobody waits for an answer. The scheduler stores a new word into the grant and wakes those who
// sleep on it; the worker acts on the word that it sees, stores what became of it into the usage,
// and rings the scheduler's bell, an eventfd.
//
// # Trust
//
// Whoever maps a page may find anything in it at any time. The worker follows a grant, at worst to
// its own harm. The scheduler takes from a usage only what its own clock allows: see policy.Report.
package page
