package ibv

/*
#cgo LDFLAGS: -ldl
#include "shim.h"

#cgo noescape cw_post
#cgo nocallback cw_post
#cgo noescape cw_post_receive
#cgo nocallback cw_post_receive
#cgo noescape cw_poll
#cgo nocallback cw_poll
#cgo nocallback cw_arm
*/
import "C"

import (
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"

	"causeway/remote/verbs"
)

// library is libibverbs, for the life of the process.
type library struct{ c *C.struct_cw_lib }

// load loads a library under a name.
func load(name string) (*library, error) {
	cname := C.CString(name)
	defer C.free(unsafe.Pointer(cname))
	lib := (*C.struct_cw_lib)(C.calloc(1, C.sizeof_struct_cw_lib))
	var text *C.char
	if missing := C.cw_load(lib, cname, &text); missing != nil {
		why := C.GoString(missing) + " is missing in it"
		if text != nil {
			why = C.GoString(text)
			C.free(unsafe.Pointer(text))
		}
		C.free(unsafe.Pointer(lib))
		return nil, fmt.Errorf("%w (%s)", ErrNoLibrary, why)
	}
	return &library{lib}, nil
}

// device is an opened RDMA device.
type device struct {
	lib *library
	ctx *C.struct_ibv_context
	pd  *C.struct_ibv_pd
}

// errno makes an error of what a call of the library's returned.
func errno(what string, n C.int) error {
	if n == 0 {
		return nil
	}
	return fmt.Errorf("%s: %w", what, unix.Errno(n))
}

func (l *library) open(name string) (*device, error) {
	cname := C.CString(name)
	defer C.free(unsafe.Pointer(cname))
	d := &device{lib: l}
	if err := errno("open", C.cw_open(l.c, cname, &d.ctx, &d.pd)); err != nil {
		return nil, err
	}
	return d, nil
}

func (d *device) close() error { return errno("close", C.cw_close(d.lib.c, d.ctx, d.pd)) }

func (d *device) mtu(port int) (verbs.MTU, error) {
	var mtu C.uint32_t
	err := errno("query port", C.cw_mtu(d.lib.c, d.ctx, C.int(port), &mtu))
	return verbs.MTU(mtu), err
}

// memory implements verbs.Memory.
type memory struct {
	d    *device
	mr   *C.struct_ibv_mr
	addr uint64
}

// register pins memory; onDemand: where that is refused it may be found page by page when the other
// end reads it, which Linux 7.2's soft RoCE offers and does wrong: other bytes come and go. Its
// bytes are not Go's: they stay where they are.
func (d *device) register(mem []byte, may verbs.Access, onDemand bool) (*memory, error) {
	access := C.int(C.IBV_ACCESS_LOCAL_WRITE)
	if may&verbs.RemoteWrite != 0 {
		access |= C.IBV_ACCESS_REMOTE_WRITE
	}
	if may&verbs.RemoteRead != 0 {
		access |= C.IBV_ACCESS_REMOTE_READ
	}
	m := &memory{d: d, addr: uint64(uintptr(unsafe.Pointer(unsafe.SliceData(mem))))}
	n := C.cw_register(d.lib.c, d.pd, C.uint64_t(m.addr), C.size_t(len(mem)), access, &m.mr)
	if n != 0 && onDemand && may&verbs.RemoteRead != 0 && C.cw_register(d.lib.c, d.pd, C.uint64_t(m.addr), C.size_t(len(mem)), access|C.IBV_ACCESS_ON_DEMAND, &m.mr) == 0 {
		return m, nil // an adapter that looks pages up when it comes to them need not pin them
	}
	if n != 0 {
		return nil, unregistered(uint64(len(mem)), n)
	}
	return m, nil
}

// unregistered is what comes of memory that is refused.
func unregistered(size uint64, n C.int) error {
	switch unix.Errno(n) {
	case unix.ENOMEM, unix.EAGAIN:
		return fmt.Errorf("register %d bytes: %w: the limit of locked memory (ulimit -l, LimitMEMLOCK) may be too low", size, unix.Errno(n))
	}
	return errno("register memory", n)
}

// registerAddress registers memory of a GPU's by its addresses, for this end's own work.
func (d *device) registerAddress(address, size uint64) (*memory, error) {
	m := &memory{d: d, addr: address}
	switch n := C.cw_register(d.lib.c, d.pd, C.uint64_t(address), C.size_t(size), C.IBV_ACCESS_LOCAL_WRITE, &m.mr); unix.Errno(n) {
	case 0:
		return m, nil
	case unix.EFAULT:
		return nil, fmt.Errorf("%w: no module of the kernel's knows such memory (nvidia-peermem)", unix.EFAULT)
	default:
		return nil, unregistered(size, n)
	}
}

// registerFile registers a part of a dma-buf, for this end's own work.
func (d *device) registerFile(fd int, off, size, address uint64) (*memory, error) {
	m := &memory{d: d, addr: address}
	n := C.cw_register_file(d.lib.c, d.pd, C.int(fd), C.uint64_t(off), C.size_t(size), C.uint64_t(address), C.IBV_ACCESS_LOCAL_WRITE, &m.mr)
	switch unix.Errno(n) {
	case 0:
		return m, nil
	case unix.ENOSYS:
		return nil, fmt.Errorf("%w: libibverbs has no ibv_reg_dmabuf_mr (rdma-core 34)", verbs.ErrNoWay)
	case unix.EOPNOTSUPP, unix.EPROTONOSUPPORT:
		return nil, fmt.Errorf("%w: the adapter, or its driver, takes none (%w)", verbs.ErrNoWay, unix.Errno(n))
	}
	return nil, unregistered(size, n)
}

