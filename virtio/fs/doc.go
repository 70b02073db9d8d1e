// Package fs is a virtio-fs device (virtio 1.2, section 5.11): a FUSE server on virtqueues that
// serves one static tree.
//
// Ordinary files, directories and symbolic links are read-only and cached by the guest for ever: a
// changed library needs a new name. Control files are never cached (FOPEN_DIRECT_IO), claim a huge
// size, and hand each open, read and write to the owner of the device.
//
//	root := fs.NewDir()
//	root.Dir("lib").File("libcuda.so.1", fs.Bytes(image), 0o555)
//	root.Control("session", ctl) // ctl is a ControlFile
//	dev, err := fs.New(mem, root, fs.Options{RequestQueues: 2, Logger: log})
//	srv := vhostuser.NewServer(mem, dev, vhostuser.Options{Logger: log})
//
// # Loans
//
// A pending READ of a control file lends its destination pages: between ControlHandle.Read and
// ReadRequest.Complete both sides may read and write them. The device takes pages back when a ring
// stops (power-off, migration, suspend), when the guest is reset, when the front end disconnects,
// when memory is removed and when the file is closed: it calls ControlHandle.Revoke, and then
// completes what is still pending (a READ with 0 bytes, which leaves the pages alone and means
// "renew"; a WRITE with EAGAIN).
//
// # Replies
//
// Each reply's used length equals out_header.len and its unique equals the request's: Linux 7.1 and
// newer fail the mount otherwise.
//
// # Goroutines and locks
//
// Each queue's goroutine decodes and answers requests; Open, Read, Write, Flush and Release of
// control files are called on it and must not block. Lock order: handle.use (read-held during calls
// to its owner), Device.mu (handle table), handle.mu (pending requests of a handle), the queue's
// lock. ControlFile and ControlHandle are called with none but handle.use held; they may complete
// requests, not cancel them (CancelPending).
package fs
