package bind

import (
	"unsafe"

	"causeway/cuda"
)

// decode copies bytes that a guest gave for a struct. Only for structs whose addresses and handles
// are then written over.
func decode[T any](b []byte) (v T, ok bool) {
	if uintptr(len(b)) != unsafe.Sizeof(v) {
		return v, false
	}
	copy(unsafe.Slice((*byte)(unsafe.Pointer(&v)), unsafe.Sizeof(v)), b)
	return v, true
}

// Encode is a struct's bytes, as guests get them: without addresses of this process.
func Encode[T ArraySparseProperties | DevResource | IpcMemHandle | IpcEventHandle | MemPoolPtrExportData](v *T) []byte {
	return append([]byte(nil), unsafe.Slice((*byte)(unsafe.Pointer(v)), unsafe.Sizeof(*v))...)
}

// Kinds of resources (CUresourcetype).
const (
	resourceArray = iota
	resourceMipmap
	resourceLinear
	resourcePitch2D
)

// Resource is what a texture or surface reads, from a guest's bytes and the array or mipmapped
// array that they name, none if they do not.
func (s *Space) Resource(b []byte, array Array, mipmap MipmappedArray) (ResourceDesc, cuda.Result) {
	d, ok := decode[ResourceDesc](b)
	if !ok {
		return ResourceDesc{}, cuda.ErrorInvalidValue
	}
	res := cuda.Success
	switch l, p := *d.res.Linear(), *d.res.Pitch2D(); {
	case d.type_ == resourceArray && !array.IsZero():
		*d.res.Array() = array
	case d.type_ == resourceMipmap && !mipmap.IsZero():
		*d.res.Mipmap() = mipmap
	case d.type_ == resourceLinear:
		_, res = s.Mem(l.Ptr.v, l.Size)
	case d.type_ == resourcePitch2D:
		_, res = s.rows(p)
	default:
		res = cuda.ErrorInvalidValue
	}
	if res != cuda.Success {
		return ResourceDesc{}, res
	}
	return d, res
}

func (s *Space) rows(p ResourceDescResPitch2D) (Mem, cuda.Result) {
	size, ok := Bytes(p.Height, p.Pitch)
	if !ok {
		return Mem{}, cuda.ErrorInvalidValue
	}
	return s.Mem(p.Ptr.v, size)
}

// TextureDescOf is how a texture reads, from a guest's bytes.
func TextureDescOf(b []byte) (TextureDesc, bool) { return decode[TextureDesc](b) }

// ViewDescOf is what a texture shows of its resource, nil from no bytes.
func ViewDescOf(b []byte) (*ResourceViewDesc, bool) {
	if len(b) == 0 {
		return nil, true
	}
	d, ok := decode[ResourceViewDesc](b)
	return &d, ok
}

// SetTexRefRows binds a texture reference to rows of memory that a guest names.
func (s *Space) SetTexRefRows(ref Texref, desc []byte, addr, pitch uint64) cuda.Result {
	d, ok := decode[ArrayDescriptor](desc)
	size, fits := Bytes(d.Height, pitch)
	if !ok || !fits {
		return cuda.ErrorInvalidValue
	}
	m, res := s.Mem(addr, size)
	if res != cuda.Success {
		return res
	}
	return s.driver.texRefSetAddress2D(ref, &d, m.Address(), pitch)
}

// ArrayMaps are tiles of arrays with the memory behind them, from a guest's records, whose ids
// array, mipmap and mem find.
func ArrayMaps(b []byte, array func(id uint64) (Array, bool), mipmap func(id uint64) (MipmappedArray, bool),
	mem func(id uint64) (MemGenericAllocationHandle, bool)) ([]ArrayMapInfo, bool) {
	size := int(unsafe.Sizeof(ArrayMapInfo{}))
	var list []ArrayMapInfo
	for ; len(b) >= size; b = b[size:] {
		m, _ := decode[ArrayMapInfo](b[:size])
		id, ok := m.resource, false
		switch m.type_ {
		case resourceArray:
			var a Array
			a, ok = array(id)
			m.resource = a.v
		case resourceMipmap:
			var a MipmappedArray
			a, ok = mipmap(id)
			m.resource = a.v
		}
		if !ok {
			return nil, false
		}
		if m.operation == memoryMap {
			h, ok := mem(m.handle)
			if !ok {
				return nil, false
			}
			m.handle = h.v
		} else {
			m.handle = 0
		}
		list = append(list, m)
	}
	return list, len(b) == 0
}

