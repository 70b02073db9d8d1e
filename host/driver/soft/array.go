package soft

import (
	"encoding/binary"
	"math/bits"

	"causeway/cuda"
	"causeway/cuda/wire"
)

// array is a CUarray: rows one after the other, slices or layers after that, in memory of the
// device.
type array struct {
	shape arrayShape
	mem   *allocation
	off   uint64 // of the first element in mem
	pixel uint64 // bytes of an element
	ctx   *gpuContext
	owner *mipmap // nil: its own memory
}

// mipmap is a CUmipmappedArray: levels in one piece of memory.
type mipmap struct {
	levels []*array
	mem    *allocation
	ctx    *gpuContext
}

// arrayShape is CUDA_ARRAY3D_DESCRIPTOR.
type arrayShape struct {
	width, height, depth    uint64
	format, channels, flags uint32
}

// Flags of arrays (CUDA_ARRAY3D_*).
const (
	arrayLayered  = 0x01
	arraySurface  = 0x02
	arrayCubemap  = 0x04
	arrayGather   = 0x08
	arrayDepth    = 0x10
	arrayColor    = 0x20
	arraySparse   = 0x40
	arrayDeferred = 0x80
	arrayFlags    = 0x1ff
)

// Largest arrays in elements, those of a GPU of this capability.
const (
	array1DWidth   = 131072
	array2DWidth   = 131072
	array2DHeight  = 65536
	array3DSize    = 16384
	layeredSize    = 32768
	layeredLayers  = 2048
	cubemapSize    = 32768
	cubemapLayers  = 2046
	linear1DWidth  = 1 << 28
	linear2DWidth  = 131072
	linear2DHeight = 65000
	linear2DPitch  = 2097120
	textureAlign   = 512
	pitchUnit      = 32
)

// arrayLimits are the attributes of devices that say so.
var arrayLimits = map[int]int32{
	cuda.DeviceAttrTextureAlignment: textureAlign, cuda.DeviceAttrTexturePitchAlignment: pitchUnit,
	cuda.DeviceAttrSurfaceAlignment:       textureAlign,
	cuda.DeviceAttrMaximumTexture1dWidth:  array1DWidth,
	cuda.DeviceAttrMaximumTexture2dWidth:  array2DWidth,
	cuda.DeviceAttrMaximumTexture2dHeight: array2DHeight,
	cuda.DeviceAttrMaximumTexture3dWidth:  array3DSize, cuda.DeviceAttrMaximumTexture3dHeight: array3DSize,
	cuda.DeviceAttrMaximumTexture3dDepth:          array3DSize,
	cuda.DeviceAttrMaximumTexture1dLayeredWidth:   layeredSize,
	cuda.DeviceAttrMaximumTexture1dLayeredLayers:  layeredLayers,
	cuda.DeviceAttrMaximumTexture2dLayeredWidth:   layeredSize,
	cuda.DeviceAttrMaximumTexture2dLayeredHeight:  layeredSize,
	cuda.DeviceAttrMaximumTexture2dLayeredLayers:  layeredLayers,
	cuda.DeviceAttrMaximumTexture1dLinearWidth:    linear1DWidth,
	cuda.DeviceAttrMaximumTexture2dLinearWidth:    linear2DWidth,
	cuda.DeviceAttrMaximumTexture2dLinearHeight:   linear2DHeight,
	cuda.DeviceAttrMaximumTexture2dLinearPitch:    linear2DPitch,
	cuda.DeviceAttrMaximumTexture2dMipmappedWidth: layeredSize, cuda.DeviceAttrMaximumTexture2dMipmappedHeight: layeredSize,
	cuda.DeviceAttrMaximumTexture1dMipmappedWidth: layeredSize,
	cuda.DeviceAttrMaximumSurface1dWidth:          array1DWidth,
	cuda.DeviceAttrMaximumSurface2dWidth:          array2DWidth,
	cuda.DeviceAttrMaximumSurface2dHeight:         array2DHeight,
	cuda.DeviceAttrMaximumSurface3dWidth:          array3DSize, cuda.DeviceAttrMaximumSurface3dHeight: array3DSize,
	cuda.DeviceAttrMaximumSurface3dDepth:         array3DSize,
	cuda.DeviceAttrMaximumSurface1dLayeredWidth:  layeredSize,
	cuda.DeviceAttrMaximumSurface1dLayeredLayers: layeredLayers,
	cuda.DeviceAttrMaximumSurface2dLayeredWidth:  layeredSize,
	cuda.DeviceAttrMaximumSurface2dLayeredHeight: layeredSize,
	cuda.DeviceAttrMaximumSurface2dLayeredLayers: layeredLayers,
}