// Address implements verbs.Memory.
func (m *memory) Address() uint64 { return m.addr }

// LocalKey implements verbs.Memory.
func (m *memory) LocalKey() uint32 { return uint32(m.mr.lkey) }

// RemoteKey implements verbs.Memory.
func (m *memory) RemoteKey() uint32 { return uint32(m.mr.rkey) }

// Close implements verbs.Memory.
func (m *memory) Close() error { return errno("deregister memory", C.cw_deregister(m.d.lib.c, m.mr)) }

// pair is a queue pair with its completion queue. C memory: it is known to the library by address.
type pair struct {
	d      *device
	c      *C.struct_cw_queue
	inline int
}

func (d *device) pair(size verbs.QueueSize) (*pair, error) {
	p := &pair{d: d, c: (*C.struct_cw_queue)(C.calloc(1, C.sizeof_struct_cw_queue))}
	inline := C.uint32_t(size.Inline)
	if err := errno("queue pair", C.cw_queue_open(d.lib.c, d.ctx, d.pd, C.int(size.Send), C.int(size.Receive), &inline, p.c)); err != nil {
		C.free(unsafe.Pointer(p.c))
		return nil, err
	}
	p.inline = int(inline)
	return p, nil
}

func (p *pair) number() uint32 { return uint32(p.c.qp.qp_num) }

// channel is the descriptor that is readable when there is an event. The library's.
func (p *pair) channel() int { return int(p.c.channel.fd) }

func (p *pair) connect(port, pkey int, path verbs.Path) error {
	peer := path.Peer.Offer()
	c := C.struct_cw_path{
		port: C.int(port), pkey_index: C.uint16_t(pkey), gid_index: C.int(path.GIDIndex), mtu: C.uint32_t(path.MTU), own_psn: C.uint32_t(path.OwnPSN),
		peer_psn: C.uint32_t(peer.PSN), peer_qp: C.uint32_t(peer.Queue), peer_lid: C.uint16_t(peer.LID), timeout: timeout,
	}
	for i, b := range peer.GID {
		c.peer_gid[i] = C.uint8_t(b)
	}
	if peer.Link == verbs.Ethernet || peer.LID == 0 {
		c.global = 1
	}
	var step *C.char
	if n := C.cw_connect(p.d.lib.c, p.c.qp, &c, &step); n != 0 {
		return errno("connect the queue pair ("+C.GoString(step)+")", n)
	}
	return nil
}

var opcodes = [...]C.uint32_t{verbs.Write: C.IBV_WR_RDMA_WRITE, verbs.WriteImmediate: C.IBV_WR_RDMA_WRITE_WITH_IMM, verbs.Read: C.IBV_WR_RDMA_READ}

func (p *pair) post(ws []verbs.Work) error {
	for len(ws) > 0 {
		var chain [C.CW_CHAIN]C.struct_cw_work
		n := min(len(ws), len(chain))
		for i, w := range ws[:n] {
			chain[i] = C.struct_cw_work{
				id: C.uint64_t(w.ID), local: C.uint64_t(w.Local), remote: C.uint64_t(w.Remote), length: C.uint32_t(w.Length), lkey: C.uint32_t(w.LocalKey),
				rkey: C.uint32_t(w.RemoteKey), immediate: C.uint32_t(w.Immediate), opcode: opcodes[w.Op],
			}
			if w.Signaled {
				chain[i].flags |= C.IBV_SEND_SIGNALED
			}
			if w.Inline && w.Length > 0 {
				chain[i].flags |= C.IBV_SEND_INLINE
			}
		}
		if err := errno("post", C.cw_post(p.c.qp, &chain[0], C.int(n))); err != nil {
			return err
		}
		ws = ws[n:]
	}
	return nil
}

func (p *pair) postReceive(n int) error {
	return errno("post receives", C.cw_post_receive(p.c.qp, C.int(n)))
}

func (p *pair) poll(cs []verbs.Completion) (int, error) {
	var got [C.CW_CHAIN]C.struct_cw_completion
	if len(cs) < len(got) {
		return 0, fmt.Errorf("poll: room for %d completions, not %d", len(cs), len(got))
	}
	n := C.cw_poll(p.c.cq, &got[0])
	if n < 0 {
		return 0, errors.New("poll: the completion queue is broken")
	}
	for i, c := range got[:n] {
		cs[i] = verbs.Completion{
			ID: uint64(c.id), Status: verbs.Status(c.status), Vendor: uint32(c.vendor), Received: c.received != 0, Immediate: uint32(c.immediate),
		}
	}
	return int(n), nil
}

func (p *pair) arm() error { return errno("arm", C.cw_arm(p.c.cq)) }

// event takes one event, if there is one: else EAGAIN.
func (p *pair) event() unix.Errno { return unix.Errno(C.cw_event(p.d.lib.c, p.c)) }

func (p *pair) close() error {
	err := errno("close the queue pair", C.cw_queue_close(p.d.lib.c, p.c))
	C.free(unsafe.Pointer(p.c))
	return err
}
