package worker

import (
	"causeway/cuda/wire"
	"causeway/host/worker/link"
	"causeway/host/worker/state"
	"causeway/remote"
	"causeway/remote/shm"
)

// snapshot is a session without its memory, between two records of the ring.
type snapshot struct {
	Unix     *shm.UnixState // one of the two
	Virtiofs *virtiofsState
	Warm     bool // the worker started its driver ahead of the session

	Sticky, Deferred uint32
	Console          []byte
	ConsoleErrs      []byte
	ConsoleLost      bool
	Calls            callbackState
	Watch            watchState
	More             map[uint32][]byte // slots with replies that are not fetched completely
	Blobs            map[uint32]blobState
	Requests         []request
	Images           map[uint32][]byte // long bytes that requests refer to
	Graphs           graphsState
}

type blobState struct {
	Total uint64
	Bytes []byte
}

// request is an entry of the recorder.
type request struct {
	Record []byte
	Placed []uint64
}

// snapshotMagic opens a snapshot: what follows is of this version, and its requests are of the
// protocol's.
const (
	snapshotMagic   = 0x53535743 // "CWSS"
	snapshotVersion = 5
)

// Bounds of a snapshot. What one worker makes is within them; how much another keeps of it all is
// Reader's to say.
const (
	mostRequests = 64 << 20
	mostPlaced   = wire.MaxRecord
	mostImages   = 1 << 20
	mostMore     = 1 << 30 // bytes of a reply
	itemBytes    = 128     // that an item takes besides its bytes
)

// Carriers of a snapshot.
const (
	carrierUnix = iota + 1
	carrierVirtiofs
)

func (s *snapshot) write(w *state.Writer) {
	w.U32(snapshotMagic)
	w.U32(snapshotVersion)
	w.U32(remote.ProtocolVersion)
	w.Bool(s.Warm)
	if s.Unix != nil {
		w.U32(carrierUnix)
		w.U64(s.Unix.Head)
		w.U32(s.Unix.PID)
		writeRegions(w, s.Unix.Regions)
	} else {
		w.U32(carrierVirtiofs)
		s.Virtiofs.write(w)
	}
	w.U32(s.Sticky)
	w.U32(s.Deferred)
	w.Bytes(s.Console)
	w.Bytes(s.ConsoleErrs)
	w.Bool(s.ConsoleLost)
	w.Bool(s.Calls.Open)
	w.U32(s.Calls.Slot)
	w.U32(s.Calls.Base)
	w.U32(s.Calls.Number)
	w.Bool(s.Watch.Wanted)
	w.Bool(s.Watch.Over)
	w.U64(s.Watch.Limit)
	w.U32(uint32(len(s.More)))
	for i, b := range s.More {
		w.U32(i)
		w.Bytes(b)
	}
	w.U32(uint32(len(s.Blobs)))
	for id, b := range s.Blobs {
		w.U32(id)
		w.U64(b.Total)
		w.Bytes(b.Bytes)
	}
	w.U32(uint32(len(s.Requests)))
	for i := range s.Requests {
		w.Bytes(s.Requests[i].Record)
		w.U32(uint32(len(s.Requests[i].Placed)))
		for _, at := range s.Requests[i].Placed {
			w.U64(at)
		}
	}
	w.U32(uint32(len(s.Images)))
	for id, b := range s.Images {
		w.U32(id)
		w.Bytes(b)
	}
	s.Graphs.write(w)
}

