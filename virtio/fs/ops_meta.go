package fs

import (
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
)

// forever is how long the guest may cache names and attributes: the tree is static.
const forever = 24 * time.Hour

const (
	majorVersion = 7
	minorOffered = 38 // what the structures here describe
	minorNeeded  = 27 // virtio-fs exists since 7.31, MAX_PAGES since 7.28
	pageSize     = 4096
	maxWrite     = usualPages * pageSize
	blockSize    = 4096
)

// wanted is what INIT accepts of the guest's offer. ASYNC_DIO lets direct AIO stay pending without
// blocking io_submit; MAX_PAGES allows requests of more than 128 KiB.
const wanted = fuse.CAP_ASYNC_READ | fuse.CAP_BIG_WRITES | fuse.CAP_ATOMIC_O_TRUNC | fuse.CAP_ASYNC_DIO |
	fuse.CAP_MAX_PAGES | fuse.CAP_PARALLEL_DIROPS | fuse.CAP_READDIRPLUS | fuse.CAP_READDIRPLUS_AUTO |
	fuse.CAP_CACHE_SYMLINKS

func (r *request) init(*node) syscall.Errno {
	// Before 7.36 the structure ended with Flags.
	full := aligned(inHeaderSize + args[fuse.InitIn]())
	copy(full, r.in)
	in := as[fuse.InitIn](full)
	out := fuse.InitOut{Major: majorVersion, Minor: minorOffered}
	switch {
	case in.Major < majorVersion || in.Major == majorVersion && in.Minor < minorNeeded:
		return syscall.EPROTO
	case in.Major == majorVersion:
		out.Minor = min(out.Minor, in.Minor)
		out.MaxReadAhead = in.MaxReadAhead
		out.Flags = in.Flags & wanted
		out.MaxBackground = r.d.opts.MaxBackground
		out.CongestionThreshold = r.d.opts.MaxBackground
		out.MaxWrite = maxWrite
		out.TimeGran = 1
		out.MaxPages = mostPages // the guest's kernel has less, unless it was told otherwise
		r.d.room.pages.Store(0)
	}
	// A newer major learns ours, and sends INIT again.
	r.reply(image(&out))
	return 0
}

// destroy ends the mount.
func (r *request) destroy(*node) syscall.Errno {
	r.d.releaseAll()
	return 0
}

// silent takes requests that have no answer. Inodes are static, so there is nothing to forget, and
// virtio-fs never interrupts.
func (r *request) silent(*node) syscall.Errno {
	r.late = true
	r.c.Complete(0)
	return 0
}

func (r *request) success(*node) syscall.Errno { return 0 }

// reply copies a payload to the reply buffer.
func (r *request) reply(b []byte) { r.out = append(r.outBuf[:0], b...) }

func (r *request) lookup(n *node) syscall.Errno {
	name, errno := r.name()
	if errno != 0 {
		return errno
	}
	if !n.isDir() {
		return syscall.ENOTDIR
	}
	var c *node
	switch name {
	case ".":
		c = n
	case "..":
		c = n.up()
	default:
		c = n.child(name)
	}
	out := fuse.EntryOut{}
	if c == nil {
		// Node 0 with a timeout is a negative entry that the guest may cache.
		out.SetEntryTimeout(forever)
	} else {
		r.d.entry(c, &out)
	}
	r.reply(image(&out))
	return 0
}

func (n *node) up() *node {
	if n.parent == nil {
		return n
	}
	return n.parent
}

func (d *Device) entry(n *node, out *fuse.EntryOut) {
	out.NodeId = n.id
	out.SetEntryTimeout(forever)
	out.SetAttrTimeout(forever)
	d.attr(n, &out.Attr)
}

func (d *Device) attr(n *node, a *fuse.Attr) {
	*a = fuse.Attr{Ino: n.id, Size: n.size, Mode: n.mode, Nlink: 1, Blksize: blockSize}
	if n.control == nil {
		a.Blocks = (n.size + 511) / 512
	}
	if n.isDir() {
		a.Nlink = 2
		for _, c := range n.children {
			if c.isDir() {
				a.Nlink++
			}
		}
	}
	sec, nsec := uint64(d.born.Unix()), uint32(d.born.Nanosecond())
	a.Atime, a.Mtime, a.Ctime = sec, sec, sec
	a.Atimensec, a.Mtimensec, a.Ctimensec = nsec, nsec, nsec
}

func (r *request) getattr(n *node) syscall.Errno {
	var out fuse.AttrOut
	out.SetTimeout(forever)
	r.d.attr(n, &out.Attr)
	r.reply(image(&out))
	return 0
}

// setattr accepts what open(O_TRUNC) and a shell's redirection do to a control file.
func (r *request) setattr(n *node) syscall.Errno {
	in := as[fuse.SetAttrIn](r.in)
	const harmless = fuse.FATTR_SIZE | fuse.FATTR_FH | fuse.FATTR_LOCKOWNER | fuse.FATTR_KILL_SUIDGID | fuse.FATTR_CTIME |
		fuse.FATTR_MTIME | fuse.FATTR_MTIME_NOW | fuse.FATTR_ATIME | fuse.FATTR_ATIME_NOW
	if n.control == nil || in.Valid&^harmless != 0 {
		return syscall.EROFS
	}
	return r.getattr(n)
}

func (r *request) statx(n *node) syscall.Errno {
	var a fuse.Attr
	r.d.attr(n, &a)
	t := fuse.SxTime{Sec: a.Mtime, Nsec: a.Mtimensec}
	out := fuse.StatxOut{Statx: fuse.Statx{
		Mask:    0x07ff | 0x0800, // STATX_BASIC_STATS, STATX_BTIME
		Blksize: a.Blksize, Nlink: a.Nlink, Mode: uint16(a.Mode), Ino: a.Ino, Size: a.Size, Blocks: a.Blocks,
		Atime: t, Btime: t, Ctime: t, Mtime: t,
	}}
	out.SetTimeout(forever)
	r.reply(image(&out))
	return 0
}

func (r *request) readlink(n *node) syscall.Errno {
	if !n.isLink() {
		return syscall.EINVAL
	}
	r.reply([]byte(n.target))
	return 0
}

func (r *request) statfs(*node) syscall.Errno {
	out := fuse.StatfsOut{Bsize: blockSize, Frsize: blockSize, NameLen: 255, Files: uint64(len(r.d.nodes))}
	r.reply(image(&out))
	return 0
}

// access is asked only without default_permissions, which virtio-fs always sets.
func (r *request) access(n *node) syscall.Errno {
	in := as[fuse.AccessIn](r.in)
	switch {
	case in.Mask&^7 != 0:
		return syscall.EINVAL
	case in.Mask&fuse.W_OK != 0 && n.control == nil:
		return syscall.EROFS
	case in.Mask&fuse.X_OK != 0 && n.mode&0o111 == 0:
		return syscall.EACCES
	}
	return 0
}
