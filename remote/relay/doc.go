// Package relay passes a session on that runs on another host: between the carrier of a guest
// process here, over shared memory, and a stream to a worker there, whose end is remote/tcp. It has
// the guest's part in the frames of guest/libcuda/session/tcp_frames.h, and parses no call: the
// ring's bytes go as they are.
//
// What the server sends is checked frame by frame (in.go), once, before anything of it is done, and
// touches nothing but what the guest has declared. A frame that breaks a rule ends the session.
//
// # Goroutines and locks
//
//   - Session.Run's own goroutine is the ring's consumer (out.go): it sends what waits in the ring, as one frame, and word of regions ahead of it. While it sends, or waits
//     for the server's head, it touches no guest memory, and a park takes place without it.
//   - routineReceive reads the stream. It waits for nothing but the stream itself, a park, and for room among READs that wait, of which an honest server has few.
//   - routineServe answers READs, in their order, a chunk at a time.
//   - Moving.Round, on whoever asks for it, passes memory of a session that is to go to another server on there (ahead.go); what routineReceive keeps of that meanwhile has a bound that is granted.
//   - Watcher's methods run on whichever goroutine the carrier has for regions.
//
// Session.away is held for reading whenever the guest's memory is touched, ring and slots included,
// and never while something is sent or waited for; a park holds it for writing. out.mu is held
// while a frame is sent. Neither is taken with the other held. A stream that has room of its own
// (frame.Filler) is filled from guest memory: then away is taken for a copy while other frames wait
// behind that one.
//
// Over RDMA the server reaches regions by itself (grants.go). grants.mu is held while what is
// granted or recalled is said, and grants.state for a moment; the carrier takes the latter within
// its own locks, so nothing of the carrier is called with it held.
//
// Memory is bounded: one batch of the ring, one chunk of a READ, the stream's buffers, a list of
// regions that come and go, and AheadMemory of a session whose memory goes ahead.
package relay
