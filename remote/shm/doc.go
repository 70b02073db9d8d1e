// Package shm carries a session over memory that the guest process and this one both map: a memfd
// of a process on the same host, or pages of a VM's RAM that the guest has lent.
//
// # Shared words
//
// Region 0 is the guest's to change at any time. Ring reads tail once per turn and each record
// header once, into private memory, and checks them before use; what lies behind a header is the
// decoder's to read once. The consumer's own head is private: the word in the control page is
// written, never read.
//
// Publish order, guest to host: record bytes, tail, then worker_state is read. Host to guest:
// WRITEs, payload, result and lengths, seq_done, then waiting is exchanged. Go's atomics are
// sequentially consistent, which is at least what each step needs.
//
// # Mapped memory
//
// Memory reserves one range of addresses for each mapped region and fills it by file mappings, at
// the guest's own address when asked. Detach puts nothing in their place and Attach brings them
// back, at the same address: that is how loans of a stopped guest process lapse. Lock order:
// Memory.mu only.
package shm