// formatBytes is the size of a channel, 0 for formats without channels of their own: planes,
// blocks, packed colours.
func formatBytes(format uint32) uint64 {
	switch format {
	case 0x01, 0x08:
		return 1
	case 0x02, 0x09, 0x10:
		return 2
	case 0x03, 0x0a, 0x20:
		return 4
	}
	return 0
}

// known reports whether the driver knows a format that the software GPU lacks.
func knownFormat(format uint32) bool {
	return format == 0x50 || format >= 0x91 && format <= 0xb5 || format >= 0xc0 && format <= 0xcb
}

// judge says whether an array of this shape may be made.
func (d *arrayShape) judge() cuda.Result {
	if d.width == 0 || d.flags&^arrayFlags != 0 || d.channels != 1 && d.channels != 2 && d.channels != 4 {
		return cuda.ErrorInvalidValue
	}
	if formatBytes(d.format) == 0 {
		if knownFormat(d.format) {
			return cuda.ErrorNotSupported
		}
		return cuda.ErrorInvalidValue
	}
	w, h := uint64(array2DWidth), uint64(array2DHeight)
	layers := uint64(0)
	switch layered := d.flags&arrayLayered != 0; {
	case d.flags&arrayCubemap != 0:
		if d.width != d.height || d.depth == 0 || d.depth%6 != 0 || !layered && d.depth != 6 {
			return cuda.ErrorInvalidValue
		}
		w, h, layers = cubemapSize, cubemapSize, cubemapLayers
	case layered:
		if d.depth == 0 {
			return cuda.ErrorInvalidValue
		}
		w, h, layers = layeredSize, layeredSize, layeredLayers
	case d.depth > 0:
		if d.height == 0 || d.flags&arrayGather != 0 {
			return cuda.ErrorInvalidValue
		}
		w, h, layers = array3DSize, array3DSize, array3DSize
	case d.height == 0:
		w = array1DWidth
	}
	if d.width > w || d.height > h || d.depth > layers {
		return cuda.ErrorInvalidValue
	}
	if d.flags&(arraySparse|arrayDeferred) != 0 {
		return cuda.ErrorNotSupported
	}
	return cuda.Success
}

// bytes is how much memory the elements take; limits keep it from overflowing.
func (d *arrayShape) bytes() uint64 {
	return d.width * max(d.height, 1) * max(d.depth, 1) * formatBytes(d.format) * uint64(d.channels)
}

// level is the shape of a mipmapped array's level.
func (d arrayShape) level(i int) arrayShape {
	half := func(v uint64) uint64 {
		if v == 0 {
			return 0
		}
		return max(v>>i, 1)
	}
	d.width, d.height = half(d.width), half(d.height)
	if d.flags&(arrayLayered|arrayCubemap) == 0 {
		d.depth = half(d.depth)
	}
	return d
}

func newArray(d arrayShape, mem *allocation, off uint64, g *gpuContext) *array {
	return &array{shape: d, mem: mem, off: off, pixel: formatBytes(d.format) * uint64(d.channels), ctx: g}
}

// row and slice are the distances between rows and between slices, in bytes.
func (x *array) row() uint64   { return x.shape.width * x.pixel }
func (x *array) slice() uint64 { return x.row() * max(x.shape.height, 1) }

