// Package link is the channel between a worker process and the process that started it (run, serve or device): one
// SOCK_SEQPACKET socket, a message per packet, descriptors beside it.
//
// The parent trusts nothing in what the worker sends: the worker runs a guest's requests. The worker trusts its parent.
//
// One goroutine reads a Conn; Send may be called from any.
package link
