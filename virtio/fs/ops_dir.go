package fs

import (
	"encoding/binary"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"
)

const direntSize = 24 // ino u64, off u64, namelen u32, type u32

func (r *request) readdir(n *node) syscall.Errno     { return r.list(n, false) }
func (r *request) readdirplus(n *node) syscall.Errno { return r.list(n, true) }

// list fills the reply with entries from the requested position: 0 is ".", 1 is "..", children
// follow. An entry's offset is the position of the next one.
func (r *request) list(n *node, plus bool) syscall.Errno {
	in := as[fuse.ReadIn](r.in)
	if !n.isDir() {
		return syscall.ENOTDIR
	}
	room := min(int64(in.Size), int64(r.payloadRoom()), maxOut)
	r.out = r.outBuf[:0]
	for pos := in.Offset; pos < uint64(len(n.children))+2; pos++ {
		c, name := n, "."
		switch pos {
		case 0:
		case 1:
			c, name = n.up(), ".."
		default:
			c = n.children[pos-2]
			name = c.name
		}
		size := direntSize + (len(name)+7)&^7
		if plus {
			size += len(image(&fuse.EntryOut{}))
		}
		if int64(len(r.out)+size) > room {
			break
		}
		if plus {
			// Node 0 says "no lookup": "." and ".." must not count one.
			var e fuse.EntryOut
			if pos >= 2 {
				r.d.entry(c, &e)
			}
			r.out = append(r.out, image(&e)...)
		}
		r.out = appendDirent(r.out, c, pos+1, name)
	}
	return 0
}

func appendDirent(b []byte, n *node, next uint64, name string) []byte {
	b = binary.NativeEndian.AppendUint64(b, n.id)
	b = binary.NativeEndian.AppendUint64(b, next)
	b = binary.NativeEndian.AppendUint32(b, uint32(len(name)))
	b = binary.NativeEndian.AppendUint32(b, n.mode>>12) // S_IFMT as DT_
	b = append(b, name...)
	for len(b)%8 != 0 {
		b = append(b, 0)
	}
	return b
}
