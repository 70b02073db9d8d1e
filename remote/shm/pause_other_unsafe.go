//go:build !amd64

package shm

import "unsafe"

func pause() {}

func prefetch(unsafe.Pointer) {}
