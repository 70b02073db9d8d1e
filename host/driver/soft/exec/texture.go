package exec

import "math"

// Textures finds texture and surface objects by the values that kernels hold.
// Both methods must be safe for concurrent use, and answers stay the same while
// a launch runs; nil means that there is no such object.
type Textures interface {
	Texture(object uint64) *Texture
	Surface(object uint64) *Image
}

// Image is memory as textures and surfaces see it: elements in rows, rows in
// slices or layers. Height and Depth are 1 where the image has no such
// dimension. Mem holds everything from the first element to the last.
type Image struct {
	Mem                  []byte
	Width, Height, Depth int
	Row, Slice           int // distances in bytes
	Channels             int // 1, 2 or 4
	Format               ChannelFormat
}

// ChannelFormat is the type of an element's channels (CUarray_format).
type ChannelFormat uint8

// Channel formats.
const (
	Unsigned8  ChannelFormat = 0x01
	Unsigned16 ChannelFormat = 0x02
	Unsigned32 ChannelFormat = 0x03
	Signed8    ChannelFormat = 0x08
	Signed16   ChannelFormat = 0x09
	Signed32   ChannelFormat = 0x0a
	Half       ChannelFormat = 0x10
	Float      ChannelFormat = 0x20
)

// Size is the number of bytes of a channel, 0 for an unknown format.
func (f ChannelFormat) Size() int {
	switch f {
	case Unsigned8, Signed8:
		return 1
	case Unsigned16, Signed16, Half:
		return 2
	case Unsigned32, Signed32, Float:
		return 4
	}
	return 0
}

// AddressMode says what is read beside an image (CUaddress_mode).
type AddressMode uint8

// Address modes. Wrap and Mirror mean Clamp unless coordinates are normalised.
const (
	Wrap AddressMode = iota
	Clamp
	Mirror
	Border
)

// Texture is an image with the way it is read. It is constant.
type Texture struct {
	Levels     []Image // mipmap levels; one if there are no others
	Address    [3]AddressMode
	Linear     bool // filter
	Normalized bool // coordinates run from 0 to 1
	Integers   bool // integer channels are not turned into fractions
	SRGB       bool
	Linear1D   bool // plain memory: reads beside it give zero
	Border     [4]float32
	MipLinear  bool
	Bias       float32
	MinLevel   float32
	MaxLevel   float32
}

// texel is a channel value: bits of a float, or an integer.
type texel [4]uint32

// fraction reports whether the texture reads as floats.
func (t *Texture) float(f ChannelFormat) bool {
	return f == Float || f == Half || !t.Integers && f.Size() < 4
}

// one is what channels that the image lacks read as in the last place.
func (t *Texture) blank(f ChannelFormat) texel {
	if t.float(f) {
		return texel{3: math.Float32bits(1)}
	}
	return texel{3: 1}
}

// border is the texel beside an image in mode Border.
func (t *Texture) border(f ChannelFormat) texel {
	var v texel
	for i, b := range t.Border {
		if t.float(f) {
			v[i] = math.Float32bits(b)
		} else {
			v[i] = uint32(int64(b))
		}
	}
	return v
}

// place maps an index of an axis into the image; false: beside it.
func place(i, n int, mode AddressMode, normalized bool) (int, bool) {
	if i >= 0 && i < n {
		return i, true
	}
	if !normalized && (mode == Wrap || mode == Mirror) {
		mode = Clamp
	}
	switch mode {
	case Wrap:
		return ((i % n) + n) % n, true
	case Mirror:
		i = ((i % (2 * n)) + 2*n) % (2 * n)
		if i >= n {
			i = 2*n - 1 - i
		}
		return i, true
	case Clamp:
		return min(max(i, 0), n-1), true
	}
	return 0, false
}

// fetch reads the element at integer coordinates. z is a slice or, for layered
// images, the layer, which is already within the image.
func (t *Texture) fetch(m *Image, x, y, z int) texel {
	if t.Linear1D && (x < 0 || x >= m.Width) {
		return texel{}
	}
	var ok [3]bool
	x, ok[0] = place(x, m.Width, t.Address[0], t.Normalized)
	y, ok[1] = place(y, m.Height, t.Address[1], t.Normalized)
	z, ok[2] = place(z, m.Depth, t.Address[2], t.Normalized)
	if !ok[0] || !ok[1] || !ok[2] {
		return t.border(m.Format)
	}
	v := t.blank(m.Format)
	size := m.Format.Size()
	at := z*m.Slice + y*m.Row + x*m.Channels*size
	for c := range m.Channels {
		raw := getBytes(m.Mem[at+c*size : at+(c+1)*size])
		v[c] = t.channel(m.Format, uint32(raw), c)
	}
	return v
}

// channel turns a stored channel into what a kernel reads.
func (t *Texture) channel(f ChannelFormat, raw uint32, c int) uint32 {
	if t.float(f) {
		v := fractionOf(f, raw)
		if t.SRGB && f == Unsigned8 && c < 3 {
			v = linearLight(v)
		}
		return math.Float32bits(v)
	}
	switch f {
	case Signed8:
		return uint32(int32(int8(raw)))
	case Signed16:
		return uint32(int32(int16(raw)))
	}
	return raw
}

