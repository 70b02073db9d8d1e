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
	// Expect is Open with the head that a handle's SaveHead wrote at the source, perhaps altered on
	// its way. All handles are expected before the first of them is loaded: what takes long begins
	// here, and goes on behind the handle. Guest memory is out of reach.
	Expect(c Caller, head []byte) (MovableHandle, error)
}

// A MovableHandle is a handle of a MovableFile. Its requests were revoked.
type MovableHandle interface {
	ControlHandle
	// Movable says beforehand why Save would fail; nil if nothing is known. It must return before
	// ctx ends.
	Movable(ctx context.Context) error
	// SaveHead returns what Expect needs, MostHead bytes at most, and Save writes what Load needs
	// besides. Several handles' are called at once. The handle stays as it is: the guest may come
	// back to it.
	SaveHead() ([]byte, error)
	Save(w io.Writer) error
	// Load takes what Save wrote, perhaps altered on its way, and returns when the handle is as it
	// was. Those of all handles run at once, and what they read comes in turn. It must end when
	// reading fails or ctx has ended; Release follows after an error.
	Load(ctx context.Context, r io.Reader) error
}

// errNotMovable says that a control file knows nothing of moves.
var errNotMovable = errors.New("this control file cannot be moved")

/*
The state of a device: stateMagic, the tree, the last number of a handle, the heads of handles, what
is in them, and a checksum of it all. The tree is a sum for each node, because guests keep numbers
and contents of nodes. A head is a handle's number, its node, its caller, and what its SaveHead
wrote behind its length. What Saves wrote comes in parts, in any order among handles: the handle's
place among the heads, from 0 on, a length, and bytes; one of length 0 is the handle's last. Numbers
are little-endian.
*/

// stateMagic opens a saved state: name and version.
const stateMagic = "CWFS\x03\x00\x00\x00"

// Bounds of a state.
const (
	MostHead  = 1 << 20   // bytes of a handle's head
	statePart = 256 << 10 // and of a part
	mostFH    = 1 << 62   // no device has opened so many files
)

// ErrState is wrapped in the error of Load for bytes that are no state of this device.
var ErrState = errors.New("virtio-fs state")

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// savedHandle is a handle's head as bytes.
type savedHandle struct {
	FH, Node      uint64
	UID, GID, PID uint32
	Size          uint32 // of what follows of it
}

// moveLook bounds how long the guest stands while its handles are asked whether they can move.
const moveLook = 300 * time.Millisecond

// Movable says why Save would fail now, as far as handles know within a moment; nil: nothing is
// known.
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
	if err == nil {
		err = saveHandles(to, hs)
	}
	if err == nil {
		err = binary.Write(b, binary.LittleEndian, sum.Sum32())
	}
	if err == nil {
		err = b.Flush()
	}
	return err
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
	if n[0] > mostFH {
		// Numbers to come would be those of handles that are there, which nobody would find again.
		return fmt.Errorf("%w: the last open file has number %d", ErrState, n[0])
	}
	if n[1] > uint64(d.opts.MaxHandles) {
		return fmt.Errorf("%w: %d open files, this host allows %d", ErrState, n[1], d.opts.MaxHandles)
	}
	if err := d.loadHandles(from, n[0], int(n[1])); err != nil {
		return err
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
	if s, ok := n.content.(Summed); ok {
		_, err := h.Write(s.Sum())
		return err
	}
	_, err := io.Copy(h, io.NewSectionReader(n.content, 0, n.content.Size()))
	return err
}

// SumTree adds up the contents of the tree, which takes milliseconds. Save and Load do, while the
// guest stands, if nobody has before.
func (d *Device) SumTree() { _, _ = d.sums() }

// sumNodes are the sums of all nodes.
func (d *Device) sumNodes() ([]nodeSum, error) {
	sums := make([]nodeSum, len(d.nodes))
	for i, n := range d.nodes {
		var err error
		if sums[i], err = n.sum(); err != nil {
			return nil, fmt.Errorf("%s: %w", n.name, err)
		}
	}
	return sums, nil
}

func (d *Device) saveTree(w io.Writer) error {
	sums, err := d.sums()
	if err != nil {
		return err
	}
	if err := binary.Write(w, binary.LittleEndian, uint64(len(sums))); err != nil {
		return err
	}
	for i := range sums {
		if _, err := w.Write(sums[i][:]); err != nil {
			return err
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
	ours, err := d.sums()
	if err != nil {
		return err
	}
	for i, x := range d.nodes {
		var theirs nodeSum
		if _, err := io.ReadFull(r, theirs[:]); err != nil {
			return fmt.Errorf("%w: %w", ErrState, err)
		}
		if ours[i] != theirs {
			return fmt.Errorf("%w: %q is another file at the source: both hosts need the same version of Causeway", ErrState, x.name)
		}
	}
	return nil
}
