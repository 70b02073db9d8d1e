// Package memory is a budget of a virtual GPU's memory, which all its sessions share: of the
// device's, or of what they make the host keep. It is one page, made by the process that starts the
// workers and mapped by each of them.
//
// The page holds the limit and a slot for each session. A session's slot says what it has
// allocated; what the virtual GPU uses is the sum of its slots. There is no total that could be
// wrong after a worker was killed: whoever starts the workers clears the slot of one that is gone.
//
// A reservation is added to the session's own slot first, then the slots are summed: of two
// sessions that race for the last bytes one, or for a moment neither, sees room; who sees none
// takes its bytes back and looks again. Nothing is locked, so nothing can be left locked.
//
// A slot also says what the session's contexts take beside allocations: an estimate by its worker,
// replaced by the other side once the machine's driver has told it.
//
// Where more is promised than there is, the page also says for how much there is room now. A
// reservation that the limit allows and the room does not is refused like another, but the budget
// remembers it: its worker asks for room, and tries again.
//
// What a session shared and has let go of while others have it open is in no slot: the process that
// starts the workers counts it, in a word of its own.
//
// A part of what sessions have may have a limit of its own: of the host's memory that which lies
// there in place of the VM's. It is in each slot a word beside the others, no more than they say.
//
// Whoever maps the page can write to all of it. A worker that lies harms the sessions of its own
// virtual GPU; that their GPU does not give out more than the limit is checked by the driver's own
// account (package device).
//
// Sizes are in bytes.
package memory