// ArrayCreate makes an array.
func (s *session) ArrayCreate(c *wire.Call, a *wire.ArrayCreateArgs) cuda.Result {
	g, res := s.context(c)
	if res != cuda.Success {
		return res
	}
	d := arrayShape{a.Width, a.Height, a.Depth, a.Format, a.Channels, a.Flags}
	if res := d.judge(); res != cuda.Success {
		return res
	}
	m, res := s.obtain(c, request{device: g.device, size: d.bytes(), align: allocUnit, ctx: g, kind: variable})
	if res != cuda.Success {
		return res
	}
	if s.arrays == nil {
		s.arrays = table[*array]{}
	}
	if res = s.arrays.put(a.Array, newArray(d, m, 0, g)); res != cuda.Success {
		s.free([]*allocation{m})
	}
	return res
}

// ArrayDestroy ends an array; copies that are queued still run.
func (s *session) ArrayDestroy(c *wire.Call, a *wire.ArrayDestroyArgs) cuda.Result {
	x, ok := s.arrays[a.Array]
	if !ok || x.owner != nil {
		return cuda.ErrorInvalidHandle
	}
	delete(s.arrays, a.Array)
	s.free([]*allocation{x.mem})
	return cuda.Success
}

// MipmapCreate makes a mipmapped array. More levels than there can be are as many as there can be.
func (s *session) MipmapCreate(c *wire.Call, a *wire.MipmapCreateArgs) cuda.Result {
	g, res := s.context(c)
	if res != cuda.Success {
		return res
	}
	d := arrayShape{a.Width, a.Height, a.Depth, a.Format, a.Channels, a.Flags}
	if res := d.judge(); res != cuda.Success {
		return res
	}
	if d.width > layeredSize || d.height > layeredSize {
		return cuda.ErrorInvalidValue
	}
	longest := max(d.width, d.height)
	if d.flags&(arrayLayered|arrayCubemap) == 0 {
		longest = max(longest, d.depth)
	}
	count := min(max(int(a.Levels), 1), bits.Len64(longest))
	m := &mipmap{ctx: g}
	var size uint64
	for i := range count {
		level := d.level(i)
		x := newArray(level, nil, size, g)
		x.owner = m
		m.levels = append(m.levels, x)
		size += (level.bytes() + allocUnit - 1) &^ (allocUnit - 1)
	}
	mem, res := s.obtain(c, request{device: g.device, size: size, align: allocUnit, ctx: g, kind: variable})
	if res != cuda.Success {
		return res
	}
	m.mem = mem
	for _, x := range m.levels {
		x.mem = mem
	}
	if s.mipmaps == nil {
		s.mipmaps = table[*mipmap]{}
	}
	if res = s.mipmaps.put(a.Mipmap, m); res != cuda.Success {
		s.free([]*allocation{mem})
	}
	return res
}

// MipmapDestroy ends a mipmapped array and its levels.
func (s *session) MipmapDestroy(c *wire.Call, a *wire.MipmapDestroyArgs) cuda.Result {
	m, ok := s.mipmaps[a.Mipmap]
	if !ok {
		return cuda.ErrorInvalidHandle
	}
	delete(s.mipmaps, a.Mipmap)
	s.arrays.deleteIf(func(x *array) bool { return x.owner == m })
	s.free([]*allocation{m.mem})
	return cuda.Success
}

// MipmapGetLevel finds a level.
func (s *session) MipmapGetLevel(c *wire.Call, a *wire.MipmapGetLevelArgs, r *wire.MipmapGetLevelReply) cuda.Result {
	m, ok := s.mipmaps[a.Mipmap]
	if !ok {
		return cuda.ErrorInvalidHandle
	}
	if uint64(a.Index) >= uint64(len(m.levels)) {
		return cuda.ErrorInvalidValue
	}
	x := m.levels[a.Index]
	d := x.shape
	r.Width, r.Height, r.Depth, r.Format, r.Channels, r.Flags = d.width, d.height, d.depth, d.format, d.channels, d.flags
	if s.arrays == nil {
		s.arrays = table[*array]{}
	}
	return s.arrays.put(a.Level, x)
}

// ArrayGetPlane refuses: formats of several planes are not made here.
func (s *session) ArrayGetPlane(*wire.Call, *wire.ArrayGetPlaneArgs, *wire.ArrayGetPlaneReply) cuda.Result {
	return cuda.ErrorInvalidValue
}

