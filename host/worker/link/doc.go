// Package link is the channel between a worker process and the process that started it (run, serve
// or device): one SOCK_SEQPACKET socket, a message per packet, descriptors beside it.
//
// A message is a value of a type of its own: those that the parent sends are ToWorker, those that
// the worker sends ToParent, and an end can neither send nor receive those of the other direction.
// What a kind of message looks like, how long it may be and how many descriptors come along, is one
// row of a table (kinds.go). On the wire it is the number of its kind and its fields, little-endian
// and without padding; one field of variable length may come last and ends with the packet.
//
// The parent trusts nothing in what the worker sends: the worker runs a guest's requests. The
// worker trusts its parent, which however passes on numbers that came from the guest. Either way a
// packet is checked once, by Receive, which alone makes a Received: whoever has one need not look
// at sizes, counts and bounds again. An end that is sent anything else ends the session.
//
// One goroutine reads a Conn; Send may be called from any.
package link
