package soft

import (
	"encoding/binary"
	"maps"
	"math"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/driver/soft/exec"
)

// texture is a texture or surface object.
type texture struct {
	value uint64
	ctx   *gpuContext
	mem   *allocation // what it reads
}

// textureSet is what kernels find objects in. It is replaced, never changed: launches keep the one
// of their time.
type textureSet struct {
	textures map[uint64]*exec.Texture
	surfaces map[uint64]*exec.Image
}

// Texture implements exec.Textures.
func (t *textureSet) Texture(object uint64) *exec.Texture { return t.textures[object] }

// Surface implements exec.Textures.
func (t *textureSet) Surface(object uint64) *exec.Image { return t.surfaces[object] }

// Descriptors of cuda.h: sizes, and places of fields.
const (
	resourceDescSize = 144
	textureDescSize  = 104
	viewDescSize     = 112

	resourceArray  = 0
	resourceMipmap = 1
	resourceLinear = 2
	resourcePitch  = 3

	readAsInteger = 0x01 // CU_TRSF_*
	normalized    = 0x02
	srgb          = 0x10
)

// image is an array as exec sees it.
func (x *array) image() exec.Image {
	d := &x.shape
	return exec.Image{
		Mem: x.mem.mem[x.off : x.off+d.bytes()], Width: int(d.width), Height: int(max(d.height, 1)), Depth: int(max(d.depth, 1)),
		Row: int(x.row()), Slice: int(x.slice()), Channels: int(d.channels), Format: exec.ChannelFormat(d.format),
	}
}

// linearImage is plain memory as a texture.
func (s *session) linearImage(addr uint64, format, channels uint32, width, height, pitch uint64) (exec.Image, cuda.Result) {
	pixel := formatBytes(format) * uint64(channels)
	if pixel == 0 || channels == 3 || channels > 4 || addr%textureAlign != 0 || width > linear1DWidth || height > linear2DHeight ||
		pitch > linear2DPitch && height > 1 || width == 0 || height == 0 {
		return exec.Image{}, cuda.ErrorInvalidValue
	}
	size := (height-1)*pitch + width*pixel
	mem, ok := s.space.bytes(addr, size)
	if !ok {
		return exec.Image{}, cuda.ErrorInvalidValue
	}
	return exec.Image{
		Mem: mem, Width: int(width), Height: int(height), Depth: 1, Row: int(pitch), Slice: int(size), Channels: int(channels),
		Format: exec.ChannelFormat(format),
	}, cuda.Success
}

// images finds what a resource descriptor names.
func (s *session) images(desc []byte, arrayID, mipmapID uint32) (list []exec.Image, flags uint32, res cuda.Result) {
	if len(desc) != resourceDescSize {
		return nil, 0, cuda.ErrorInvalidValue
	}
	le := binary.LittleEndian
	switch u := desc[8:]; le.Uint32(desc) {
	case resourceArray:
		x, ok := s.arrays[arrayID]
		if !ok {
			return nil, 0, cuda.ErrorInvalidValue
		}
		return []exec.Image{x.image()}, x.shape.flags, cuda.Success
	case resourceMipmap:
		m, ok := s.mipmaps[mipmapID]
		if !ok {
			return nil, 0, cuda.ErrorInvalidValue
		}
		for _, x := range m.levels {
			list = append(list, x.image())
		}
		return list, m.levels[0].shape.flags, cuda.Success
	case resourceLinear:
		format, channels, size := le.Uint32(u[8:]), le.Uint32(u[12:]), le.Uint64(u[16:])
		pixel := max(formatBytes(format)*uint64(channels), 1)
		m, res := s.linearImage(le.Uint64(u), format, channels, size/pixel, 1, size)
		return []exec.Image{m}, 0, res
	case resourcePitch:
		pitch := le.Uint64(u[32:])
		if pitch%pitchUnit != 0 {
			return nil, 0, cuda.ErrorInvalidValue
		}
		m, res := s.linearImage(le.Uint64(u), le.Uint32(u[8:]), le.Uint32(u[12:]), le.Uint64(u[16:]), le.Uint64(u[24:]), pitch)
		return []exec.Image{m}, 0, res
	}
	return nil, 0, cuda.ErrorInvalidValue
}