// ArrayGetSparseProperties refuses: no array here is sparse.
func (s *session) ArrayGetSparseProperties(*wire.Call, *wire.ArrayGetSparsePropertiesArgs, *wire.ArrayGetSparsePropertiesReply) cuda.Result {
	return cuda.ErrorInvalidValue
}

// ArrayGetMemoryRequirements refuses: every array here has memory of its own.
func (s *session) ArrayGetMemoryRequirements(*wire.Call, *wire.ArrayGetMemoryRequirementsArgs, *wire.ArrayGetMemoryRequirementsReply) cuda.Result {
	return cuda.ErrorInvalidValue
}

// forgetArrays drops what hung on a context; its memory is freed with the context's.
func (s *session) forgetArrays(g *gpuContext) {
	s.arrays.deleteIf(func(x *array) bool { return x.ctx == g })
	s.mipmaps.deleteIf(func(m *mipmap) bool { return m.ctx == g })
	s.textures.deleteIf(func(t *texture) bool { return t.ctx == g })
	s.surfaces.deleteIf(func(t *texture) bool { return t.ctx == g })
	s.links.deleteIf(func(l *link) bool { return l.ctx == g })
}

// arrayOperand is one end of a box copy in an array.
func (s *session) arrayOperand(b box, id uint64, at [3]uint64) (operand, bool) {
	x, ok := s.arrays[wire.ID(id)]
	if !ok || id>>32 != 0 {
		return operand{}, false
	}
	var m checked
	if m.add(at[0], b.width) > x.row() || m.add(at[1], b.height) > max(x.shape.height, 1) ||
		m.add(at[2], b.depth) > max(x.shape.depth, 1) || m.overflow {
		return operand{}, false
	}
	first := x.off + at[2]*x.slice() + at[1]*x.row() + at[0]
	last := (b.depth-1)*x.slice() + (b.height-1)*x.row() + b.width
	return operand{mem: x.mem.mem[first : first+last], row: x.row(), slice: x.slice()}, true
}

// DeviceAsk answers what is asked about devices rarely.
func (s *session) DeviceAsk(c *wire.Call, a *wire.DeviceAskArgs, r *wire.DeviceAskReply) cuda.Result {
	if int64(a.Dev) >= int64(len(s.gpus)) {
		return cuda.ErrorInvalidDevice
	}
	switch a.What {
	case wire.AskTexture1DWidth:
		size := formatBytes(a.A) * uint64(a.B)
		if size == 0 || a.B == 3 || a.B > 4 {
			return cuda.ErrorInvalidValue
		}
		r.Answers = binary.LittleEndian.AppendUint64(nil, linear1DWidth)
	case wire.AskExecAffinity:
		if a.A != 0 {
			return cuda.ErrorInvalidValue
		}
		r.Answers = make([]byte, 4)
	case wire.AskHostAtomics:
		for list := a.List; len(list) >= 4; list = list[4:] {
			op := binary.LittleEndian.Uint32(list)
			if op >= cuda.AtomicOperationMax {
				return cuda.ErrorInvalidValue
			}
			r.Answers = binary.LittleEndian.AppendUint32(r.Answers, s.hostAtomics(op))
		}
	default:
		return cuda.ErrorNotSupported
	}
	return cuda.Success
}

// hostAtomics are the capabilities of an operation on memory that the guest shares: exec makes them
// with the processor's own.
func (s *session) hostAtomics(op uint32) uint32 {
	const signed, unsigned, reduction, scalar32, scalar64 = 1, 2, 4, 8, 16 // CU_ATOMIC_CAPABILITY_*
	switch reg, ok := s.host.Region(0); {
	case !ok || reg.Mem == nil:
		return 0
	case op <= cuda.AtomicOperationIntegerMax:
		return signed | unsigned | reduction | scalar32 | scalar64
	case op <= cuda.AtomicOperationIntegerDecrement:
		return unsigned | reduction | scalar32
	case op <= cuda.AtomicOperationXor:
		return unsigned | reduction | scalar32 | scalar64
	case op <= cuda.AtomicOperationCas:
		return unsigned | scalar32 | scalar64
	case op == cuda.AtomicOperationFloatAdd:
		return signed | reduction | scalar32 | scalar64
	}
	return 0
}
