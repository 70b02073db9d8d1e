package main

import (
	"testing"
	"time"

	"causeway/host/api"
)

// TestMoveSays: how far a move to another GPU server is, and what it came to, in words that people
// and scripts read.
func TestMoveSays(t *testing.T) {
	round := api.CopyRound{Looked: 512 << 20, Sent: 128 << 20, Took: 500 * time.Millisecond}
	for want, got := range map[string]string{
		"vm1/gpu0: round 2: 128 MiB changed of 512 MiB, in 0.50 s (256 MiB/s)":                                                             movedSoFar("vm1/gpu0", api.Progress{Of: 2, Rounds: 1}, api.Progress{Of: 2, Rounds: 2, Last: round}),
		"vm1/gpu0: round 1: 0 B changed of 512 MiB, in 0.00 s":                                                                             movedSoFar("vm1/gpu0", api.Progress{}, api.Progress{Rounds: 1, Last: api.CopyRound{Looked: 512 << 20}}),
		"vm1/gpu0: rehearsing: 1 of 2 programs have been made at the other GPU server":                                                     movedSoFar("vm1/gpu0", api.Progress{}, api.Progress{Done: 1, Of: 2, Rehearsing: true}),
		"vm1/gpu0: 1 of 2 programs are taken care of":                                                                                      movedSoFar("vm1/gpu0", api.Progress{Of: 2, Rounds: 2, Last: round}, api.Progress{Done: 1, Of: 2, Rounds: 2, Last: round}),
		", of which they stood for 23ms at most, 1 GiB having gone ahead (rounds: 2)":                                                      stoodOf(&api.Relocated{Sessions: 2, Stood: uint64(23 * time.Millisecond), Rounds: 2, Ahead: 1 << 30}),
		"vm1/gpu0: round 5: 128 MiB changed of 512 MiB, in 0.50 s (256 MiB/s); its programs' GPU work is held back for 20 % of the time":   movedSoFar("vm1/gpu0", api.Progress{Of: 2, Rounds: 4}, api.Progress{Of: 2, Rounds: 5, Last: round, Throttled: 20}),
		", of which they stood for 23ms at most, 1 GiB having gone ahead (rounds: 9) while they were held back for up to 30 % of the time": stoodOf(&api.Relocated{Sessions: 2, Stood: uint64(23 * time.Millisecond), Rounds: 9, Ahead: 1 << 30, Held: 30}),
		", of which they stood for 2s at most":                                                                                             stoodOf(&api.Relocated{Sessions: 2, Stood: uint64(2 * time.Second)}),
		"":                                                                                                                                 stoodOf(&api.Relocated{}),
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
