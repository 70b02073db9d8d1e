package wire

import (
	"encoding/binary"
	"fmt"

	"causeway/cuda"
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

// ID is a guest-picked number of an object. It means nothing until a table of its kind has been
// asked.
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
	Retains  // creates, or counts once more
	Releases // undoes one of Retains; the last one destroys
	Modifies
	Marks  // modifies; the last one counts
	Resets // modifies; what belongs to the object is gone
)

// Order says which calls that wait in submitters must be made before an operation.
type Order uint8

// Orders.
const (
	OrderAll    Order = iota // all
	OrderStream              // those of its stream or event
	OrderNone                // none: it makes no call of the driver
)

// Capture says what a capture of streams does to an operation.
type Capture uint8

// Captures.
const (
	CaptureAny Capture = iota // nothing
	// It becomes a node of the graph that its stream captures, or the driver refuses it.
	CaptureNode
	CaptureRefused // refused where its stream captures
	// Refused to threads whose capture mode prohibits potentially unsafe calls.
	CaptureUnsafe
	CaptureWait // refused to those, and where what it waits for captures
)

// Counts says what an operation is metered as besides that it was a call.
type Counts uint8

// What is counted.
const (
	CountsNothing Counts = iota
	CountsLaunch
	CountsBytes // its arguments say how many went in or out
	CountsGuest // its arguments say who the guest is, or where its memory lies
)

// Place is where the object of an effect is named.
type Place uint8

// Places.
const (
	InNothing Place = iota
	InRequest       // field Object of the request
	InReply         // field Object of the reply (addresses of memory)
	InContext       // the object is the calling thread's current context, Call.Ctx
	InSession       // there is one, of number 0
)

// Ref is a field that names an object.
type Ref struct {
	Name   string
	Offset int // from the start of the fixed part: of the record's body, or of the reply's payload
	Kind   Kind
	New    bool // the id is picked by this operation
}

// Key is a field that says what a request sets.
type Key struct{ Offset, Size int }

// Awaiter is implemented by requests of operations whose OpInfo says Awaited.
type Awaiter interface {
	// Awaited reports whether the guest polls for the end of this one.
	Awaited() bool
}

// Marker is implemented by requests whose effect is Marks: they are frequent, and found without
// being encoded.
type Marker interface{ Marked() ID }

// Streamed is implemented by requests of work on a stream that a capture may take up or forbid.
type Streamed interface{ OnStream() Stream }

// Admitter judges operations that a capture of streams may change or forbid: those whose OpInfo
// says so in Capture.
type Admitter interface {
	// Admit is asked before the operation's own method, with its arguments, and with its reply if
	// it has one. done: it has been dealt with, and res is what came of it.
	Admit(c *Call, a Args, r Reply) (done bool, res cuda.Result)
}

// User has a current context.
type User interface {
	// Use makes a call's context current, before the method of an operation that is said to need
	// it.
	Use(c *Call) cuda.Result
}

// Use implements User: the operations look for themselves.
func (Unsupported) Use(*Call) cuda.Result { return cuda.Success }

// Admit implements Admitter: where nothing captures nothing is forbidden.
func (Unsupported) Admit(*Call, Args, Reply) (bool, cuda.Result) { return false, cuda.Success }

// OpInfo is what an operation is: cuda/api/ops.idl says it, and explains the words.
type OpInfo struct {
	Name       string
	Mode       Mode
	Always     bool // reply fields travel with an error, too
	OwnReply   bool // the reply never brings the deferred error of another operation
	GPU        bool // gives the GPU work
	Order      Order
	Capture    Capture
	Counts     Counts
	Awaited    bool // the request implements Awaiter
	Keyed      bool // see Supersedes
	Effect     Effect
	Kind       Kind // of the object that Effect concerns
	In         Place
	Fixed      int // bytes of the request's fixed part
	ReplyFixed int
	Object     Ref
	Refs       []Ref // every object that the request names
	Keys       []Key
}

// Supersedes reports whether nothing is left of an earlier modification of the same object after
// this operation's later one. Both are private copies of records.
func (i *OpInfo) Supersedes(later, earlier []byte) bool {
	if !i.Keyed || len(later) < RecordSize+i.Fixed || len(earlier) < RecordSize+i.Fixed || [2]byte(later[4:6]) != [2]byte(earlier[4:6]) {
		return false
	}
	for _, k := range i.Keys {
		at := RecordSize + k.Offset
		if string(later[at:at+k.Size]) != string(earlier[at:at+k.Size]) {
			return false
		}
	}
	return true
}

// ObjectOf finds the object of the effect: an id, or the address of memory. rec is a private copy
// of the record, reply the payload that answered it, ctx the Call's context. ok is false if the
// operation has no effect or the bytes are too short.
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
	case InSession:
		return 0, true
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
