// Package virtio implements the device side of split virtqueues (virtio 1.2, section 2.7) over the
// memory table of package vhostuser: indirect descriptors, event index in both directions, any
// number of queues.
//
// A Queue turns available entries into Chains. A Chain lends the guest's buffers as Segments, each
// with its guest-physical address and the host bytes behind it. Chains may be completed in any
// order and from any goroutine. A Runner gives each queue a goroutine that waits for kicks and
// hands chains to a Handler; it provides StartQueue and StopQueue for a vhostuser.Device.
//
// # Hostile rings
//
// Everything in the ring is the guest's to change at any time. Each shared field is read once, with
// the width of its type, and checked before use: indexes against the queue size, addresses against
// the memory table, the number of descriptors against a limit (which also ends loops). A bad chain
// is returned to the guest unread; a bad available index breaks the queue until the front end
// starts it again.
//
// # Order
//
// The driver publishes a descriptor before its available entry before the available index; the
// device reads in the opposite order. The device writes data, then the used entry, then the used
// index, then reads used_event (or flags). Go's atomics are sequentially consistent, which gives
// each of these fences; 16-bit fields are reached through the aligned 32-bit word around them,
// since sync/atomic has no narrower type. Little-endian hosts only.
//
// # Goroutines and locks
//
// Pop and its notification control belong to one goroutine (the Runner's). Chain.Complete takes
// Queue.mu and nothing else. A chain pins the memory table (vhostuser.View) until its completion.
package virtio
