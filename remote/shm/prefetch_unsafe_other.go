//go:build !amd64

package shm

import "unsafe"

func prefetch(unsafe.Pointer) {}
