// Package frame has what both ends of a session's stream share: the frames of
// guest/libcuda/session/tcp_frames.h, which says what each means and when it may come, and
// connections that carry them in as few system calls and TLS records as there are flushes.
// remote/tcp is the end of the worker, remote/relay that of the guest's side.
package frame
