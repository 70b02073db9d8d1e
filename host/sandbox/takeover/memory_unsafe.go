package takeover

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Mark is text that stands in memory of somebody's: who reads it has reached that memory.
type Mark struct {
	Name   string // whose memory it is
	Text   string
	Holder int // a process that has it
	// Of the same VM: the worker's descriptors are of all its memory, so no wall stands there.
	OwnVM bool
	// Further up in the VM's memory than the worker's own pages, which can only grow that way.
	Behind bool
}

// errOutOfReach says that nothing of what a worker holds led to a mark.
var errOutOfReach = errors.New("out of reach")

// memory is what is tried for each mark.
func (t *Target) memory() []Attempt {
	var all []Attempt
	for _, m := range t.Marks {
		text := []byte(m.Text)
		all = append(all,
			Attempt{Name: m.Name + ": by a descriptor", Do: func() error { return byDescriptor("/proc/self/fd", text) }, Remains: m.OwnVM, Always: !m.OwnVM},
			Attempt{Name: m.Name + ": by a mapping that grows", Do: func() error { return byGrowth(text) }, Remains: m.Behind, Always: !m.Behind},
			Attempt{Name: m.Name + ": by /proc/self/map_files", Do: func() error { return byDescriptor("/proc/self/map_files", text) }, Always: !m.OwnVM},
			Attempt{Name: m.Name + ": by descriptors of who has it", Do: func() error { return byDescriptor(fmt.Sprintf("/proc/%d/fd", m.Holder), text) }},
		)
	}
	return all
}

// byDescriptor looks for text in all files that the links of a folder lead to.
func byDescriptor(dir string, text []byte) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	errs, seen := []error{errOutOfReach}, map[uint64]bool{}
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		if to, _ := os.Readlink(path); !strings.HasPrefix(to, "/memfd:") {
			continue
		}
		fd, err := unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC, 0)
		if n, e := strconv.Atoi(e.Name()); err != nil && e == nil && dir == "/proc/self/fd" {
			fd, err = unix.Dup(n) // what cannot be opened again can be used
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		var st unix.Stat_t
		found := unix.Fstat(fd, &st) == nil && !seen[st.Ino] && holds(fd, st.Size, text)
		seen[st.Ino] = true
		_ = unix.Close(fd)
		if found {
			return nil
		}
	}
	return errors.Join(errs...)
}

// holds reports whether a file has a text.
func holds(fd int, size int64, text []byte) bool {
	b, err := unix.Mmap(fd, 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return false
	}
	defer func() { _ = unix.Munmap(b) }()
	return bytes.Contains(b, text)
}

// growth is how far mappings are grown, in bytes.
const growth = 64 << 20

// byGrowth looks for text behind the pages that are mapped: a shared mapping may be made larger
// than it was.
func byGrowth(text []byte) error {
	list, err := firstMappings()
	if err != nil {
		return err
	}
	errs := []error{errOutOfReach}
	for _, from := range list {
		// Of nothing: another mapping.
		at, _, e := unix.Syscall6(unix.SYS_MREMAP, from, 0, growth, unix.MREMAP_MAYMOVE, 0, 0)
		if e != 0 {
			errs = append(errs, errno("mremap", e))
			continue
		}
		found := readable(at, growth, text)
		_, _, _ = unix.Syscall(unix.SYS_MUNMAP, at, growth, 0)
		if found {
			return nil
		}
	}
	return errors.Join(errs...)
}

// firstMappings are the addresses of the mappings that lie first in their files, of those in
// memory.
func firstMappings() (map[uint64]uintptr, error) {
	f, err := os.Open("/proc/self/maps")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	list, offsets := map[uint64]uintptr{}, map[uint64]uint64{}
	for sc := bufio.NewScanner(f); sc.Scan(); {
		var from, to uintptr
		var offset, inode uint64
		var perms, dev, path string
		if n, _ := fmt.Sscanf(sc.Text(), "%x-%x %s %x %s %d %s", &from, &to, &perms, &offset, &dev, &inode, &path); n != 7 || !strings.HasPrefix(path, "/memfd:") {
			continue
		}
		if _, ok := list[inode]; !ok || offset < offsets[inode] {
			list[inode], offsets[inode] = from, offset
		}
	}
	return list, nil
}

// readable looks for text in memory that may end early, which would end this process if it looked
// itself.
func readable(at, size uintptr, text []byte) bool {
	var p [2]int
	if unix.Pipe2(p[:], unix.O_CLOEXEC) != nil {
		return false
	}
	defer unix.Close(p[0])
	defer unix.Close(p[1])
	page := make([]byte, 16*os.Getpagesize()) // what a pipe holds
	for off := uintptr(0); off < size; off += uintptr(len(page)) {
		n, _, e := unix.Syscall(unix.SYS_WRITE, uintptr(p[1]), at+off, uintptr(len(page)))
		if e != 0 {
			return false
		}
		if n, err := unix.Read(p[0], page[:n]); err != nil || bytes.Contains(page[:n], text) {
			return err == nil
		}
	}
	return false
}
