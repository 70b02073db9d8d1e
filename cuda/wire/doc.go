// Package wire is the host's end of the operations in cuda/api/ops.idl: numbers, arguments,
// replies, one validating decoder, and the dispatch to a Driver. The *_gen.go files are written by
// cuda/gen.
//
// # Consuming
//
// The worker owns one Dispatcher and calls it from its one consuming goroutine:
//
//	c := wire.Call{Op: in.Op, Ctx: in.Ctx, Thread: in.Thread, Slot: in.Slot, Seq: in.Seq, Replier: w}
//	payload, res, err := d.Dispatch(driver, &c, in.Bytes, blobs)
//	switch {
//	case err != nil:     // the record breaks the protocol: end the session
//	case c.Taken():      // a wait operation: its Pending will answer, on any goroutine
//	case wants a reply:  // write payload (longer than a slot: the caller splits it) and res; payload is valid until the next Dispatch
//	default:             // res is a deferred error
//	}
//
// Operations of the session itself (BlobAppend, ReplyMore, ConsoleRead, SessionFence ...) are
// methods of Driver like all others: a worker wraps its driver in a struct that embeds it and
// overrides them.
//
// # What a Driver method may rely on
//
// It runs on the consuming goroutine, in ring order, and must not block on the GPU. Args and reply
// are reused by the next call: what must outlive the method is copied. Bytes fields of args are
// private memory and may be kept; data fields alias memory that the guest changes at will: they are
// copied once, before the method returns, and never looked at twice. The method returns the result.
// Reply fields travel if the result is Success, or if the operation is marked always. A wait
// operation that cannot answer yet takes c.Later(), returns cuda.Success (ignored) and finishes
// through the Pending.
//
// # Recording and replay
//
// Operations[op] says which object an operation creates, destroys or modifies and where its id
// stands. AppendRecord(nil, header, d.Args()) is the last request as one self-contained record,
// blobs included; with Call.Replay and Call.Placed set, the same Dispatch executes it in a fresh
// worker.
package wire
