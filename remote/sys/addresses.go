package sys

import "golang.org/x/sys/unix"

// Span is a range of this process's addresses.
type Span struct{ At, Size uintptr }

// mostSpan is how many addresses HoldBelow asks for at once.
const mostSpan = 1 << 40

// HoldBelow takes every range of at least so many bytes (a power of two of pages) below end that
// the kernel would give to a mapping that wishes no address, so that mappings to come lie from end
// on. Nothing is behind the spans, which nobody can write and no account of memory has; each, or a
// part of it, is given back by its Release. It is for processes whose mappings grow upwards.
func HoldBelow(end, least uintptr) (held []Span) {
	for size := uintptr(mostSpan); size >= least; size /= 2 {
		for {
			s, err := Reserve(size)
			if err != nil {
				break // there is no room of this size at all
			}
			if s.At+size > end {
				s.Release()
				break
			}
			held = append(held, s)
		}
	}
	return held
}

// Reserve takes addresses where the kernel finds room first.
func Reserve(size uintptr) (Span, error) {
	at, _, errno := unix.Syscall6(unix.SYS_MMAP, 0, size, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE, ^uintptr(0), 0)
	if errno != 0 {
		return Span{}, errno
	}
	return Span{at, size}, nil
}

// Release gives addresses back. Those that nobody has taken stay free.
func (s Span) Release() { _, _, _ = unix.Syscall(unix.SYS_MUNMAP, s.At, s.Size, 0) }
