package cuda

import (
	"encoding/binary"
	"runtime"

	"causeway/cuda/fatbin"
)

// image is a guest's image as the driver gets it, until release. Fatbins are sized by their headers: the driver reads them where
// they lie in Go's memory, pinned. Text ends at a NUL, cubins may point beyond themselves: these are copied to C memory with a
// NUL behind. Fatbins go bare to cuModuleLoadDataEx (behind a wrapper it answers INVALID_IMAGE, seen on driver 580) and to
// cuLibraryLoadData behind a wrapper, as applications' runtimes do.
type image struct {
	addr    uint64
	pin     *runtime.Pinner
	copied  buffer
	wrapper buffer
}

// libraryBinaryIsPreserved is CU_LIBRARY_BINARY_IS_PRESERVED: the driver need not copy, and may load lazily.
const libraryBinaryIsPreserved = 1

const wrapperMagic = 0x466243b1

// holdImage takes img, which nobody changes any more. A container that says it is longer than its bytes is not shown to
// the driver, which would read on.
func holdImage(img []byte, library bool) image {
	container := fatbin.Detect(img) == fatbin.Container
	if container && !whole(img) {
		img, container = nil, false // the empty text, which no driver takes
	}
	if !container {
		c := cString(img)
		return image{addr: c.addr(), copied: c}
	}
	im := image{pin: &runtime.Pinner{}, addr: memAddr(img)}
	im.pin.Pin(&img[0])
	if library {
		im.wrapper = wrap(im.addr)
		im.addr = im.wrapper.addr()
	}
	return im
}

func (im image) release() {
	if im.pin != nil {
		im.pin.Unpin()
	}
	for _, b := range []buffer{im.copied, im.wrapper} {
		if b.p != nil {
			b.free()
		}
	}
}

// whole reports whether a container's bytes are all there: header size at 6, size of what follows at 8.
func whole(img []byte) bool {
	if len(img) < 16 {
		return false
	}
	head, body := uint64(binary.LittleEndian.Uint16(img[6:])), binary.LittleEndian.Uint64(img[8:])
	return head <= uint64(len(img)) && body <= uint64(len(img))-head
}

// wrap makes a wrapper around the container at addr.
func wrap(addr uint64) buffer {
	b := newBuffer(fatbin.WrapperSize)
	w := b.bytes()
	binary.LittleEndian.PutUint32(w, wrapperMagic)
	binary.LittleEndian.PutUint32(w[4:], 1)
	binary.LittleEndian.PutUint64(w[8:], addr)
	return b
}

// notePrinting remembers whether an image may print.
func (s *session) notePrinting(img []byte) { s.printing = s.printing || s.scan(img)().prints }