func fractionOf(f ChannelFormat, raw uint32) float32 {
	switch f {
	case Float:
		return math.Float32frombits(raw)
	case Half:
		return float32(fromHalf(uint16(raw)))
	case Unsigned8:
		return float32(raw) / 255
	case Unsigned16:
		return float32(raw) / 65535
	case Signed8:
		return max(float32(int8(raw))/127, -1)
	default:
		return max(float32(int16(raw))/32767, -1)
	}
}

// linearLight decodes the sRGB curve (IEC 61966-2-1).
func linearLight(v float32) float32 {
	if v <= 0.04045 {
		return v / 12.92
	}
	return float32(math.Pow((float64(v)+0.055)/1.055, 2.4))
}

// axis is where a coordinate falls: the element below, and how far it is to
// the next one, in the 8 bits of fraction that the hardware keeps.
func (t *Texture) axis(x float32, n int) (int, float32) {
	v := float64(x)
	if t.Normalized {
		v *= float64(n)
	}
	if !t.Linear {
		return clampInt(math.Floor(v)), 0
	}
	v -= 0.5
	whole := math.Floor(v)
	part := float32(math.Floor((v-whole)*256+0.5) / 256)
	return clampInt(whole), part
}

// clampInt makes an int of a float, of those too large and of NaN something
// that place can work with.
func clampInt(v float64) int {
	const bound = 1 << 40
	if !(v > -bound) {
		return -bound
	}
	return int(min(v, bound))
}

// sample reads one level at a position of dims dimensions; the axis after them
// is the layer or 0.
func (t *Texture) sample(m *Image, pos [3]float32, dims, layer int) texel {
	var i [3]int
	var f [3]float32
	size := [3]int{m.Width, m.Height, m.Depth}
	for d := range dims {
		i[d], f[d] = t.axis(pos[d], size[d])
	}
	if dims < 3 {
		i[2] = layer
	}
	if !t.Linear || !t.float(m.Format) {
		return t.fetch(m, i[0], i[1], i[2])
	}
	var sum [4]float32
	for corner := range 1 << dims {
		weight := float32(1)
		at := i
		for d := range dims {
			if corner>>d&1 != 0 {
				at[d]++
				weight *= f[d]
			} else {
				weight *= 1 - f[d]
			}
		}
		if weight == 0 {
			continue
		}
		v := t.fetch(m, at[0], at[1], at[2])
		for c := range sum {
			sum[c] += weight * math.Float32frombits(v[c])
		}
	}
	var out texel
	for c := range sum {
		out[c] = math.Float32bits(sum[c])
	}
	return out
}

// sampleLevel reads at a level of detail.
func (t *Texture) sampleLevel(pos [3]float32, dims, layer int, level float32) texel {
	last := float32(len(t.Levels) - 1)
	if last == 0 {
		return t.sample(&t.Levels[0], pos, dims, layer)
	}
	level = min(max(level+t.Bias, t.MinLevel), t.MaxLevel)
	if !(level > 0) { // NaN too
		level = 0
	}
	level = min(level, last)
	if !t.MipLinear {
		return t.sample(&t.Levels[int(level+0.5)], pos, dims, layer)
	}
	below := int(level)
	part := float32(math.Floor(float64(level-float32(below))*256+0.5) / 256)
	a := t.sample(&t.Levels[below], pos, dims, layer)
	if part == 0 || !t.float(t.Levels[0].Format) {
		return a
	}
	b := t.sample(&t.Levels[below+1], pos, dims, layer)
	for c := range a {
		a[c] = math.Float32bits(math.Float32frombits(a[c])*(1-part) + math.Float32frombits(b[c])*part)
	}
	return a
}

// gather reads one channel of the four elements that a linear filter would mix,
// in the order of tld4: left below, right below, right above, left above.
func (t *Texture) gather(pos [3]float32, layer, channel int) texel {
	m := &t.Levels[0]
	linear := *t
	linear.Linear = true
	x, _ := linear.axis(pos[0], m.Width)
	y, _ := linear.axis(pos[1], m.Height)
	return texel{
		t.fetch(m, x, y+1, layer)[channel], t.fetch(m, x+1, y+1, layer)[channel],
		t.fetch(m, x+1, y, layer)[channel], t.fetch(m, x, y, layer)[channel],
	}
}

// levelOf is the level of detail that two gradients ask for.
func (t *Texture) levelOf(dx, dy [3]float32, dims int) float32 {
	size := [3]int{t.Levels[0].Width, t.Levels[0].Height, t.Levels[0].Depth}
	var a, b float64
	for d := range dims {
		n := float64(size[d])
		if !t.Normalized {
			n = 1
		}
		a += float64(dx[d]) * n * float64(dx[d]) * n
		b += float64(dy[d]) * n * float64(dy[d]) * n
	}
	return float32(math.Log2(math.Sqrt(max(a, b))))
}
