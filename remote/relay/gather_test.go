package relay

import (
	"testing"

	"causeway/remote"
	"causeway/remote/frame"
)

// lateRing has records of which some come while they are looked for.
type lateRing struct {
	remote.Ring
	there, late []remote.Incoming
	looks       int
}

func (r *lateRing) Next(in *remote.Incoming) (bool, error) {
	if len(r.there) == 0 {
		return false, nil
	}
	*in = r.there[0]
	return true, nil
}

func (r *lateRing) Advance() bool {
	r.there = r.there[1:]
	return false
}

func (r *lateRing) Poll(int) bool {
	r.looks++
	if len(r.late) == 0 {
		return false
	}
	r.there, r.late = append(r.there, r.late[0]), r.late[1:]
	return true
}

// TestGatherWaits: what nobody waits for leaves with what follows at once, and is not held for
// long; what somebody waits for leaves.
func TestGatherWaits(t *testing.T) {
	call := remote.Incoming{Flags: remote.RecordReply, Bytes: make([]byte, 48)}
	launch := remote.Incoming{Bytes: make([]byte, 64)}
	for name, c := range map[string]struct {
		there, late []remote.Incoming
		bytes       int
		looks       int
	}{
		"nothing":                  {nil, []remote.Incoming{call}, 0, 0},
		"a call":                   {[]remote.Incoming{call}, []remote.Incoming{call}, 48, 0},
		"a launch alone":           {[]remote.Incoming{launch}, nil, 64, 1},
		"a launch and its wait":    {[]remote.Incoming{launch}, []remote.Incoming{call, call}, 112, 1},
		"launches without an end":  {[]remote.Incoming{launch}, []remote.Incoming{launch, launch, launch, launch}, 64 * (1 + holds), holds},
		"a call ahead of a launch": {[]remote.Incoming{call, launch}, []remote.Incoming{call}, 112, 0},
	} {
		r := &lateRing{there: c.there, late: c.late}
		s := &Session{ring: r, batch: make([]byte, frame.HeaderSize, 1024)}
		if full, err := s.gather(); full || err != nil || len(s.batch) != frame.HeaderSize+c.bytes || r.looks != c.looks {
			t.Errorf("%s: %d bytes after %d looks, %v, %v", name, len(s.batch)-frame.HeaderSize, r.looks, full, err)
		}
	}
}
