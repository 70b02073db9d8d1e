// Package tcp carries a session over one TCP connection to a guest process that shares no memory
// with this one. The frames are those of guest/libcuda/session/tcp_frames.h.
//
// The host keeps a mirror of region 0 in private memory: the guest's records arrive in it by RING
// frames, and remote/shm's Ring consumes them there as if the guest had written them. What the
// worker writes to the mirror goes out as frames. Other regions stay with the guest, which answers
// one-sided READ and WRITE frames; they cannot be mapped.
//
// There is no transport security: whoever can connect is the guest.
//
// # Goroutines and locks
//
// Carrier.routineReceive reads the connection and never waits for anything else. Any goroutine
// sends, under writeMu; frames leave in the order of the calls. Lock order: memory.orderMu, then
// memory.mu or writeMu; the receiver takes memory.mu alone, which is never held while sending.
package tcp
