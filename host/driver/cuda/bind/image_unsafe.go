package bind

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"runtime"
	"unsafe"

	"causeway/cuda"
	"causeway/cuda/fatbin"
)

// Image is a guest's image as the driver gets it, until Release. Containers are sized by their
// headers: the driver reads them where they lie in Go's memory, pinned. Text ends at a NUL, cubins
// are sized by what they say of themselves: these are copied to C memory, with a NUL behind.
// Containers go bare to cuModuleLoadDataEx (behind a wrapper it answers INVALID_IMAGE, seen on
// driver 580) and to cuLibraryLoadData behind a wrapper, as applications' runtimes do.
type Image struct {
	at      uint64
	pin     *runtime.Pinner
	copied  Buffer
	wrapper Buffer
}

const wrapperMagic = 0x466243b1

// HoldImage takes an image for cuModuleLoadDataEx, or for cuLibraryLoadData.
func HoldImage(c *fatbin.Code, library bool) Image {
	img := c.Bytes()
	if c.Format() != fatbin.Container {
		b := NewBuffer(len(img) + 1)
		copy(b.Bytes(), img)
		return Image{at: b.addr(), copied: b}
	}
	im := Image{pin: &runtime.Pinner{}, at: uint64(uintptr(unsafe.Pointer(&img[0])))}
	im.pin.Pin(&img[0])
	if library {
		im.wrapper = NewBuffer(fatbin.WrapperSize)
		w := im.wrapper.Bytes()
		binary.LittleEndian.PutUint32(w, wrapperMagic)
		binary.LittleEndian.PutUint32(w[4:], 1)
		binary.LittleEndian.PutUint64(w[8:], im.at)
		im.at = im.wrapper.addr()
	}
	return im
}

// Pinned reports whether the driver reads it in Go's memory.
func (im Image) Pinned() bool { return im.pin != nil }

// Release ends what the driver may do with it.
func (im Image) Release() {
	if im.pin != nil {
		im.pin.Unpin()
	}
	im.copied.Free()
	im.wrapper.Free()
}

// Input is what a linker gets, in C memory, with a NUL behind.
type Input struct {
	at, size uint64
	b        Buffer
}

// HoldInput takes a guest's input of a kind for cuLinkAddData, which says how long it is but not
// where its parts lie: an image is looked at as for loading, an object or a library for every part
// of it. wants is that of fatbin.Check.
func HoldInput(kind uint32, in []byte, wants func(sm int) bool) (Input, *fatbin.Code, error) {
	var c *fatbin.Code
	var err error
	size := uint64(len(in))
	switch kind {
	case cuda.JITInputCubin, cuda.JITInputPTX, cuda.JITInputFatbinary:
		if c, err = fatbin.Check(in, wants); err == nil && kind == cuda.JITInputPTX && c.Format() != fatbin.ELF && c.Format() != fatbin.Container {
			size++ // with its NUL
		}
	case cuda.JITInputObject, cuda.JITInputLibrary:
		err = fatbin.CheckObject(in)
	default: // code in another language: a linker may see by itself that it is an image
		if f := fatbin.Detect(in); f != fatbin.Unknown && f != fatbin.PTX || bytes.HasPrefix(in, []byte("!<")) {
			err = fmt.Errorf("%w: %s as an input of kind %d", fatbin.ErrMalformed, f, kind)
		}
	}
	if err != nil {
		return Input{}, nil, err
	}
	b := NewBuffer(len(in) + 1)
	copy(b.Bytes(), in)
	return Input{b.addr(), size, b}, c, nil
}

// Release gives the memory back: the driver keeps no reference to it.
func (i Input) Release() { i.b.Free() }
