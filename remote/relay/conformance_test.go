package relay_test

import (
	"errors"
	"testing"

	"causeway/remote"
	"causeway/remote/frame"
	"causeway/remote/remotetest"
)

// TestConformance is what every carrier must pass.
func TestConformance(t *testing.T) {
	remotetest.Conformance(t, func() (remotetest.Ends, error) { return remotetest.Relayed(false) })
}

// TestConformanceOfVersions: an end that knows of branches, and one of a version that does not,
// have a session without.
func TestConformanceOfVersions(t *testing.T) {
	for name, n := range map[string][2]int{"relay of before": {0, remotetest.Branches}, "worker of before": {remotetest.Branches, 0}} {
		t.Run(name, func(t *testing.T) {
			remotetest.Conformance(t, func() (remotetest.Ends, error) { return remotetest.RelayedBeside(n[0], n[1]) })
		})
	}
}

// TestHeadGoesForward: a server that takes back what it has consumed would be sent too much, or too
// little.
func TestHeadGoesForward(t *testing.T) {
	r := newRig(t)
	if err := r.Append(record(64, 1)); err != nil {
		t.Fatal(err)
	}
	r.frame(t)
	for _, head := range []uint64{32, 32, 64} {
		r.say(t, frame.Header{Kind: frame.Head, Arg: head}, nil)
	}
	r.awaitWord(t, 1)
	r.say(t, frame.Header{Kind: frame.Head, Arg: 32}, nil)
	if err := r.end(t); !errors.Is(err, remote.ErrProtocol) {
		t.Errorf("ended with %v", err)
	}
	_ = r.Close()
	_ = r.server.Close()
}
