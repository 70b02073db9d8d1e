package exec_test

import (
	"encoding/binary"
	"errors"
	"math"
	"testing"

	"causeway/host/driver/soft/exec"
)

// objects holds one texture and one surface, both of value 5.
type objects struct {
	texture *exec.Texture
	surface *exec.Image
}

func (o objects) Texture(v uint64) *exec.Texture {
	if v == 5 {
		return o.texture
	}
	return nil
}

func (o objects) Surface(v uint64) *exec.Image {
	if v == 5 {
		return o.surface
	}
	return nil
}

// numbered is an image of one float a place, holding its index.
func numbered(w, h, d int) exec.Image {
	m := exec.Image{Width: w, Height: h, Depth: d, Row: 4 * w, Slice: 4 * w * h, Channels: 1, Format: exec.Float}
	for i := range w * h * d {
		m.Mem = binary.LittleEndian.AppendUint32(m.Mem, math.Float32bits(float32(i)))
	}
	return m
}

const texHead = `.version 8.0
.target sm_90
.address_size 64
.visible .entry k(.param .u64 t, .param .u64 p, .param .f32 x, .param .f32 y)
{
	.reg .u64 d, t0; .reg .f32 x0, y0, a, b, c, e; .reg .u32 i, j; .reg .b16 h;
	ld.param.u64 t0, [t]; ld.param.u64 d, [p]; ld.param.f32 x0, [x]; ld.param.f32 y0, [y];
	mov.f32 a, 0f00000000; mov.f32 b, a; mov.f32 c, a; mov.f32 e, a;
`

const texTail = "\n\tst.global.v4.f32 [d], {a, b, c, e};\n\tret;\n}\n"

