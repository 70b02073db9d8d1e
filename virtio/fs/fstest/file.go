package fstest

import (
	"fmt"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"

	"causeway/virtio/virtiotest"
)

const (
	opLookup  = 1
	opOpen    = 14
	opRead    = 15
	opWrite   = 16
	opRelease = 18
	opFlush   = 25
	opInit    = 26
	opDestroy = 38
)

// File is an open file of the guest.
type File struct {
	g     *Guest
	Node  uint64
	FH    uint64
	Flags uint32 // FOPEN_*
}

// Lookup resolves one name below a directory; 1 is the root.
func (g *Guest) Lookup(dir uint64, name string) (fuse.EntryOut, error) {
	var e fuse.EntryOut
	p, errno, err := g.Do(opLookup, dir, append([]byte(name), 0), 128)
	if err != nil {
		return e, err
	}
	if errno != 0 {
		return e, fmt.Errorf("lookup %s: %w", name, errno)
	}
	if copy(structBytes(&e), p) != len(structBytes(&e)) {
		return e, fmt.Errorf("lookup %s: %d bytes: %w", name, len(p), ErrBadReply)
	}
	if e.NodeId == 0 {
		return e, fmt.Errorf("lookup %s: %w", name, syscall.ENOENT)
	}
	return e, nil
}

// Open opens a path, given as names below the root, for process pid.
func (g *Guest) Open(flags uint32, caller fuse.Caller, path ...string) (*File, error) {
	node := uint64(1)
	for _, name := range path {
		e, err := g.Lookup(node, name)
		if err != nil {
			return nil, err
		}
		node = e.NodeId
	}
	in := fuse.OpenIn{Flags: flags}
	c, err := g.Submit(Request{Op: opOpen, Node: node, Caller: caller, Body: structBytes(&in)[inHeader:], Room: 16})
	if err != nil {
		return nil, err
	}
	p, errno, err := c.Wait(time.Minute)
	if err != nil {
		return nil, err
	}
	if errno != 0 {
		return nil, fmt.Errorf("open %v: %w", path, errno)
	}
	var out fuse.OpenOut
	copy(structBytes(&out), p)
	return &File{g: g, Node: node, FH: out.Fh, Flags: out.OpenFlags}, nil
}

// Read submits a READ into pages, on request queue q.
func (f *File) Read(q int, off int64, pages []virtiotest.Buffer) (*Call, error) {
	size := 0
	for _, p := range pages {
		size += len(p.Bytes)
	}
	in := fuse.ReadIn{Fh: f.FH, Offset: uint64(off), Size: uint32(size)}
	return f.g.Submit(Request{Queue: q, Op: opRead, Node: f.Node, Body: structBytes(&in)[inHeader:], Pages: pages})
}

// Write submits a WRITE of data, which lies in guest memory.
func (f *File) Write(q int, off int64, data []virtiotest.Buffer) (*Call, error) {
	size := 0
	for _, p := range data {
		size += len(p.Bytes)
	}
	in := fuse.WriteIn{Fh: f.FH, Offset: uint64(off), Size: uint32(size)}
	return f.g.Submit(Request{Queue: q, Op: opWrite, Node: f.Node, Body: structBytes(&in)[inHeader:], Data: data, Room: 8})
}

// WriteBytes writes b and waits.
func (f *File) WriteBytes(b []byte, off int64) (int, error) {
	gpa, mem := f.g.Mem.Alloc(uint64(len(b)), 8)
	copy(mem, b)
	c, err := f.Write(0, off, []virtiotest.Buffer{{GPA: gpa, Bytes: mem}})
	if err != nil {
		return 0, err
	}
	p, errno, err := c.Wait(time.Minute)
	if err != nil {
		return 0, err
	}
	if errno != 0 {
		return 0, errno
	}
	return int(le.Uint32(p)), nil
}

// Pages allocates n pages of guest memory that are not neighbours, as a process's pages are.
func (g *Guest) Pages(n int) []virtiotest.Buffer {
	out := make([]virtiotest.Buffer, n)
	for i := range out {
		gpa, b := g.Mem.Alloc(8192, 4096)
		out[i] = virtiotest.Buffer{GPA: gpa, Bytes: b[:4096]}
	}
	return out
}

// Flush and Close are what close(2) sends: FLUSH for each descriptor, RELEASE for the last.
func (f *File) Flush(owner uint64) error {
	in := fuse.FlushIn{Fh: f.FH, LockOwner: owner}
	return f.simple(opFlush, structBytes(&in)[inHeader:])
}

// Close: see Flush.
func (f *File) Close() error {
	in := fuse.ReleaseIn{Fh: f.FH}
	return f.simple(opRelease, structBytes(&in)[inHeader:])
}

func (f *File) simple(op uint32, body []byte) error {
	_, errno, err := f.g.Do(op, f.Node, body, 0)
	if errno != 0 {
		return errno
	}
	return err
}
