package device

import (
	"slices"

	"causeway/host/worker/link"
	image "causeway/host/worker/state"
	"causeway/remote"
	"causeway/virtio/fs"
)

// Bounds of what precedes the worker's part of a session.
const (
	headVersion = 5
	mostName    = 256
	headMost    = fs.MostHead // bytes kept of it
	entryBytes  = 64
)

// sessionHead is what the device knows of a session.
type sessionHead struct {
	backend, gpu string
	base         uint64 // link.Config's, of its worker; 0: none
	stage        state
	regions      []regionHead
	tokens       []uint32 // slots
	ahead        []byte   // the token of what went ahead of its memory; empty: nothing did
}

type regionHead struct {
	id       uint32
	va, size uint64
	sent     bool   // the worker knows it
	reads    uint32 // entries of the guest's queue that it has; 0: its session is lost
}

// stages are where a session can stand when it is saved, in the order of their numbers there.
var stages = [...]state{idle, opening, parked, dead}

func (h *sessionHead) write(w *image.Writer) {
	w.U32(headVersion)
	w.U32(remote.ProtocolVersion)
	w.Bytes([]byte(h.backend))
	w.Bytes([]byte(h.gpu))
	w.U64(h.base)
	w.U32(uint32(slices.Index(stages[:], h.stage)))
	w.U32(uint32(len(h.regions)))
	for _, r := range h.regions {
		w.U32(r.id)
		w.U64(r.va)
		w.U64(r.size)
		w.Bool(r.sent)
		w.U32(r.reads)
	}
	w.U32(uint32(len(h.tokens)))
	for _, slot := range h.tokens {
		w.U32(slot)
	}
	w.Bytes(h.ahead)
}

func readHead(r *image.Reader) (*sessionHead, error) {
	if v := r.U32(); v != headVersion && r.Err() == nil {
		r.Refuse("sessions of version %d, this host reads %d", v, headVersion)
	}
	if v := r.U32(); v != remote.ProtocolVersion && r.Err() == nil {
		r.Refuse("sessions of protocol version %d, this host speaks %d", v, remote.ProtocolVersion)
	}
	h := &sessionHead{backend: string(r.Bytes(mostName)), gpu: string(r.Bytes(mostName)), base: r.U64()}
	if h.base != 0 && !link.ValidBase(h.base) {
		r.Refuse("mappings that begin at %#x", h.base)
	}
	if n := r.U32(); n < uint32(len(stages)) {
		h.stage = stages[n]
	} else {
		r.Refuse("a session in state %d", n)
	}
	for range r.Count(maxRegions, entryBytes) {
		came := regionHead{id: r.U32(), va: r.U64(), size: r.U64(), sent: r.Bool(), reads: r.U32()}
		if lends := h.stage < dead; lends != (came.reads > 0) || uint64(came.reads) > min(came.size/pageSize, maxPieces+1) {
			r.Refuse("a region of %#x bytes in %d READs of a session in state %v", came.size, came.reads, h.stage)
		}
		h.regions = append(h.regions, came)
	}
	for range r.Count(remote.SlotCount+1, entryBytes) {
		slot := r.U32()
		if slot > remote.SlotCount {
			r.Refuse("slot %d", slot)
		}
		h.tokens = append(h.tokens, slot)
	}
	if h.ahead = r.Bytes(tokenSize); len(h.ahead) != 0 && (len(h.ahead) != tokenSize || h.stage != parked) {
		r.Refuse("a token of %d bytes of a session in state %v", len(h.ahead), h.stage)
	}
	return h, r.Err()
}
