// Package vhosttest is the other side of package vhostuser, for tests and fuzzing: guest memory in
// a memfd, and a front end that speaks the protocol over a unix socket as QEMU does.
package vhosttest

import (
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// Memory is guest RAM: a memfd mapped here, with a bump allocator for what a guest would keep in
// it.
type Memory struct {
	GPA   uint64 // guest-physical address
	User  uint64 // address in the (imaginary) front end's process
	Bytes []byte
	File  *os.File

	mu   sync.Mutex
	next uint64
}

// NewMemory makes size bytes of guest RAM at gpa.
func NewMemory(gpa, size uint64) (*Memory, error) {
	fd, err := unix.MemfdCreate("guest-ram", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("memfd: %w", err)
	}
	f := os.NewFile(uintptr(fd), "guest-ram")
	if err := f.Truncate(int64(size)); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("memfd of %d bytes: %w", size, err)
	}
	b, err := unix.Mmap(fd, 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("map %d bytes: %w", size, err)
	}
	return &Memory{GPA: gpa, User: gpa + 0x7f00_0000_0000, Bytes: b, File: f}, nil
}

// Close unmaps the memory. Nothing may refer to it.
func (m *Memory) Close() {
	_ = unix.Munmap(m.Bytes)
	_ = m.File.Close()
}

// Alloc reserves size bytes, or fails the test by panicking when the RAM is used up.
func (m *Memory) Alloc(size, align uint64) (gpa uint64, b []byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	start := (m.next + align - 1) &^ (align - 1)
	if start+size > uint64(len(m.Bytes)) {
		panic(fmt.Sprintf("vhosttest: guest RAM of %d bytes is used up", len(m.Bytes)))
	}
	m.next = start + size
	return m.GPA + start, m.Bytes[start : start+size : start+size]
}

// Mark and Rewind let a test reuse the RAM: Rewind frees what was allocated since Mark.
func (m *Memory) Mark() uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.next
}

// Rewind: see Mark.
func (m *Memory) Rewind(mark uint64) {
	m.mu.Lock()
	m.next = mark
	m.mu.Unlock()
}

// At is the memory at a guest-physical address.
func (m *Memory) At(gpa, size uint64) []byte { return m.Bytes[gpa-m.GPA:][:size:size] }

// UserOf is the front end's address of gpa.
func (m *Memory) UserOf(gpa uint64) uint64 { return gpa - m.GPA + m.User }

// DupFD returns a new descriptor of the memory, to give away.
func (m *Memory) DupFD() (int, error) {
	raw, err := m.File.SyscallConn()
	if err != nil {
		return -1, err
	}
	fd := -1
	cerr := raw.Control(func(p uintptr) { fd, err = unix.FcntlInt(p, unix.F_DUPFD_CLOEXEC, 3) })
	if cerr != nil {
		return -1, cerr
	}
	return fd, err
}