func TestTextures(t *testing.T) {
	a := newArena(t)
	const read2 = "tex.2d.v4.f32.f32 {a, b, c, e}, [t0, {x0, y0}];"
	four := numbered(4, 4, 1)
	all := [3]exec.AddressMode{exec.Clamp, exec.Clamp, exec.Clamp}
	for _, c := range []struct {
		name string
		tex  exec.Texture
		code string
		x, y float32
		want [4]float32
	}{
		{"point", exec.Texture{Levels: []exec.Image{four}, Address: all}, read2, 2.9, 1.2, [4]float32{6, 0, 0, 1}},
		{"clamp", exec.Texture{Levels: []exec.Image{four}, Address: all}, read2, -7, 99, [4]float32{12, 0, 0, 1}},
		{"not a number", exec.Texture{Levels: []exec.Image{four}, Address: all}, read2, float32(math.NaN()), float32(math.Inf(1)), [4]float32{12, 0, 0, 1}},
		{"linear", exec.Texture{Levels: []exec.Image{four}, Address: all, Linear: true}, read2, 2, 1, [4]float32{3.5, 0, 0, 1}},
		{"wrap", exec.Texture{Levels: []exec.Image{four}, Normalized: true}, read2, 1.3, -0.1, [4]float32{13, 0, 0, 1}},
		{"mirror", exec.Texture{Levels: []exec.Image{four}, Normalized: true, Address: [3]exec.AddressMode{exec.Mirror, exec.Mirror}}, read2, 1.1, -0.3, [4]float32{7, 0, 0, 1}},
		{"border", exec.Texture{Levels: []exec.Image{four}, Address: [3]exec.AddressMode{exec.Border, exec.Border}, Border: [4]float32{1, 2, 3, 4}}, read2, 4, 0, [4]float32{1, 2, 3, 4}},
		{"one dimension", exec.Texture{Levels: []exec.Image{numbered(4, 1, 1)}, Address: all}, "tex.1d.v4.f32.f32 {a, b, c, e}, [t0, {x0}];", 3, 0, [4]float32{3, 0, 0, 1}},
		{"by index", exec.Texture{Levels: []exec.Image{numbered(4, 1, 1)}, Linear1D: true}, "mov.u32 i, 2; tex.1d.v4.f32.s32 {a, b, c, e}, [t0, {i}];", 0, 0, [4]float32{2, 0, 0, 1}},
		{"index beside it", exec.Texture{Levels: []exec.Image{numbered(4, 1, 1)}, Linear1D: true}, "mov.u32 i, 4; tex.1d.v4.f32.s32 {a, b, c, e}, [t0, {i}];", 0, 0, [4]float32{}},
		{"layer", exec.Texture{Levels: []exec.Image{numbered(4, 4, 3)}, Address: all}, "mov.u32 i, 9; tex.a2d.v4.f32.f32 {a, b, c, e}, [t0, {i, x0, y0, y0}];", 1, 1, [4]float32{37, 0, 0, 1}},
		{"level", exec.Texture{Levels: []exec.Image{four, numbered(2, 2, 1)}, Address: all, Normalized: true, MaxLevel: 9}, "tex.level.2d.v4.f32.f32 {a, b, c, e}, [t0, {x0, y0}], 0f3F800000;", 0.9, 0.9, [4]float32{3, 0, 0, 1}},
		{"between levels", exec.Texture{Levels: []exec.Image{four, numbered(2, 2, 1)}, Address: all, Normalized: true, MaxLevel: 9, MipLinear: true}, "tex.level.2d.v4.f32.f32 {a, b, c, e}, [t0, {x0, y0}], 0f3F000000;", 0.9, 0.9, [4]float32{9, 0, 0, 1}},
		{"gradients", exec.Texture{Levels: []exec.Image{four, numbered(2, 2, 1)}, Address: all, Normalized: true, MaxLevel: 9}, "mov.f32 c, 0f3F000000; tex.grad.2d.v4.f32.f32 {a, b, c, e}, [t0, {x0, y0}], {c, a}, {a, c};", 0.9, 0.9, [4]float32{3, 0, 0, 1}},
		{"gather", exec.Texture{Levels: []exec.Image{four}, Address: all}, "tld4.r.2d.v4.f32.f32 {a, b, c, e}, [t0, {x0, y0}];", 2, 2, [4]float32{9, 10, 6, 5}},
		{"queries", exec.Texture{Levels: []exec.Image{four, four}, Normalized: true}, "txq.width.b32 i, [t0]; cvt.rn.f32.u32 a, i; txq.num_mipmap_levels.b32 i, [t0]; cvt.rn.f32.u32 b, i;", 0, 0, [4]float32{4, 2, 0, 0}},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := a.load(t, texHead+c.code+texTail)
			p := put(a, make([]float32, 4))
			params := pack(uint64(5), p, c.x, c.y)
			if err := a.launch(t, m, "k", exec.Config{Params: params, Textures: objects{texture: &c.tex}}); err != nil {
				t.Fatal(err)
			}
			if got := [4]float32(get[float32](a, p, 4)); got != c.want {
				t.Errorf("read %v, want %v", got, c.want)
			}
		})
	}
}

func TestTextureFormats(t *testing.T) {
	a := newArena(t)
	for _, c := range []struct {
		name   string
		format exec.ChannelFormat
		bytes  []byte
		tex    exec.Texture
		want   uint32
	}{
		{"bytes as fractions", exec.Unsigned8, []byte{51}, exec.Texture{}, math.Float32bits(0.2)},
		{"bytes as integers", exec.Unsigned8, []byte{51}, exec.Texture{Integers: true}, 51},
		{"signed bytes", exec.Signed8, []byte{0x80}, exec.Texture{}, math.Float32bits(-1)},
		{"signed halfwords as integers", exec.Signed16, []byte{0xfe, 0xff}, exec.Texture{Integers: true}, 0xfffffffe},
		{"words stay integers", exec.Unsigned32, []byte{1, 2, 3, 4}, exec.Texture{}, 0x04030201},
		{"half", exec.Half, []byte{0x00, 0x3c}, exec.Texture{}, math.Float32bits(1)},
		{"curve", exec.Unsigned8, []byte{255}, exec.Texture{SRGB: true}, math.Float32bits(1)},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.tex.Levels = []exec.Image{{Mem: c.bytes, Width: 1, Height: 1, Depth: 1, Row: len(c.bytes), Slice: len(c.bytes), Channels: 1, Format: c.format}}
			m := a.load(t, texHead+"tex.2d.v4.f32.f32 {a, b, c, e}, [t0, {x0, y0}];"+texTail)
			p := put(a, make([]uint32, 4))
			params := pack(uint64(5), p, float32(0), float32(0))
			if err := a.launch(t, m, "k", exec.Config{Params: params, Textures: objects{texture: &c.tex}}); err != nil {
				t.Fatal(err)
			}
			if got := get[uint32](a, p, 4)[0]; got != c.want {
				t.Errorf("read %#x, want %#x", got, c.want)
			}
		})
	}
}

