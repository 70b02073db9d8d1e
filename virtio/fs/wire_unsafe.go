package fs

import "unsafe"

// as reads b as a wire structure. T holds integers only, b is 8-aligned and long enough, which the
// caller checks. The protocol is in the host's byte order, and the guest runs on this host.
func as[T any](b []byte) *T {
	_ = b[unsafe.Sizeof(*new(T))-1]
	return (*T)(unsafe.Pointer(unsafe.SliceData(b)))
}

// image is the bytes of a wire structure.
func image[T any](v *T) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(v)), unsafe.Sizeof(*v))
}

const sizeOf64 = 8

// aligned returns an 8-aligned buffer.
func aligned(size int) []byte {
	w := make([]uint64, (size+sizeOf64-1)/sizeOf64)
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(w))), size)
}

// args is the size of an in structure behind the header that it embeds.
func args[T any]() int { return int(unsafe.Sizeof(*new(T))) - inHeaderSize }
