package fstest

import "unsafe"

// structBytes is a wire structure as bytes.
func structBytes[T any](v *T) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(v)), unsafe.Sizeof(*v))
}
