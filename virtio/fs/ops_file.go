package fs

import (
	"errors"
	"io"
	"math"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"

	"causeway/virtio"
)

// controlFlags: every process of a guest opens the same inode. Without PARALLEL_DIRECT_WRITES the
// guest kernel holds the inode's lock while a WRITE is answered, and a flush at close takes it too:
// one process's pending request would hold up the doorbells and exits of all others. Kernels before
// 6.2 do not know the flag (fs/fuse/file.c).
const controlFlags = fuse.FOPEN_DIRECT_IO | fuse.FOPEN_NOFLUSH | fuse.FOPEN_PARALLEL_DIRECT_WRITES

// open gives control files a handle; other files need none, for their content is found by inode.
func (r *request) open(n *node) syscall.Errno {
	in := as[fuse.OpenIn](r.in)
	switch {
	case n.isDir():
		return syscall.EISDIR
	case n.isLink():
		return syscall.ELOOP
	}
	out := fuse.OpenOut{OpenFlags: fuse.FOPEN_KEEP_CACHE}
	if _, live := n.content.(Live); live {
		// Which also reads beyond the size that the guest knows.
		out.OpenFlags = fuse.FOPEN_DIRECT_IO
	}
	if n.control != nil {
		fh, errno := r.d.open(n, r.caller())
		if errno != 0 {
			return errno
		}
		out = fuse.OpenOut{Fh: fh, OpenFlags: controlFlags}
	} else if in.Flags&syscall.O_ACCMODE != syscall.O_RDONLY || in.Flags&syscall.O_TRUNC != 0 {
		return syscall.EROFS
	}
	r.reply(image(&out))
	return 0
}

func (r *request) opendir(n *node) syscall.Errno {
	if !n.isDir() {
		return syscall.ENOTDIR
	}
	out := fuse.OpenOut{OpenFlags: fuse.FOPEN_KEEP_CACHE | fuse.FOPEN_CACHE_DIR}
	r.reply(image(&out))
	return 0
}

func (r *request) read(n *node) syscall.Errno {
	in := as[fuse.ReadIn](r.in)
	size := min(int(in.Size), r.payloadRoom())
	switch {
	case n.isDir():
		return syscall.EISDIR
	case in.Offset > math.MaxInt64-uint64(size):
		return syscall.EINVAL
	case n.control != nil:
		return r.readControl(n, in, size)
	case n.content == nil:
		return syscall.EINVAL
	}
	return r.readContent(n.content, int64(in.Offset), size)
}

// readContent reads straight into the guest's pages.
func (r *request) readContent(c Content, off int64, size int) syscall.Errno {
	if f, ok := c.(Live); ok {
		c = memory(f()) // one text for the whole of the reading
	}
	if off >= c.Size() {
		return 0
	}
	size = int(min(int64(size), c.Size()-off))
	if m, ok := c.(memory); ok {
		r.data = r.c.WriteAt(m[off:off+int64(size)], outHeaderSize)
		return 0
	}
	skip := outHeaderSize
	for _, s := range r.c.Writable {
		p := s.Data
		if skip >= len(p) {
			skip -= len(p)
			continue
		}
		p, skip = p[skip:], 0
		p = p[:min(len(p), size-r.data)]
		n, err := c.ReadAt(p, off+int64(r.data))
		r.data += n
		if n < len(p) {
			if r.data == 0 && err != nil && !errors.Is(err, io.EOF) {
				r.log.Error("served file cannot be read", "error", err)
				return syscall.EIO
			}
			break
		}
		if r.data == size {
			break
		}
	}
	return 0
}

// readControl turns the request into a loan.
func (r *request) readControl(n *node, in *fuse.ReadIn, size int) syscall.Errno {
	h := r.d.handle(in.Fh, n.id)
	if h == nil || !h.begin() {
		return syscall.EBADF
	}
	defer h.use.RUnlock()
	r.d.room.saw(size)
	req := &ReadRequest{Offset: int64(in.Offset), Size: size}
	if in.ReadFlags&fuse.READ_LOCKOWNER != 0 {
		req.LockOwner = in.LockOwner
	}
	req.p.segs = virtio.Slice(make([]virtio.Segment, 0, len(r.c.Writable)), r.c.Writable, outHeaderSize, size)
	if !r.park(h, &req.p, req) {
		return syscall.ENOMEM
	}
	h.ctl.Read(req)
	return 0
}

func (r *request) write(n *node) syscall.Errno {
	in := as[fuse.WriteIn](r.in)
	dataOff := inHeaderSize + args[fuse.WriteIn]()
	switch {
	case n.control == nil:
		return syscall.EROFS
	case int64(in.Size) > int64(r.hdr.Length)-int64(dataOff) || in.Size > maxWrite:
		r.complain("WRITE announces more data than it has")
		return syscall.EINVAL
	case in.Offset > math.MaxInt64-uint64(in.Size):
		return syscall.EINVAL
	}
	h := r.d.handle(in.Fh, n.id)
	if h == nil || !h.begin() {
		return syscall.EBADF
	}
	defer h.use.RUnlock()
	req := &WriteRequest{Offset: int64(in.Offset), Size: int(in.Size)}
	if in.WriteFlags&fuse.WRITE_LOCKOWNER != 0 {
		req.LockOwner = in.LockOwner
	}
	req.p.segs = virtio.Slice(make([]virtio.Segment, 0, len(r.c.Readable)), r.c.Readable, dataOff, req.Size)
	if !r.park(h, &req.p, req) {
		return syscall.ENOMEM
	}
	h.ctl.Write(req)
	return 0
}

// park moves the chain to p, whose owner completes it, unless the guest keeps too much pending
// already.
func (r *request) park(h *handle, p *pending, owner Request) bool {
	// The chain's, not those that the request says it means: all of it is kept as long.
	n := int64(len(r.c.Readable) + len(r.c.Writable))
	if r.d.parked.Add(n) > int64(r.d.opts.MaxPages) {
		r.d.parked.Add(-n)
		r.complain("too much guest memory in pending requests")
		return false
	}
	p.pieces = n
	p.h, p.owner, p.queue, p.unique, p.c = h, owner, r.queue, r.hdr.Unique, r.c
	r.late = true
	h.mu.Lock()
	h.linkLocked(p)
	h.mu.Unlock()
	return true
}

func (r *request) flush(n *node) syscall.Errno {
	in := as[fuse.FlushIn](r.in)
	if n.control == nil {
		return 0
	}
	h := r.d.handle(in.Fh, n.id)
	if h == nil || !h.begin() {
		return syscall.EBADF
	}
	defer h.use.RUnlock()
	h.ctl.Flush(in.LockOwner)
	return 0
}

func (r *request) release(n *node) syscall.Errno {
	in := as[fuse.ReleaseIn](r.in)
	if n.control == nil {
		return 0
	}
	h := r.d.handle(in.Fh, n.id)
	if h == nil {
		return syscall.EBADF
	}
	r.d.release(h)
	return 0
}
