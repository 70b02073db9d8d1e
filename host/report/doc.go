// Package report turns what causewayd and device processes say (package api) into text for people:
// tables, accounts of one vGPU, and the picture that `causeway top` draws. It computes rates from
// counters.
//
// Nothing here opens, waits or keeps a goroutine: readings and keys go in, lines come out. Names
// that guests choose pass clean, so that none of them can steer the operator's terminal.
package report
