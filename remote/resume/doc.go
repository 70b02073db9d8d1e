// Package resume has streams that outlive the connections below them: between a relay and the
// worker of a GPU server a session goes on over another TLS connection when the one that it had was
// reset, or its addresses are no more.
//
// Each end keeps what it has sent until the other end has acknowledged it (kept.go), which it does
// by frames between the session's own (frame.Ack), for each part of the window; so the memory is
// bounded, and a small call costs no byte more. When a connection is lost the client's end makes
// another, the two tell each other how far they have received (shake.go), and send the rest again:
// each byte is delivered once, in order, wherever the connection was cut. If there is none within
// Limit the stream ends at both ends.
//
// Who may go on: the keys of the lease, which TLS demands, and a secret that both ends derived from
// the session's first connection and that was never sent. What is shown of it holds for one TLS
// connection, and for an attempt later than all before, so nothing that was heard can be used
// again.
//
// # Goroutines and locks
//
// One goroutine reads, and never waits for one that writes. What is written is kept first, once,
// and sent from there: a few bytes by who wrote them, more by routineSend, so that a copy is
// encrypted while whoever makes it moves its next bytes. One goroutine sends at a time
// (Conn.sending), and takes along what others have written meanwhile. Lock order: Conn.order (the
// order of Write; held while room is waited for), Conn.wire (held while something is sent), Conn.mu
// (never held while anything is waited for).
package resume
