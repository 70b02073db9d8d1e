// Package offer lets the sessions of one virtual GPU pass memory and events to each other, and to
// no one else.
//
// A worker leaves what it wants to share with its parent (run, serve or device), under a token:
// opaque bytes of its driver, and perhaps a descriptor. The guest process carries the token to
// another guest process as it likes, inside an IPC handle or a file; that one's worker redeems it.
// Tokens are random and long: who knows one was told it. The parent looks into nothing.
//
// A Broker belongs to one virtual GPU. Its methods may be called from any goroutine; its lock is a
// leaf, but for what OnKept has called.
//
// A token ends with its owner, or when that withdraws it; one of memory that lasts is good for as
// long as another worker has that open, as a driver's descriptors are.
//
// Memory that is shared counts for the session that offers it; once that has let go of it, what
// others have open of it is told to the parent (OnKept).
package offer