func TestSurfaces(t *testing.T) {
	a := newArena(t)
	for _, c := range []struct {
		name string
		code string
		at   int // index of the float that becomes 77, -1: none
		kind exec.FaultKind
	}{
		{"inside", "mov.u32 i, 8; mov.u32 j, 1; mov.f32 x0, 0f429A0000; sust.b.2d.b32.trap [t0, {i, j}], {x0};", 6, 0},
		{"clamped", "mov.u32 i, 100; mov.u32 j, 1; mov.f32 x0, 0f429A0000; sust.b.2d.b32.clamp [t0, {i, j}], {x0};", 7, 0},
		{"nowhere", "mov.u32 i, 100; mov.u32 j, 1; mov.f32 x0, 0f429A0000; sust.b.2d.b32.zero [t0, {i, j}], {x0};", -1, 0},
		{"beside it", "mov.u32 i, 0; mov.u32 j, 4; sust.b.2d.b32.trap [t0, {i, j}], {x0};", -1, exec.Trap},
		{"not aligned", "mov.u32 i, 2; mov.u32 j, 0; sust.b.2d.b32.trap [t0, {i, j}], {x0};", -1, exec.MisalignedAddress},
		{"no such object", "mov.u64 t0, 6; mov.u32 i, 0; sust.b.2d.b32.trap [t0, {i, i}], {x0};", -1, exec.Trap},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := a.load(t, texHead+c.code+texTail)
			p := put(a, make([]float32, 4))
			image := numbered(4, 4, 1)
			err := a.launch(t, m, "k", exec.Config{Params: pack(uint64(5), p, float32(0), float32(0)), Textures: objects{surface: &image}})
			var f *exec.Fault
			if c.kind != 0 {
				if !errors.As(err, &f) || f.Kind != c.kind {
					t.Fatalf("error %v, want %v", err, c.kind)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			for i := range 16 {
				want := float32(i)
				if i == c.at {
					want = 77
				}
				if got := math.Float32frombits(binary.LittleEndian.Uint32(image.Mem[4*i:])); got != want {
					t.Errorf("place %d holds %g, want %g", i, got, want)
				}
			}
		})
	}
}

func TestTextureFormsThatAreNamed(t *testing.T) {
	a := newArena(t)
	for _, code := range []string{
		"tex.cube.v4.f32.f32 {a, b, c, e}, [t0, {x0, y0, x0, y0}];",
		"tex.2d.v4.f32.f32 {a, b, c, e}, [t0, d, {x0, y0}];",
		"tex.2d.v4.f32.f32 {a, b, c, e}, [t0, {x0}];",
		"sust.p.2d.v4.b32.trap [t0, {i, j}], {i, i, i, i};",
	} {
		m := a.load(t, texHead+code+texTail)
		var u *exec.UnsupportedError
		err := a.launch(t, m, "k", exec.Config{Params: pack(uint64(5), uint64(0), float32(0), float32(0))})
		if !errors.As(err, &u) {
			t.Errorf("%s: error %v, want an UnsupportedError", code, err)
		}
	}
}
