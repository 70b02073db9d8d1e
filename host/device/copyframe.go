package device

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"

	"causeway/host/api"
	"causeway/remote"
)

/*
Memory of sessions goes ahead of their VM between its device processes at both hosts, on connections
that others have made and authenticated. They carry frames: a header of 24 bytes (kind, stream, size
of what follows, and to what it unpacks or 0, each of 4; its number, of 8; little-endian) and a
body. On the first connection the source says hello and is welcomed; others join it by a key that
the hello had. Then each session is a stream, by number from one on, of what its worker writes of
its memory (package precopy); perhaps another, a rehearsal, is of what it is made of. When the VM
stands the source seals each: by its length and sum. A stream that was sealed is kept for the VM's
state, which names it by its token, and ends with the connections otherwise.

Frames of streams go over whichever connection has room, and are numbered in their order, from one
on. The destination does what they say in that order: a connection that brings one before its number
is next waits with it, so that no more than a frame of each is kept.
*/

// Kinds of frames from the source.
const (
	copyHello = 1 + iota // helloBody as JSON
	copyOpen             // openBody: a stream begins
	copyData             // of a stream
	copySeal             // sealBody: that was all
	copyDrop             // a stream ends, and is not needed
	copyPing             // the source is there
	copyJoin             // joinBody: another connection
)

// Kinds of frames from the destination.
const (
	copyWelcome   = 65 + iota
	copyRefused   // of a stream, or of all (0): why
	copySealed    // of a stream: it has all of it, and its VM is awaited here
	copyReady     // of a stream: the driver of its worker has started
	copyRehearsed // of a rehearsal: all of it can be made here
	copyCannot    // of a rehearsal: what cannot be here as it is there
)

// Bounds of frames.
const (
	copyHeader   = 24
	mostCopyData = 128 << 10
	mostCopyText = 4096
	tokenSize    = 16
	openSize     = tokenSize + 3*4 + 8 + 4
	sealSize     = 8 + 4

	mostConnections = api.MostConnections
)

// copyBounds are the sizes that the body of a kind may have: least and most.
var copyBounds = map[uint32][2]uint32{
	copyHello: {2, mostCopyText}, copyOpen: {openSize, openSize}, copyData: {1, mostCopyData}, copySeal: {sealSize, sealSize}, copyDrop: {}, copyPing: {}, copyJoin: {tokenSize, tokenSize},
	copyWelcome: {}, copyRefused: {0, mostCopyText}, copySealed: {}, copyReady: {}, copyRehearsed: {}, copyCannot: {0, mostCopyText},
}

// copyFrame is one that is within the bounds of its kind.
type copyFrame struct {
	kind, stream uint32
	seq          uint64 // of what belongs to streams
	body         []byte
	plain        uint32 // bytes to which the body unpacks; 0: it is not packed
	wire         uint64 // bytes that it took
}

// ofStreams says whether frames of a kind have a number.
func ofStreams(kind uint32) bool { return kind >= copyOpen && kind <= copyDrop }

// readCopyFrame reads a frame, whose body lies in buf until the next.
func readCopyFrame(r io.Reader, buf []byte) (copyFrame, error) {
	var h [copyHeader]byte
	if _, err := io.ReadFull(r, h[:]); err != nil {
		return copyFrame{}, err
	}
	f := copyFrame{kind: binary.LittleEndian.Uint32(h[:]), stream: binary.LittleEndian.Uint32(h[4:]), seq: binary.LittleEndian.Uint64(h[16:])}
	size := binary.LittleEndian.Uint32(h[8:])
	if most, ok := copyBounds[f.kind]; !ok || size < most[0] || size > most[1] {
		return f, fmt.Errorf("%w: kind %d of %d bytes", errCopyFrame, f.kind, size)
	}
	f.plain, f.wire = binary.LittleEndian.Uint32(h[12:]), uint64(copyHeader+size)
	if ofStreams(f.kind) != (f.seq != 0) || f.plain != 0 && (f.kind != copyData || f.plain <= size || f.plain > mostCopyData) {
		return f, fmt.Errorf("%w: kind %d of number %d, %d bytes of %d", errCopyFrame, f.kind, f.seq, size, f.plain)
	}
	f.body = buf[:size]
	_, err := io.ReadFull(r, f.body)
	return f, err
}

// putCopyHeader writes the header in front of a body that lies in b behind it.
func putCopyHeader(b []byte, kind, stream uint32, seq uint64) []byte {
	binary.LittleEndian.PutUint32(b, kind)
	binary.LittleEndian.PutUint32(b[4:], stream)
	sizeFrame(b, 0)
	binary.LittleEndian.PutUint64(b[16:], seq)
	return b
}

// sizeFrame writes how long the body is, and if it is packed to what it unpacks.
func sizeFrame(b []byte, plain uint32) {
	binary.LittleEndian.PutUint32(b[8:], uint32(len(b)-copyHeader))
	binary.LittleEndian.PutUint32(b[12:], plain)
}

// helloBody is what both sides must agree on.
type helloBody struct {
	Version  uint32 `json:"version"`
	Protocol uint32 `json:"protocol"`
	Backend  string `json:"backend"`
	GPU      string `json:"gpu"`
	Memory   uint64 `json:"memory"` // bytes in use by the sessions

	Connections int    `json:"connections"`    // in all
	Join        []byte `json:"join,omitempty"` // by which the others join this one
}

// copyVersion is that of frames and of the stream in them.
const copyVersion = 4

func (d *Device) copyHello() helloBody {
	here := d.place()
	return helloBody{Version: copyVersion, Protocol: remote.ProtocolVersion, Backend: here.backend(), GPU: here.GPU, Memory: d.budget.Used(), Connections: 1}
}

// readHello reads what a source says first.
func readHello(body []byte) (h helloBody, err error) {
	if err = json.Unmarshal(body, &h); err != nil {
		return h, fmt.Errorf("hello: %w", err)
	}
	return h, nil
}

// fits says why sessions of another device cannot come to this one.
func (d *Device) fits(h helloBody) error {
	ours := d.copyHello()
	limit := d.budget.Limit()
	switch {
	case h.Version != ours.Version:
		return fmt.Errorf("%w: pre-copy of version %d, this host has %d", errElsewhere, h.Version, ours.Version)
	case h.Protocol != ours.Protocol:
		return fmt.Errorf("%w: protocol version %d, this host has %d", errElsewhere, h.Protocol, ours.Protocol)
	case h.Backend != ours.Backend:
		return fmt.Errorf("%w: the backend is %.64q there, %q here", errElsewhere, h.Backend, ours.Backend)
	case h.GPU != ours.GPU:
		return fmt.Errorf("%w: the GPU is %.64q there, %q here", errElsewhere, h.GPU, ours.GPU)
	case h.Connections < 1 || h.Connections > mostConnections || h.Connections > 1 && len(h.Join) != tokenSize:
		return fmt.Errorf("%w: %d connections with a key of %d bytes", errCopyFrame, h.Connections, len(h.Join))
	case limit != 0 && h.Memory > limit:
		return fmt.Errorf("%w: its programs use %d bytes of GPU memory, it may use %d here", errElsewhere, h.Memory, limit)
	}
	return nil
}
