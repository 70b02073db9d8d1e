package shm

import "unsafe"

// prefetch asks for the 192 bytes from p on: a record written by another core is some 100 ns away.
// p may be any address.
//
//go:noescape
func prefetch(p unsafe.Pointer)
