package fs

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"hash/crc32"
	"io"
	"slices"
	"sync"
	"time"
)

// A MovableFile is a ControlFile whose handles can go to another host with their guest.
type MovableFile interface {
	ControlFile
	// Load is Open with what a handle's Save wrote at the source, perhaps altered on its way. Guest memory is out of reach. It must end when
	// reading fails, and leaves nothing behind then.
	Load(c Caller, r io.Reader) (ControlHandle, error)
}

// A MovableHandle is a handle of a MovableFile. Its requests were revoked.
type MovableHandle interface {
	ControlHandle
	// Movable says beforehand why Save would fail; nil if nothing is known. It must return before ctx ends.
	Movable(ctx context.Context) error
	// Save writes what Load needs. The handle stays as it is: the guest may come back to it.
	Save(w io.Writer) error
}

// errNotMovable says that a control file knows nothing of moves.
var errNotMovable = errors.New("this control file cannot be moved")

/*
The state of a device: stateMagic, the tree, the last number of a handle, the handles, and a checksum of it all. The tree is a sum for each
node, because guests keep numbers and contents of nodes. A handle is its number, its node, its caller, and what its Save wrote in parts: each behind
its length, the last of length 0. Numbers are little-endian.
*/

// stateMagic opens a saved state: name and version.
const stateMagic = "CWFS\x02\x00\x00\x00"

// statePart is the most bytes of a part.
const statePart = 1 << 20

// ErrState is wrapped in the error of Load for bytes that are no state of this device.
var ErrState = errors.New("virtio-fs state")

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// savedHandle is a handle's head as bytes.
type savedHandle struct {
	FH, Node      uint64
	UID, GID, PID uint32
}

// moveLook bounds how long the guest stands while its handles are asked whether they can move.
const moveLook = 300 * time.Millisecond

