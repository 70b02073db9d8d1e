// Package verbs carries a session's frames over InfiniBand or RoCE: a Conn is a net.Conn between a
// relay and a worker whose bytes are RDMA WRITEs of a reliable connection into the other end's
// memory, so that remote/tcp and remote/relay speak over it as over TCP.
//
// # How it comes to be
//
// Both ends have a TLS connection already, by which each knows the other (remote/mtls). Over it
// they tell one another their queue pair, their address on the fabric and the memory that the other
// may write to (Offer), connect the queue pairs, send some bytes each way, and say whether these
// came (Upgrade). If anything of that is not as it should be, both go on over TLS, and know why.
// What an end is told is checked once, in ParseOffer; only what passed it is a Peer.
//
// The TLS connection stays: its end is the session's, and it says how many bytes there were. Data
// on the fabric is neither encrypted nor authenticated: docs/SECURITY.md.
//
// # The stream
//
// Each end has a window that the other writes to, and a buffer of the same size for what it sends:
// byte x of the stream lies at x modulo the size in both, from where it is copied to when the
// receiver has said that it is free (credit). A Write is one chain of work requests, rung once; its
// last is a WRITE WITH IMMEDIATE, whose value is the number of bytes. Credit goes back in the same
// way, without bytes. Receives are posted for more immediates than the other end may have
// outstanding, so that none waits.
//
// # The other end's memory
//
// The client's end may register memory of its own for the server's (Conn.Grant), which reads and
// writes it by RDMA READ and WRITE (Conn.Fetch, Conn.Store) through pieces of registered memory, on
// the stream's queue pair, so that what the stream says afterwards follows. Who may reach what, and
// when not any more, is package relay's.
//
// Where both ends have more ports, or want it so, there are further queue pairs for that (rails):
// agreed on inside TLS once the first carries bytes (railup.go), each with pieces and completions
// of its own, which the copy that uses it takes. A copy's parts are taken by whichever has room
// (rail.go); those of one that fails come back.
//
// # Goroutines and locks
//
// Whoever waits (Read for bytes, Write for room) takes completions for all if nobody does: it polls
// for a while, then sleeps in Queue.Wait, and others wait for it on Conn.cond. What no completion
// tells of (a piece that is free again, a failure, a deadline) kicks it (changedLocked).
// routineLifeline reads the TLS connection. Lock order: readMu or writeMu, or a rail's, then mu.
// Nothing waits with mu held, and nothing but the copy of bytes that nobody else touches happens
// outside of it.
//
// # Providers
//
// Adapter and Queue are what is needed of libibverbs. remote/verbs/ibv is that library, loaded when
// it is asked for; remote/verbs/verbstest is a fabric in one process, with faults.
package verbs
