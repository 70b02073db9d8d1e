package worker

import (
	"causeway/host/worker/state"
	"causeway/remote"
	"causeway/remote/frame"
	"causeway/remote/relay"
	"causeway/remote/resume"
	"causeway/remote/shm"
)

// relayedState is a session that is passed on, as its relay writes it for another.
type relayedState struct {
	Lease   remote.LeaseID // whose worker it has
	Session remote.SessionID
	Head    uint64 // of the guest's ring
	Regions []shm.RegionState
	Stream  resume.State
	Relay   relay.State
}

// relayedMagic opens the state of a session that is passed on.
const (
	relayedMagic   = 0x52535743 // "CWSR"
	relayedVersion = 5
	mostReads      = 4096
	mostChanges    = 8192
)

func (s *relayedState) write(w *state.Writer) {
	w.U32(relayedMagic)
	w.U32(relayedVersion)
	w.U32(remote.ProtocolVersion)
	w.Bytes(s.Lease[:])
	w.Bytes(s.Session[:])
	w.U64(s.Head)
	writeRegions(w, s.Regions)
	writeStream(w, s.Stream)
	w.Bool(s.Stream.Lifted)
	w.U64(s.Relay.Sent)
	w.U64(s.Relay.Head)
	w.Bytes(s.Relay.Unread)
	writeAsked(w, s.Relay.Reads)
	for _, list := range [][]relay.Change{s.Relay.Regions, s.Relay.Untold} {
		w.U32(uint32(len(list)))
		for _, c := range list {
			w.U32(c.ID)
			w.U64(c.VA)
			w.U64(c.Size)
		}
	}
	w.U32(s.Relay.Wanted)
	w.Bool(s.Relay.Rounds)
	w.Bool(s.Relay.Rehearses)
	w.U32(uint32(len(s.Relay.Branches)))
	for n, b := range s.Relay.Branches {
		writeStream(w, s.Stream.Branches[n])
		w.Bytes(b.Unread)
		w.U32(b.Wrote)
		writeAsked(w, b.Answering)
	}
}

func writeStream(w *state.Writer, s resume.State) {
	w.Bytes(s.Secret[:])
	w.U64(s.Attempt)
	w.U64(s.Got)
	w.Bytes(s.Head)
	w.U64(s.Left)
	w.U64(s.Start)
	w.Bytes(s.Kept)
	w.U64(s.Reached)
}

func readStream(r *state.Reader, kept uint64) (s resume.State) {
	fixed(r, s.Secret[:])
	s.Attempt, s.Got = r.U64(), r.U64()
	s.Head, s.Left = r.Bytes(frame.HeaderSize), r.U64()
	s.Start, s.Kept = r.U64(), r.Bytes(kept)
	s.Reached = r.U64()
	return s
}

func writeAsked(w *state.Writer, list []relay.Asked) {
	w.U32(uint32(len(list)))
	for _, r := range list {
		w.U64(r.ID)
		w.U32(r.Region)
		w.U64(r.Offset)
		w.U64(r.Size)
	}
}

func readAsked(r *state.Reader) (list []relay.Asked) {
	for range r.Count(mostReads, itemBytes) {
		list = append(list, relay.Asked{ID: r.U64(), Extent: frame.Extent{Region: r.U32(), Offset: r.U64(), Size: r.U64()}})
	}
	return list
}

// readRelayed reads what write wrote. Whether a session can go on with it is for resume and relay
// to say.
func readRelayed(r *state.Reader) (*relayedState, error) {
	if r.U32() != relayedMagic && r.Err() == nil {
		r.Refuse("not the state of a session that is passed on")
	}
	if v := r.U32(); v != relayedVersion && r.Err() == nil {
		r.Refuse("state of a session that is passed on of version %d, this host reads %d", v, relayedVersion)
	}
	if v := r.U32(); v != remote.ProtocolVersion && r.Err() == nil {
		r.Refuse("session of protocol version %d, this host speaks %d", v, remote.ProtocolVersion)
	}
	s := &relayedState{}
	fixed(r, s.Lease[:])
	fixed(r, s.Session[:])
	s.Head = r.U64()
	s.Regions = readRegions(r)
	s.Stream = readStream(r, resume.MostKept)
	s.Stream.Lifted = r.Bool()
	s.Relay.Sent, s.Relay.Head = r.U64(), r.U64()
	s.Relay.Unread = r.Bytes(relay.MostUnread)
	s.Relay.Reads = readAsked(r)
	s.Relay.Regions = readChanges(r, shm.MaxRegions)
	s.Relay.Untold = readChanges(r, mostChanges)
	s.Relay.Wanted, s.Relay.Rounds, s.Relay.Rehearses = r.U32(), r.Bool(), r.Bool()
	for range r.Count(resume.MostBranches, itemBytes) {
		s.Stream.Branches = append(s.Stream.Branches, readStream(r, resume.MostBranchKept))
		b := relay.Branch{Unread: r.Bytes(relay.MostUnread), Wrote: r.U32(), Answering: readAsked(r)}
		if len(b.Answering) > 1 && r.Err() == nil {
			r.Refuse("a branch that answers %d READs at once", len(b.Answering))
		}
		s.Relay.Branches = append(s.Relay.Branches, b)
	}
	switch {
	case r.Err() != nil:
	case s.Session == remote.SessionID{}:
		r.Refuse("a session without a name")
	case s.Relay.Wanted > resume.MostBranches:
		r.Refuse("%d branches", s.Relay.Wanted)
	case s.Head != s.Relay.Sent:
		r.Refuse("%d bytes of the ring are taken, %d sent", s.Head, s.Relay.Sent)
	}
	return s, r.Err()
}

// fixed reads bytes whose number is known.
func fixed(r *state.Reader, b []byte) {
	if n := copy(b, r.Bytes(uint64(len(b)))); n != len(b) && r.Err() == nil {
		r.Refuse("%d bytes where %d are to be", n, len(b))
	}
}

func readChanges(r *state.Reader, most uint32) (list []relay.Change) {
	for range r.Count(most, itemBytes) {
		list = append(list, relay.Change{ID: r.U32(), VA: r.U64(), Size: r.U64()})
	}
	return list
}