// Movable says why Save would fail now, as far as handles know within a moment; nil: nothing is known.
func (d *Device) Movable() error {
	ctx, cancel := context.WithTimeout(context.Background(), moveLook)
	defer cancel()
	hs := d.allHandles()
	errs := make([]error, len(hs))
	var wg sync.WaitGroup
	for i, h := range hs {
		wg.Go(func() {
			err := errNotMovable
			if m, ok := h.ctl.(MovableHandle); ok {
				err = m.Movable(ctx)
			}
			if err != nil {
				errs[i] = fmt.Errorf("%s, open in guest process %d: %w", h.node.name, h.caller.PID, err)
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// Save implements vhostuser.StateHandler.
func (d *Device) Save(w io.Writer) error {
	b := bufio.NewWriterSize(w, 256<<10)
	sum := crc32.New(castagnoli)
	to := io.MultiWriter(b, sum)
	hs := d.allHandles()
	slices.SortFunc(hs, func(a, b *handle) int { return int(int64(a.fh) - int64(b.fh)) })
	d.mu.Lock()
	last := d.lastFH
	d.mu.Unlock()
	_, err := io.WriteString(to, stateMagic)
	if err == nil {
		err = d.saveTree(to)
	}
	if err == nil {
		err = binary.Write(to, binary.LittleEndian, []uint64{last, uint64(len(hs))})
	}
	for _, h := range hs {
		if err == nil {
			err = h.save(to)
		}
	}
	if err == nil {
		err = binary.Write(b, binary.LittleEndian, sum.Sum32())
	}
	if err == nil {
		err = b.Flush()
	}
	return err
}

func (h *handle) save(w io.Writer) error {
	m, ok := h.ctl.(MovableHandle)
	if !ok {
		return fmt.Errorf("%s, open in guest process %d: %w", h.node.name, h.caller.PID, errNotMovable)
	}
	head := savedHandle{FH: h.fh, Node: h.node.id, UID: h.caller.UID, GID: h.caller.GID, PID: h.caller.PID}
	if err := binary.Write(w, binary.LittleEndian, &head); err != nil {
		return err
	}
	if err := m.Save(partWriter{w}); err != nil {
		return fmt.Errorf("%s, open in guest process %d: %w", h.node.name, h.caller.PID, err)
	}
	if h.holds() {
		return fmt.Errorf("%s, open in guest process %d: requests are still in flight", h.node.name, h.caller.PID)
	}
	return binary.Write(w, binary.LittleEndian, uint32(0))
}

// Load implements vhostuser.StateHandler.
func (d *Device) Load(r io.Reader) (err error) {
	if n := len(d.allHandles()); n > 0 {
		return fmt.Errorf("%d files are open in the guest that is here", n)
	}
	defer func() {
		if err != nil {
			d.releaseAll()
		}
	}()
	sum := crc32.New(castagnoli)
	b := bufio.NewReaderSize(r, 256<<10)
	from := io.TeeReader(b, sum)
	magic := make([]byte, len(stateMagic))
	if _, err := io.ReadFull(from, magic); err != nil || string(magic) != stateMagic {
		return fmt.Errorf("%w: it does not start with this version's mark but %q", ErrState, magic)
	}
	if err := d.checkTree(from); err != nil {
		return err
	}
	var n [2]uint64
	if err := binary.Read(from, binary.LittleEndian, n[:]); err != nil {
		return fmt.Errorf("%w: %w", ErrState, err)
	}
	if n[1] > uint64(d.opts.MaxHandles) {
		return fmt.Errorf("%w: %d open files, this host allows %d", ErrState, n[1], d.opts.MaxHandles)
	}
	for range n[1] {
		if err := d.loadHandle(from, n[0]); err != nil {
			return err
		}
	}
	want := sum.Sum32()
	var got uint32
	if err := binary.Read(b, binary.LittleEndian, &got); err != nil || got != want {
		return fmt.Errorf("%w: it was altered: its sum is %#x, not %#x", ErrState, want, got)
	}
	if _, err := b.ReadByte(); !errors.Is(err, io.EOF) {
		return fmt.Errorf("%w: more follows it", ErrState)
	}
	d.mu.Lock()
	d.lastFH = max(d.lastFH, n[0])
	d.mu.Unlock()
	return nil
}

func (d *Device) loadHandle(r io.Reader, last uint64) error {
	var head savedHandle
	if err := binary.Read(r, binary.LittleEndian, &head); err != nil {
		return fmt.Errorf("%w: %w", ErrState, err)
	}
	n := d.node(head.Node)
	if n == nil || n.control == nil || head.FH == 0 || head.FH > last || d.handle(head.FH, head.Node) != nil {
		return fmt.Errorf("%w: open file %d of inode %d", ErrState, head.FH, head.Node)
	}
	m, ok := n.control.(MovableFile)
	if !ok {
		return fmt.Errorf("%s: %w", n.name, errNotMovable)
	}
	c := Caller{UID: head.UID, GID: head.GID, PID: head.PID}
	parts := &partReader{r: r}
	ctl, err := m.Load(c, parts)
	if err == nil {
		if err = parts.end(); err != nil {
			ctl.Release()
		}
	}
	if err != nil {
		return fmt.Errorf("%s, open in guest process %d: %w", n.name, c.PID, err)
	}
	d.mu.Lock()
	d.handles[head.FH] = &handle{d: d, fh: head.FH, node: n, caller: c, ctl: ctl}
	d.mu.Unlock()
	return nil
}

// nodeSum is what guests know of a node.
type nodeSum [sha256.Size]byte

func (n *node) sum() (out nodeSum, err error) {
	h := sha256.New()
	parent := uint64(0)
	if n.parent != nil {
		parent = n.parent.id
	}
	fmt.Fprintf(h, "%d %d %o %q %q\n", n.id, parent, n.mode, n.name, n.target)
	if n.content != nil {
		err = n.sumContent(h)
	}
	copy(out[:], h.Sum(nil))
	return out, err
}

func (n *node) sumContent(h hash.Hash) error {
	if _, live := n.content.(Live); live {
		return nil
	}
	_, err := io.Copy(h, io.NewSectionReader(n.content, 0, n.content.Size()))
	return err
}

func (d *Device) saveTree(w io.Writer) error {
	if err := binary.Write(w, binary.LittleEndian, uint64(len(d.nodes))); err != nil {
		return err
	}
	for _, n := range d.nodes {
		s, err := n.sum()
		if err == nil {
			_, err = w.Write(s[:])
		}
		if err != nil {
			return fmt.Errorf("%s: %w", n.name, err)
		}
	}
	return nil
}

// checkTree refuses another tree than this: its guest has names, numbers and pages of that one.
func (d *Device) checkTree(r io.Reader) error {
	var n uint64
	if err := binary.Read(r, binary.LittleEndian, &n); err != nil {
		return fmt.Errorf("%w: %w", ErrState, err)
	}
	if n != uint64(len(d.nodes)) {
		return fmt.Errorf("%w: the source serves %d files and folders, this host %d: both need the same version of Causeway", ErrState, n, len(d.nodes))
	}
	for _, x := range d.nodes {
		var theirs nodeSum
		if _, err := io.ReadFull(r, theirs[:]); err != nil {
			return fmt.Errorf("%w: %w", ErrState, err)
		}
		ours, err := x.sum()
		if err != nil {
			return fmt.Errorf("%s: %w", x.name, err)
		}
		if ours != theirs {
			return fmt.Errorf("%w: %q is another file at the source: both hosts need the same version of Causeway", ErrState, x.name)
		}
	}
	return nil
}

// partWriter writes bytes in parts.
type partWriter struct{ w io.Writer }

// Write implements io.Writer.
func (p partWriter) Write(b []byte) (n int, err error) {
	for len(b) > 0 {
		part := b[:min(len(b), statePart)]
		if err := binary.Write(p.w, binary.LittleEndian, uint32(len(part))); err != nil {
			return n, err
		}
		k, err := p.w.Write(part)
		if n += k; err != nil {
			return n, err
		}
		b = b[len(part):]
	}
	return n, nil
}

// partReader reads what was written in parts, to the last.
type partReader struct {
	r    io.Reader
	left uint32
	over bool
}

// Read implements io.Reader.
func (p *partReader) Read(b []byte) (int, error) {
	if p.left == 0 && !p.over {
		if err := binary.Read(p.r, binary.LittleEndian, &p.left); err != nil {
			return 0, fmt.Errorf("%w: %w", ErrState, io.ErrUnexpectedEOF)
		}
		if p.left > statePart {
			return 0, fmt.Errorf("%w: a part of %d bytes", ErrState, p.left)
		}
		p.over = p.left == 0
	}
	if p.over {
		return 0, io.EOF
	}
	n, err := p.r.Read(b[:min(len(b), int(p.left))])
	p.left -= uint32(n)
	if errors.Is(err, io.EOF) {
		err = fmt.Errorf("%w: %w", ErrState, io.ErrUnexpectedEOF)
	}
	return n, err
}

// end is nil if everything was read.
func (p *partReader) end() error {
	var b [1]byte
	switch _, err := io.ReadFull(p, b[:]); {
	case err == nil:
		return fmt.Errorf("%w: more than is read of it", ErrState)
	case !errors.Is(err, io.EOF):
		return err
	}
	return nil
}
