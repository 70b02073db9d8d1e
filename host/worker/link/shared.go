package link

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// PageKind says what a shared page is for.
type PageKind byte

// Kinds of shared pages.
const (
	PageMemory PageKind = iota + 1 // memory budget of the virtual GPU, read and written by all its sessions
	PageMeter                      // counters of the session, written by its worker
	PageGrant                      // what the scheduler grants, mapped read-only by the worker
	PageUsage                      // what the worker tells the scheduler
	PageBell                       // no page: an eventfd by which the worker has the scheduler look
	pageKinds
)

// Page is a page that a worker shares with others.
type Page struct {
	Kind PageKind
	File int // a sealed memfd, as of NewPage; of PageBell an eventfd
}

// MostPage bounds a shared page, in bytes.
const MostPage = 1 << 20

// ErrPage says that a file is no shared page.
var ErrPage = errors.New("not a shared page")

// NewPage makes a page that can neither shrink nor grow, whoever has it: its readers are safe from SIGBUS. The caller has its
// descriptor and its bytes, for UnmapPage.
func NewPage(name string, size int) (fd int, mem []byte, err error) {
	fd, err = unix.MemfdCreate("causeway-"+name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return -1, nil, fmt.Errorf("%s page: %w", name, err)
	}
	if err = unix.Ftruncate(fd, int64(size)); err == nil {
		if _, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW); err == nil {
			mem, err = MapPage(fd, true)
		}
	}
	if err != nil {
		_ = unix.Close(fd)
		return -1, nil, fmt.Errorf("%s page: %w", name, err)
	}
	return fd, mem, nil
}

// SealPage has nobody else write to a page any more, except through mappings that exist: its maker's.
func SealPage(fd int) error {
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_FUTURE_WRITE|unix.F_SEAL_SEAL); err != nil {
		return fmt.Errorf("seal page: %w", err)
	}
	return nil
}

// LockSeals has nobody seal a page further. One of several that write to it could otherwise shut out those who come later.
func LockSeals(fd int) error {
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SEAL); err != nil {
		return fmt.Errorf("seal page: %w", err)
	}
	return nil
}

// MapPage maps a page that somebody else made; fd stays the caller's.
func MapPage(fd int, write bool) ([]byte, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, fmt.Errorf("shared page: %w", err)
	}
	if st.Size <= 0 || st.Size > MostPage || st.Size%int64(os.Getpagesize()) != 0 {
		return nil, fmt.Errorf("%w: %d bytes", ErrPage, st.Size)
	}
	seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err != nil || seals&unix.F_SEAL_SHRINK == 0 {
		return nil, fmt.Errorf("%w: it could shrink", ErrPage)
	}
	prot := unix.PROT_READ
	if write {
		prot |= unix.PROT_WRITE
	}
	mem, err := unix.Mmap(fd, 0, int(st.Size), prot, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map shared page: %w", err)
	}
	return mem, nil
}

// UnmapPage ends a mapping of NewPage or MapPage.
func UnmapPage(mem []byte) {
	if mem != nil {
		_ = unix.Munmap(mem)
	}
}

// SharedMessage hands pages to a worker.
func SharedMessage(pages []Page) Message {
	m := Message{Type: Shared}
	for _, p := range pages {
		m.Payload = append(m.Payload, byte(p.Kind))
		m.Files = append(m.Files, p.File)
	}
	return m
}

// DecodeShared reads a Shared message, whose files are the caller's also if it fails.
func DecodeShared(m Message) ([]Page, error) {
	if m.Type != Shared || len(m.Payload) != len(m.Files) {
		return nil, fmt.Errorf("message %d of %d kinds with %d descriptors where shared pages are due", m.Type, len(m.Payload), len(m.Files))
	}
	pages := make([]Page, len(m.Files))
	for i, fd := range m.Files {
		k := PageKind(m.Payload[i])
		if k == 0 || k >= pageKinds {
			return nil, fmt.Errorf("shared page of unknown kind %d", k)
		}
		pages[i] = Page{k, fd}
	}
	return pages, nil
}
