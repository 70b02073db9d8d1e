// Package gate is the worker's side of shared GPU time: it holds back the operations of one session
// until the scheduler's grant lets them through, and measures how long the GPU works for the
// session.
//
// # What it costs
//
// While the session is free (nobody else wants the GPU, and there is no cap), Before compares one
// word with the last that it saw. While metered, it counts operations, and puts a fence behind
// every few of them, and behind the last when the ring runs empty. The number of operations between
// fences follows from what an operation has taken of late and how much may be in flight.
//
// # Goroutines
//
// The consumer of the ring calls Before, After and Rest. The listener sleeps in the kernel until
// the grant's word changes. The monitor sleeps until something changes or begins; then, until
// nothing of the session is on the GPU, it looks at the fences every 20 to 500 us, adds up the
// time, and tells the scheduler.
//
// Gate.mu guards the accounts; nothing is called with it held but the Gauge's Passed, and the
// bell's write.
package gate
