package wire

import (
	"encoding/binary"
	"fmt"
)

// Op is the number of an operation.
type Op uint16

func (op Op) String() string {
	if i := op.Info(); i != nil {
		return i.Name
	}
	if op == OpSkip {
		return "Skip"
	}
	return fmt.Sprintf("Op(%d)", uint16(op))
}

// Info describes the operation; nil if there is none of this number.
func (op Op) Info() *OpInfo {
	if op == 0 || int(op) >= len(operations) {
		return nil
	}
	return &operations[op]
}

// OpCount is the number of operations: valid numbers are 1 to OpCount.
const OpCount = Op(len(operations) - 1)

// ID is a guest-picked number of an object. It means nothing until a table of its kind has been asked.
type ID = uint32

// Stream is StreamLegacy, StreamPerThread (of Call.Thread) or the ID of a stream.
type Stream = uint32

// Streams that are not created.
const (
	StreamLegacy    Stream = 1
	StreamPerThread Stream = 2
)

// Mode says when an operation is answered.
type Mode uint8

// Modes.
const (
	Sync  Mode = iota // at once
	Async             // never: errors are deferred
	Wait              // at once or later
)

// Kind is a kind of object.
type Kind uint8

func (k Kind) String() string {
	if int(k) < len(kindNames) {
		return kindNames[k]
	}
	return fmt.Sprintf("Kind(%d)", uint8(k))
}

// Effect is what an operation does to an object.
type Effect uint8

// Effects.
const (
	NoEffect Effect = iota
	Creates
	Destroys
	Modifies
)

// Place is where the object of an effect is named.
type Place uint8

// Places.
const (
	InNothing Place = iota
	InRequest       // field Object of the request
	InReply         // field Object of the reply (addresses of memory)
	InContext       // the object is the calling thread's current context, Call.Ctx
)

// Ref is a field that names an object.
type Ref struct {
	Name   string
	Offset int // from the start of the fixed part: of the record's body, or of the reply's payload
	Kind   Kind
	New    bool // the id is picked by this operation
}

// OpInfo is what a recorder needs to know of an operation.
type OpInfo struct {
	Name       string
	Mode       Mode
	Always     bool // reply fields travel with an error, too
	Fixed      int  // bytes of the request's fixed part
	ReplyFixed int
	Effect     Effect
	Kind       Kind // of the object that Effect concerns
	In         Place
	Object     Ref
	Refs       []Ref // every object that the request names
}

// ObjectOf finds the object of the effect: an id, or the address of memory. rec is a private copy of the record, reply the
// payload that answered it, ctx the Call's context. ok is false if the operation has no effect or the bytes are too short.
func (i *OpInfo) ObjectOf(rec, reply []byte, ctx ID) (object uint64, ok bool) {
	switch i.In {
	case InRequest:
		if len(rec) < RecordSize {
			return 0, false
		}
		return i.Object.read(rec[RecordSize:])
	case InReply:
		return i.Object.read(reply)
	case InContext:
		return uint64(ctx), true
	}
	return 0, false
}

// Read returns the id that a private copy of a record names here; a Stream field may hold 1 or 2.
func (r *Ref) Read(rec []byte) (ID, bool) {
	if len(rec) < RecordSize {
		return 0, false
	}
	v, ok := r.read(rec[RecordSize:])
	return ID(v), ok
}

func (r *Ref) read(b []byte) (uint64, bool) {
	width := 4
	if r.Kind == KindMem {
		width = 8
	}
	if len(b) < r.Offset+width {
		return 0, false
	}
	if width == 8 {
		return binary.LittleEndian.Uint64(b[r.Offset:]), true
	}
	return uint64(binary.LittleEndian.Uint32(b[r.Offset:])), true
}
