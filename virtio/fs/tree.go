package fs

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
)

// ErrBadTree is wrapped in the error of New for a tree that cannot be served.
var ErrBadTree = errors.New("invalid tree")

// ControlSize is the size that control files report: the guest kernel does not send a READ beyond
// it.
const ControlSize = 1 << 62

const rootID = 1 // FUSE_ROOT_ID

// Content is what a regular file holds. ReadAt may be called from several goroutines. Size must not
// change.
type Content interface {
	io.ReaderAt
	Size() int64
}

// Summed is a Content that says by itself what it is, in place of its bytes: of a move the other
// end must serve the same.
type Summed interface {
	Content
	Sum() []byte
}

// Bytes serves b, which must not change.
func Bytes(b []byte) Content { return memory(b) }

type memory []byte

func (m memory) Size() int64 { return int64(len(m)) }

func (m memory) ReadAt(p []byte, off int64) (int, error) {
	if off >= int64(len(m)) {
		return 0, io.EOF
	}
	n := copy(p, m[off:])
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

// Live serves what f returns at each reading: a short text that changes while the device exists.
// Guests keep no copy of it. Any goroutine.
type Live func() []byte

// Size is that of now.
func (f Live) Size() int64 { return int64(len(f())) }

// ReadAt reads the text of now.
func (f Live) ReadAt(p []byte, off int64) (int, error) { return memory(f()).ReadAt(p, off) }

// OSFile serves f, which must stay open, and unchanged, as long as the device exists.
func OSFile(f *os.File) (Content, error) {
	fi, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("serve a file: %w", err)
	}
	if !fi.Mode().IsRegular() {
		return nil, fmt.Errorf("serve %s: not a regular file: %w", f.Name(), ErrBadTree)
	}
	return osFile{f, fi.Size()}, nil
}

type osFile struct {
	*os.File
	size int64
}

func (f osFile) Size() int64 { return f.size }

// Dir is a directory of a tree under construction. Its methods record mistakes (a bad or repeated
// name), which New reports. A tree must not change once New has it.
type Dir struct{ n *node }

// NewDir returns an empty root.
func NewDir() *Dir { return &Dir{&node{name: "/", mode: syscall.S_IFDIR | 0o555}} }

// Dir adds a directory, or returns the one of that name.
func (d *Dir) Dir(name string) *Dir {
	if c := d.n.child(name); c != nil && c.isDir() {
		return &Dir{c}
	}
	return &Dir{d.add(&node{name: name, mode: syscall.S_IFDIR | 0o555})}
}

// File adds a regular file with permission bits perm. Write bits are dropped.
func (d *Dir) File(name string, c Content, perm os.FileMode) {
	n := &node{name: name, mode: syscall.S_IFREG | uint32(perm.Perm()&0o555), content: c}
	if c == nil || c.Size() < 0 {
		d.n.fail(fmt.Errorf("%q has no content: %w", name, ErrBadTree))
		return
	}
	n.size = uint64(c.Size())
	d.add(n)
}

// Symlink adds a symbolic link.
func (d *Dir) Symlink(name, target string) {
	if target == "" || len(target) >= 4096 {
		d.n.fail(fmt.Errorf("%q has a target of %d bytes: %w", name, len(target), ErrBadTree))
	}
	d.add(&node{name: name, mode: syscall.S_IFLNK | 0o777, target: target, size: uint64(len(target))})
}

// Control adds a control file, which everyone may open for reading and writing.
func (d *Dir) Control(name string, c ControlFile) {
	if c == nil {
		d.n.fail(fmt.Errorf("%q has no control file: %w", name, ErrBadTree))
	}
	d.add(&node{name: name, mode: syscall.S_IFREG | 0o666, control: c, size: ControlSize})
}

func (d *Dir) add(n *node) *node {
	switch {
	case n.name == "" || n.name == "." || n.name == ".." || len(n.name) > 255 || strings.ContainsAny(n.name, "/\x00"):
		d.n.fail(fmt.Errorf("name %q: %w", n.name, ErrBadTree))
	case d.n.child(n.name) != nil:
		d.n.fail(fmt.Errorf("%q exists twice: %w", n.name, ErrBadTree))
	}
	n.parent = d.n
	d.n.children = append(d.n.children, n)
	return n
}

// node is one inode. It does not change after New.
type node struct {
	id       uint64 // index in Device.nodes, plus one
	name     string
	parent   *node // nil for the root
	mode     uint32
	size     uint64
	children []*node
	content  Content
	target   string
	control  ControlFile
	err      error
}

func (n *node) isDir() bool  { return n.mode&syscall.S_IFMT == syscall.S_IFDIR }
func (n *node) isLink() bool { return n.mode&syscall.S_IFMT == syscall.S_IFLNK }
func (n *node) fail(e error) { n.err = errors.Join(n.err, e) }

// child finds a name. Directories here are small: a scan beats a map.
func (n *node) child(name string) *node {
	for _, c := range n.children {
		if c.name == name {
			return c
		}
	}
	return nil
}

// number lists the tree below n, parents first, and gives each node its id.
func (n *node) number(nodes []*node) ([]*node, error) {
	n.id = uint64(len(nodes)) + rootID
	nodes = append(nodes, n)
	err := n.err
	for _, c := range n.children {
		var e error
		nodes, e = c.number(nodes)
		err = errors.Join(err, e)
	}
	return nodes, err
}