// Value is the object as kernels take it.
func (t TexObject) Value() uint64 { return t.v }

// Value is the object as kernels take it.
func (t SurfObject) Value() uint64 { return t.v }

// TensorMapSize is the length of a CUtensorMap in bytes.
const TensorMapSize = 128

const tensorMapAlign = 128

// TensorMap is what a tensor map is encoded from. Lists are as long as the form wants for the rank;
// its maker has seen to that.
type TensorMap struct {
	Type, Rank                           uint32
	Address                              Mem
	Dims, Strides, Elements, Shape       []byte
	Interleave, Swizzle, Promotion, Fill uint32
	Channels, Pixels, Mode               uint32
	Lower, Upper                         int32 // of the wide form
}

// tensorScratch is C memory for one encoding: the map, aligned, then lists.
type tensorScratch struct {
	Buffer
	at, next int
}

func newTensorScratch(room int) *tensorScratch {
	b := NewBuffer(tensorMapAlign + TensorMapSize + room)
	at := int(-b.addr() % tensorMapAlign)
	return &tensorScratch{b, at, at + TensorMapSize}
}

func (t *tensorScratch) put(b []byte) HostAddress {
	at := t.next
	copy(t.Bytes()[at:], b)
	t.next += (len(b) + 7) &^ 7
	return HostAddress{v: t.addr() + uint64(at)}
}

func (t *tensorScratch) tensorMap() HostAddress { return HostAddress{v: t.addr() + uint64(t.at)} }

// result is the map's bytes.
func (t *tensorScratch) result(res cuda.Result) ([]byte, cuda.Result) {
	if res != cuda.Success {
		return nil, res
	}
	return append([]byte(nil), t.Bytes()[t.at:][:TensorMapSize]...), res
}

func (m *TensorMap) scratch() *tensorScratch {
	return newTensorScratch(len(m.Dims) + len(m.Strides) + len(m.Elements) + len(m.Shape) + 4*8)
}

// EncodeTiled encodes a tiled map: Shape is the box.
func (d *Driver) EncodeTiled(m *TensorMap) ([]byte, cuda.Result) {
	t := m.scratch()
	defer t.Free()
	return t.result(d.tensorMapEncodeTiled(t.tensorMap(), m.Type, m.Rank, m.Address.Address(), t.put(m.Dims), t.put(m.Strides), t.put(m.Shape),
		t.put(m.Elements), m.Interleave, m.Swizzle, m.Promotion, m.Fill))
}

// EncodeIm2col encodes an im2col map: Shape is the lower corner, then the upper one.
func (d *Driver) EncodeIm2col(m *TensorMap) ([]byte, cuda.Result) {
	t := m.scratch()
	defer t.Free()
	half := len(m.Shape) / 2
	return t.result(d.tensorMapEncodeIm2col(t.tensorMap(), m.Type, m.Rank, m.Address.Address(), t.put(m.Dims), t.put(m.Strides),
		t.put(m.Shape[:half]), t.put(m.Shape[half:]), m.Channels, m.Pixels, t.put(m.Elements), m.Interleave, m.Swizzle, m.Promotion, m.Fill))
}

// EncodeIm2colWide encodes a wide im2col map.
func (d *Driver) EncodeIm2colWide(m *TensorMap) ([]byte, cuda.Result) {
	t := m.scratch()
	defer t.Free()
	return t.result(d.tensorMapEncodeIm2colWide(t.tensorMap(), m.Type, m.Rank, m.Address.Address(), t.put(m.Dims), t.put(m.Strides),
		m.Lower, m.Upper, m.Channels, m.Pixels, t.put(m.Elements), m.Interleave, m.Mode, m.Swizzle, m.Promotion, m.Fill))
}

// ReplaceAddress points an encoded map at other memory.
func (d *Driver) ReplaceAddress(encoded []byte, to Mem) ([]byte, cuda.Result) {
	t := newTensorScratch(0)
	defer t.Free()
	copy(t.Bytes()[t.at:][:TensorMapSize], encoded)
	return t.result(d.tensorMapReplaceAddress(t.tensorMap(), to.Address()))
}
