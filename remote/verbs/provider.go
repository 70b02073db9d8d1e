package verbs

// Access is what a peer may do to registered memory. The adapter that it is registered with may
// always write to it.
type Access uint8

// Accesses.
const (
	RemoteWrite Access = 1 << iota
	RemoteRead
)

// Adapter is one port of an RDMA adapter.
type Adapter interface {
	// Port says how others reach it.
	Port() Port
	// Register pins memory, which must stay where it is until Close.
	Register(mem []byte, may Access) (Memory, error)
	// NewQueue makes a queue pair that is connected to nobody. Its completions, of both directions,
	// come to one queue.
	NewQueue(q QueueSize) (Queue, error)
}

// Memory is registered memory.
type Memory interface {
	// Address is how work requests name its first byte.
	Address() uint64
	// LocalKey and RemoteKey stand for it in work requests of this end and of the other.
	LocalKey() uint32
	RemoteKey() uint32
	Close() error
}

// QueueSize is what a queue pair has room for.
type QueueSize struct {
	Send, Receive int // work requests
	Inline        int // bytes of a work request that are taken when it is posted; 0: none
}

// Queue is a queue pair of a reliable connection. Work may be posted by several goroutines; one
// polls and waits.
type Queue interface {
	// Number is the queue pair's, 24 bits.
	Number() uint32
	// Inline is how many bytes of a work request may be inline, at least as many as were asked for.
	Inline() int
	// Connect readies it for both directions with one peer.
	Connect(p Path) error
	// Post hands over work requests, in their order, with one ring of the adapter's doorbell. An
	// error is final: how many of them were taken is not known.
	Post(ws []Work) error
	// PostReceive makes room for so many immediates of the peer.
	PostReceive(n int) error
	// Poll takes completions, without waiting.
	Poll(cs []Completion) (int, error)
	// Arm has Wait return at the next completion; those that are there already are to be polled
	// after it.
	Arm() error
	// Wait returns after Arm when there may be a completion, or after Kick.
	Wait() error
	// Kick makes the present or next Wait return.
	Kick()
	// Close ends it. Nobody uses it any more.
	Close() error
}

// Path is one end of a connection between queue pairs, as Connect is told.
type Path struct {
	GIDIndex int // of this end's port
	MTU      MTU
	OwnPSN   uint32 // of the first packet that this end sends
	Peer     Peer
}

// Op is what a work request does.
type Op uint8

// Operations.
const (
	Write          Op = iota // writes to the peer's memory
	WriteImmediate           // likewise, and tells the peer
	Read                     // reads the peer's memory
)

// Work is one work request.
type Work struct {
	ID       uint64
	Op       Op
	Signaled bool // a completion says that it, and all before it, are done
	Inline   bool // the bytes are taken when it is posted

	Local     uint64 // address in this end's memory
	LocalKey  uint32
	Length    uint32
	Remote    uint64 // address in the peer's
	RemoteKey uint32
	Immediate uint32
}

// Completion says that work is done, or why it is not.
type Completion struct {
	ID        uint64 // the work request's; of a failed one too
	Status    Status
	Vendor    uint32 // the adapter's own number for a failure
	Received  bool   // an immediate of the peer
	Immediate uint32
}