// readSnapshot reads what write wrote. Whether its requests make sense is for the replay to find.
func readSnapshot(r *state.Reader) (*snapshot, error) {
	if r.U32() != snapshotMagic && r.Err() == nil {
		r.Refuse("not the state of a session")
	}
	if v := r.U32(); v != snapshotVersion && r.Err() == nil {
		r.Refuse("session state of version %d, this host reads %d", v, snapshotVersion)
	}
	if v := r.U32(); v != remote.ProtocolVersion && r.Err() == nil {
		r.Refuse("session of protocol version %d, this host speaks %d", v, remote.ProtocolVersion)
	}
	s := &snapshot{Warm: r.Bool(), More: map[uint32][]byte{}, Blobs: map[uint32]blobState{}, Images: map[uint32][]byte{}}
	switch c := r.U32(); c {
	case carrierUnix:
		s.Unix = &shm.UnixState{Head: r.U64(), PID: r.U32(), Regions: readRegions(r)}
	case carrierVirtiofs:
		s.Virtiofs = readVirtiofs(r)
	default:
		r.Refuse("carrier %d", c)
	}
	s.Sticky, s.Deferred = r.U32(), r.U32()
	s.Console, s.ConsoleErrs, s.ConsoleLost = r.Bytes(maxConsole), r.Bytes(maxConsole), r.Bool()
	s.Calls = callbackState{Open: r.Bool(), Slot: r.U32(), Base: r.U32(), Number: r.U32()}
	s.Watch = watchState{Wanted: r.Bool(), Over: r.Bool(), Limit: r.U64()}
	for range r.Count(remote.SlotCount, itemBytes) {
		i := r.U32()
		if s.More[i] = r.Bytes(mostMore); i >= remote.SlotCount {
			r.Refuse("slot %d", i)
		}
	}
	var promised uint64
	for range r.Count(maxBlobs, itemBytes) {
		id, total := r.U32(), r.U64()
		if total > maxBlobBytes-promised {
			r.Refuse("%d bytes are to be sent ahead", total)
		}
		promised += total
		s.Blobs[id] = blobState{total, r.Bytes(total)}
	}
	s.readRequests(r)
	for range r.Count(mostImages, itemBytes) {
		id := r.U32()
		s.Images[id] = r.Bytes(maxBlobBytes)
	}
	s.Graphs = readGraphs(r)
	return s, r.Err()
}

// readRequests reads requests one by one: their number alone takes nothing. A driver compiles for
// those of local memory.
func (s *snapshot) readRequests(r *state.Reader) {
	locals := 0
	for range r.Count(mostRequests, 0) {
		q := request{Record: r.Bytes(wire.MaxRecord)}
		n := r.Count(mostPlaced, 8)
		if q.Placed = make([]uint64, 0, n); r.Err() != nil {
			return
		}
		for range n {
			q.Placed = append(q.Placed, r.U64())
		}
		if _, op, err := wire.ParseHeader(q.Record); err == nil && op == wire.OpLocalMemory {
			if locals++; locals > mostLocals {
				r.Refuse("more than %d changes of contexts' local memory", mostLocals)
				return
			}
		}
		r.Keep(itemBytes)
		s.Requests = append(s.Requests, q)
	}
}

func (s *virtiofsState) write(w *state.Writer) {
	w.U64(s.Head)
	w.U32(uint32(len(s.Guest)))
	for _, g := range s.Guest {
		w.U64(g.GPA)
		w.U64(g.Size)
		w.U64(g.Offset)
	}
	writeRegions(w, s.Regions)
	w.U32(uint32(len(s.Pieces)))
	for region, list := range s.Pieces {
		w.U32(region)
		w.U32(uint32(len(list)))
		for at, ranges := range list {
			w.U64(at)
			w.U32(uint32(len(ranges)))
			for _, g := range ranges {
				w.U64(g.GPA)
				w.U64(g.Size)
			}
		}
	}
}

func readVirtiofs(r *state.Reader) *virtiofsState {
	s := &virtiofsState{Head: r.U64(), Pieces: map[uint32]map[uint64][]link.Range{}}
	for range r.Count(maxHandoverFiles, itemBytes) {
		s.Guest = append(s.Guest, link.MemoryRegion{GPA: r.U64(), Size: r.U64(), Offset: r.U64()})
	}
	s.Regions = readRegions(r)
	for range r.Count(shm.MaxRegions, itemBytes) {
		list := map[uint64][]link.Range{}
		s.Pieces[r.U32()] = list
		for range r.Count(mostPieces, itemBytes) {
			at := r.U64()
			n := r.Count(link.MaxRanges, 16)
			ranges := make([]link.Range, 0, n)
			for range n {
				ranges = append(ranges, link.Range{GPA: r.U64(), Size: r.U64()})
			}
			list[at] = ranges
		}
	}
	return s
}

// mostPieces is how many loans a region may have.
const mostPieces = 16384

func writeRegions(w *state.Writer, list []shm.RegionState) {
	w.U32(uint32(len(list)))
	for _, x := range list {
		w.U32(x.ID)
		w.U64(x.VA)
		w.U64(x.Size)
		w.U64(x.Offset)
		w.Bool(x.Shared)
		w.U64(x.Part)
	}
}

func readRegions(r *state.Reader) (list []shm.RegionState) {
	for range r.Count(shm.MaxRegions, itemBytes) {
		list = append(list, shm.RegionState{ID: r.U32(), VA: r.U64(), Size: r.U64(), Offset: r.U64(), Shared: r.Bool(), Part: r.U64()})
	}
	return list
}
