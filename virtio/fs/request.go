package fs

import (
	"log/slog"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"

	"causeway/virtio"
)

// Requests and replies that are decoded or built in private memory. WRITE data and READ data of
// files bypass it.
const (
	maxIn  = inHeaderSize + 4096 + 64 // a name of PATH_MAX and the largest fixed arguments
	maxOut = 32 << 10                 // directory listings; shorter than asked is legal
)

// request is the request being decoded. One exists per queue, and is reused: a handler that
// completes later moves what it needs to a pending.
type request struct {
	d     *Device
	queue int
	log   *slog.Logger

	c    *virtio.Chain
	hdr  fuse.InHeader
	in   []byte // private copy of the request, header included
	body []byte // what follows the header in it
	out  []byte // reply payload, built here
	data int    // bytes that the handler put behind the out header itself
	late bool   // the handler completes the chain, or did

	inBuf, outBuf []byte
	lastLog       time.Time
}

func newRequest(d *Device, queue int) *request {
	return &request{d: d, queue: queue, log: d.log}
}

// serve decodes and answers c.
func (r *request) serve(c *virtio.Chain) {
	if r.inBuf == nil { // most queues are never used
		r.inBuf, r.outBuf = aligned(maxIn), aligned(maxOut)
	}
	r.c, r.out, r.data, r.late = c, nil, 0, false
	n := c.ReadAt(r.inBuf, 0)
	if n < inHeaderSize {
		r.complain("request is shorter than a header")
		c.Complete(0)
		return
	}
	r.hdr = *as[fuse.InHeader](r.inBuf)
	errno := syscall.EIO
	if length := int64(r.hdr.Length); length < inHeaderSize || length > int64(c.ReadableLen()) {
		r.complain("request length contradicts its descriptors")
	} else {
		r.in = r.inBuf[:min(int64(n), length)]
		r.body = r.in[inHeaderSize:]
		errno = r.dispatch()
	}
	if r.late {
		return
	}
	answer(c, r.hdr.Unique, errno, r.out, r.data)
}

func (r *request) dispatch() syscall.Errno {
	o := lookupOp(r.hdr.Opcode)
	if o.handler == nil {
		return o.errno
	}
	if len(r.body) < o.args {
		r.complain("request is too short for " + o.name)
		return syscall.EINVAL
	}
	var n *node
	if o.node {
		if n = r.d.node(r.hdr.NodeId); n == nil {
			return syscall.ESTALE
		}
	}
	return o.handler(r, n)
}

// complain logs what a guest can repeat at will: at most one line a second.
func (r *request) complain(msg string) {
	if now := time.Now(); now.Sub(r.lastLog) > time.Second {
		r.lastLog = now
		r.log.Warn("malformed FUSE request", "queue", r.queue, "error", msg, "opcode", r.hdr.Opcode)
	}
}

// name decodes body as one NUL-terminated name.
func (r *request) name() (string, syscall.Errno) {
	for i, b := range r.body {
		if b == 0 {
			if i > 255 {
				return "", syscall.ENAMETOOLONG
			}
			return string(r.body[:i]), 0
		}
	}
	return "", syscall.EINVAL
}

func (r *request) caller() Caller {
	return Caller{UID: r.hdr.Uid, GID: r.hdr.Gid, PID: r.hdr.Pid}
}

// payloadRoom is how many bytes fit behind the out header.
func (r *request) payloadRoom() int { return max(0, r.c.WritableLen()-outHeaderSize) }
