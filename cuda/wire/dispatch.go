package wire

import (
	"fmt"
	"sync/atomic"

	"causeway/cuda"
)

// maxKept bounds the reply buffer that a Dispatcher keeps between calls.
const maxKept = 1 << 20

// Dispatcher decodes requests and hands them to a Driver. One goroutine uses it.
type Dispatcher struct {
	// Captures says how many streams of the session capture: while none does, nothing is asked of
	// Admit. nil: it always is.
	Captures *atomic.Int32

	requests requests
	replies  replies
	in       reader
	w        writer
	out      []byte
	last     Op
	args     Args
	reply    Reply
}

// Dispatch executes one request. rec is the whole record, header included; it may be memory that
// the guest changes meanwhile, and its header is not read: c carries the private copy. An error
// means that the bytes break the protocol. If bytes sent ahead are missing the operation fails with
// cuda.ErrorInvalidValue. payload is valid until the next Dispatch; it is nil if the operation has
// no reply, failed, or was taken by a Pending (c.Taken()).
func (d *Dispatcher) Dispatch(drv Driver, c *Call, rec []byte, blobs BlobSource) (payload []byte, res cuda.Result, err error) {
	d.release()
	d.last = c.Op
	info := c.Op.Info()
	if info == nil {
		return nil, 0, fmt.Errorf("%w: unknown operation %d", ErrMalformed, uint16(c.Op))
	}
	if err := d.in.begin(rec, RecordSize, info.Fixed, blobs); err != nil {
		return nil, 0, fmt.Errorf("%s: %w", info.Name, err)
	}
	c.next, c.pending = 0, nil
	d.in.refused = c.Refuse != cuda.Success
	res, ok := d.call(drv, c)
	if c.atReturn != nil {
		c.atReturn()
		c.atReturn = nil
	}
	d.in.all, d.in.blobs = nil, nil
	switch {
	case !ok && d.in.err != nil:
		return nil, 0, fmt.Errorf("%s: %w", info.Name, d.in.err)
	case !ok && d.in.refused:
		return nil, c.Refuse, nil
	case !ok:
		return nil, cuda.ErrorInvalidValue, nil
	case c.pending != nil:
		return nil, 0, nil
	case d.reply == nil || res != cuda.Success && !info.Always:
		return nil, res, nil
	}
	if cap(d.out) > maxKept {
		d.out = nil
	}
	d.w.begin(d.out[:0], 0, info.ReplyFixed)
	d.reply.encode(&d.w)
	d.out = d.w.finish()
	d.w.b = nil
	return d.out, res, nil
}

func (d *Dispatcher) capturing() bool { return d.Captures == nil || d.Captures.Load() != 0 }

// Args is the request that Dispatch last gave to the driver, nil if it gave none. It is valid until
// the next Dispatch.
func (d *Dispatcher) Args() Args { return d.args }
