package fs

import (
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"
)

// Opcodes (include/uapi/linux/fuse.h).
const (
	opLookup        = 1
	opForget        = 2
	opGetattr       = 3
	opSetattr       = 4
	opReadlink      = 5
	opSymlink       = 6
	opMknod         = 8
	opMkdir         = 9
	opUnlink        = 10
	opRmdir         = 11
	opRename        = 12
	opLink          = 13
	opOpen          = 14
	opRead          = 15
	opWrite         = 16
	opStatfs        = 17
	opRelease       = 18
	opFsync         = 20
	opSetxattr      = 21
	opGetxattr      = 22
	opListxattr     = 23
	opRemovexattr   = 24
	opFlush         = 25
	opInit          = 26
	opOpendir       = 27
	opReaddir       = 28
	opReleasedir    = 29
	opFsyncdir      = 30
	opAccess        = 34
	opCreate        = 35
	opInterrupt     = 36
	opDestroy       = 38
	opBatchForget   = 42
	opFallocate     = 43
	opReaddirplus   = 44
	opRename2       = 45
	opCopyFileRange = 47
	opTmpfile       = 51
	opStatx         = 52
	opCount         = 53
)

// op is one operation: what the dispatcher checks, then who answers.
type op struct {
	name    string
	args    int  // bytes of fixed arguments, at least
	node    bool // nodeid must name an inode
	handler func(*request, *node) syscall.Errno
	errno   syscall.Errno // the answer where handler is nil
}

// ops is the whole file system. To add an operation: its number above, a row here, a case in
// ops_test.go. What is missing answers ENOSYS, which the kernel remembers and does not ask for
// again: never give it to an operation that some files have (FLUSH).
var ops = [opCount]op{
	opLookup:      {"LOOKUP", 1, true, (*request).lookup, 0},
	opForget:      {"FORGET", 0, false, (*request).silent, 0},
	opGetattr:     {"GETATTR", 0, true, (*request).getattr, 0},
	opSetattr:     {"SETATTR", args[fuse.SetAttrIn](), true, (*request).setattr, 0},
	opReadlink:    {"READLINK", 0, true, (*request).readlink, 0},
	opOpen:        {"OPEN", args[fuse.OpenIn](), true, (*request).open, 0},
	opRead:        {"READ", args[fuse.ReadIn](), true, (*request).read, 0},
	opWrite:       {"WRITE", args[fuse.WriteIn](), true, (*request).write, 0},
	opStatfs:      {"STATFS", 0, true, (*request).statfs, 0},
	opRelease:     {"RELEASE", args[fuse.ReleaseIn](), true, (*request).release, 0},
	opFsync:       {"FSYNC", 0, true, (*request).success, 0},
	opFlush:       {"FLUSH", args[fuse.FlushIn](), true, (*request).flush, 0},
	opInit:        {"INIT", 16, false, (*request).init, 0},
	opOpendir:     {"OPENDIR", args[fuse.OpenIn](), true, (*request).opendir, 0},
	opReaddir:     {"READDIR", args[fuse.ReadIn](), true, (*request).readdir, 0},
	opReleasedir:  {"RELEASEDIR", 0, true, (*request).success, 0},
	opFsyncdir:    {"FSYNCDIR", 0, true, (*request).success, 0},
	opAccess:      {"ACCESS", args[fuse.AccessIn](), true, (*request).access, 0},
	opInterrupt:   {"INTERRUPT", 0, false, (*request).silent, 0},
	opDestroy:     {"DESTROY", 0, false, (*request).destroy, 0},
	opBatchForget: {"BATCH_FORGET", 0, false, (*request).silent, 0},
	opReaddirplus: {"READDIRPLUS", args[fuse.ReadIn](), true, (*request).readdirplus, 0},
	opStatx:       {"STATX", args[fuse.StatxIn](), true, (*request).statx, 0},

	opSymlink:       {name: "SYMLINK", errno: syscall.EROFS},
	opMknod:         {name: "MKNOD", errno: syscall.EROFS},
	opMkdir:         {name: "MKDIR", errno: syscall.EROFS},
	opUnlink:        {name: "UNLINK", errno: syscall.EROFS},
	opRmdir:         {name: "RMDIR", errno: syscall.EROFS},
	opRename:        {name: "RENAME", errno: syscall.EROFS},
	opRename2:       {name: "RENAME2", errno: syscall.EROFS},
	opLink:          {name: "LINK", errno: syscall.EROFS},
	opSetxattr:      {name: "SETXATTR", errno: syscall.EROFS},
	opRemovexattr:   {name: "REMOVEXATTR", errno: syscall.EROFS},
	opCreate:        {name: "CREATE", errno: syscall.EROFS},
	opFallocate:     {name: "FALLOCATE", errno: syscall.EROFS},
	opCopyFileRange: {name: "COPY_FILE_RANGE", errno: syscall.EROFS},
	opTmpfile:       {name: "TMPFILE", errno: syscall.EROFS},
	opGetxattr:      {name: "GETXATTR", errno: syscall.ENOSYS},
	opListxattr:     {name: "LISTXATTR", errno: syscall.ENOSYS},
}

func lookupOp(code uint32) op {
	if code < opCount && ops[code].name != "" {
		return ops[code]
	}
	return op{errno: syscall.ENOSYS}
}