// TexObjectCreate makes a texture object.
func (s *session) TexObjectCreate(c *wire.Call, a *wire.TexObjectCreateArgs, r *wire.TexObjectCreateReply) cuda.Result {
	g, res := s.context(c)
	if res != cuda.Success {
		return res
	}
	if len(a.Texture) != textureDescSize || len(a.View) != 0 && len(a.View) != viewDescSize {
		return cuda.ErrorInvalidValue
	}
	list, flags, res := s.images(a.Resource, a.Array, a.Mipmap)
	if res != cuda.Success {
		return res
	}
	if len(a.View) != 0 || flags&arrayCubemap != 0 {
		s.log.Warn("cuTexObjectCreate: the software GPU has no cubemap textures and no resource views")
		return cuda.ErrorNotSupported
	}
	t := describeTexture(a.Texture, list)
	t.Linear1D = binary.LittleEndian.Uint32(a.Resource) == resourceLinear
	value := s.placeTexture(c)
	r.Object = value
	if s.textures == nil {
		s.textures = table[*texture]{}
	}
	if res := s.textures.put(a.Tex, &texture{value, g, s.space.lookup(addressOf(list[0].Mem))}); res != cuda.Success {
		return res
	}
	s.changeTextures(func(set *textureSet) { set.textures[value] = t })
	return cuda.Success
}

// describeTexture reads CUDA_TEXTURE_DESC.
func describeTexture(b []byte, levels []exec.Image) *exec.Texture {
	word := func(i int) uint32 { return binary.LittleEndian.Uint32(b[4*i:]) }
	float := func(i int) float32 { return math.Float32frombits(word(i)) }
	t := &exec.Texture{Levels: levels, Linear: word(3) == 1, MipLinear: word(6) == 1, Bias: float(7), MinLevel: float(8), MaxLevel: float(9)}
	for i := range t.Address {
		t.Address[i] = exec.AddressMode(word(i) & 3)
	}
	flags := word(4)
	t.Integers, t.Normalized, t.SRGB = flags&readAsInteger != 0, flags&normalized != 0, flags&srgb != 0
	for i := range t.Border {
		t.Border[i] = float(10 + i)
	}
	return t
}

// changeTextures replaces the set that launches from now on see.
func (s *session) changeTextures(change func(*textureSet)) {
	next := &textureSet{map[uint64]*exec.Texture{}, map[uint64]*exec.Image{}}
	if s.texSet != nil {
		maps.Copy(next.textures, s.texSet.textures)
		maps.Copy(next.surfaces, s.texSet.surfaces)
	}
	change(next)
	s.texSet = next
}

// TexObjectDestroy ends a texture object.
func (s *session) TexObjectDestroy(c *wire.Call, a *wire.TexObjectDestroyArgs) cuda.Result {
	t, ok := s.textures[a.Tex]
	if !ok {
		return cuda.ErrorInvalidValue
	}
	delete(s.textures, a.Tex)
	s.changeTextures(func(set *textureSet) { delete(set.textures, t.value) })
	return cuda.Success
}

// SurfObjectCreate makes a surface object.
func (s *session) SurfObjectCreate(c *wire.Call, a *wire.SurfObjectCreateArgs, r *wire.SurfObjectCreateReply) cuda.Result {
	g, res := s.context(c)
	if res != cuda.Success {
		return res
	}
	x, ok := s.arrays[a.Array]
	if !ok || len(a.Resource) != resourceDescSize || binary.LittleEndian.Uint32(a.Resource) != resourceArray {
		return cuda.ErrorInvalidValue
	}
	value := s.placeTexture(c)
	r.Object = value
	if s.surfaces == nil {
		s.surfaces = table[*texture]{}
	}
	if res := s.surfaces.put(a.Surf, &texture{value, g, x.mem}); res != cuda.Success {
		return res
	}
	m := x.image()
	s.changeTextures(func(set *textureSet) { set.surfaces[value] = &m })
	return cuda.Success
}

// SurfObjectDestroy ends a surface object.
func (s *session) SurfObjectDestroy(c *wire.Call, a *wire.SurfObjectDestroyArgs) cuda.Result {
	t, ok := s.surfaces[a.Surf]
	if !ok {
		return cuda.ErrorInvalidValue
	}
	delete(s.surfaces, a.Surf)
	s.changeTextures(func(set *textureSet) { delete(set.surfaces, t.value) })
	return cuda.Success
}

// forgetTexturesOf hides the objects that read memory which the guest has freed from later
// launches: a kernel that uses one fails, and nothing else.
func (s *session) forgetTexturesOf(a *allocation) {
	if s.texSet == nil {
		return
	}
	var gone []uint64
	for _, list := range []table[*texture]{s.textures, s.surfaces} {
		for _, t := range list {
			if t.mem == a {
				gone = append(gone, t.value)
			}
		}
	}
	if len(gone) == 0 {
		return
	}
	s.changeTextures(func(set *textureSet) {
		for _, v := range gone { // values are unique among both kinds
			delete(set.textures, v)
			delete(set.surfaces, v)
		}
	})
}

// placeTexture is the value by which kernels name a new texture or surface: the recorded one in a
// session that is rebuilt, else the next.
func (s *session) placeTexture(c *wire.Call) uint64 {
	s.texSerial = max(s.texSerial, 1)
	value, placed := c.Place()
	if !placed {
		value = s.texSerial
		c.Placed = append(c.Placed, value)
	}
	s.texSerial = max(s.texSerial, value+1)
	return value
}
