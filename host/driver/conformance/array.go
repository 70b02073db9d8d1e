package conformance

import (
	"bytes"
	"encoding/binary"
	"strings"
	"testing"

	"causeway/cuda"
	"causeway/cuda/wire"
)

// texKernel reads texture t at integer positions and writes surface s, 32 by 8 words each,
// mirrored.
const texKernel = `.version 6.4
.target sm_75
.address_size 64
.visible .entry turn(.param .u64 t, .param .u64 s)
{
	.reg .b32 %r<12>; .reg .b64 %d<4>; .reg .f32 %f<4>;
	ld.param.u64 %d1, [t]; ld.param.u64 %d2, [s];
	mov.u32 %r1, %tid.x; mov.u32 %r2, %ctaid.x;
	cvt.rn.f32.u32 %f1, %r1; cvt.rn.f32.u32 %f2, %r2;
	add.f32 %f1, %f1, 0f3F000000; add.f32 %f2, %f2, 0f3F000000;
	tex.2d.v4.u32.f32 {%r4, %r5, %r6, %r7}, [%d1, {%f1, %f2}];
	mov.u32 %r8, 31;
	sub.u32 %r9, %r8, %r1;
	shl.b32 %r9, %r9, 2;
	sust.b.2d.b32.trap [%d2, {%r9, %r2}], {%r4};
	ret;
}
`

// Formats and sizes of cuda.h.
const (
	formatU32        = 0x03
	surfaceLoadStore = 0x02
	resourceDesc     = 144
	textureDesc      = 104
	rowBytes         = 128
	arrayRows        = 8
)

func (g *Guest) array(flags uint32) wire.ID {
	g.t.Helper()
	id := g.ID()
	g.ok(g.Session.ArrayCreate(g.call(wire.OpArrayCreate), &wire.ArrayCreateArgs{
		Array: id, Width: rowBytes / 4, Height: arrayRows, Format: formatU32, Channels: 1, Flags: flags,
	}), "ArrayCreate")
	return id
}

// box copies between an array and device memory, rows bytes apart.
func (g *Guest) box(a *wire.Memcpy3DArgs) cuda.Result {
	a.Width, a.Height, a.Depth, a.Stream = rowBytes, arrayRows, 1, 1
	return g.Session.Memcpy3D(g.call(wire.OpMemcpy3D), a)
}

func testArrays(t *testing.T, g *Guest) {
	rows := make([]byte, rowBytes*arrayRows)
	for i := range rows {
		rows[i] = byte(i*7 + i>>8)
	}
	p := g.alloc(2 * uint64(len(rows)))
	g.put(p, rows)
	a, b := g.array(surfaceLoadStore), g.array(surfaceLoadStore)
	g.ok(g.box(&wire.Memcpy3DArgs{Src: p, SrcPitch: rowBytes, SrcHeight: arrayRows, DstKind: wire.OperandArray, Dst: uint64(a)}), "into an array")
	g.ok(g.box(&wire.Memcpy3DArgs{SrcKind: wire.OperandArray, Src: uint64(a), DstKind: wire.OperandArray, Dst: uint64(b)}), "between arrays")
	back := &wire.Memcpy3DArgs{SrcKind: wire.OperandArray, Src: uint64(b), Dst: p + uint64(len(rows)), DstPitch: rowBytes, DstHeight: arrayRows}
	g.ok(g.box(back), "out of an array")
	if got := g.get(p+uint64(len(rows)), len(rows)); !bytes.Equal(got, rows) {
		t.Error("an array gave other bytes than it took")
	}
	for what, bad := range map[string]wire.Memcpy3DArgs{
		"beyond its rows": {SrcKind: wire.OperandArray, Src: uint64(a), SrcY: 1, DstKind: wire.OperandArray, Dst: uint64(b)},
		"beside it":       {SrcKind: wire.OperandArray, Src: uint64(a), SrcX: 4, DstKind: wire.OperandArray, Dst: uint64(b)},
		"of no array":     {SrcKind: wire.OperandArray, Src: 1 << 33, DstKind: wire.OperandArray, Dst: uint64(b)},
		"of memory":       {SrcKind: wire.OperandArray, Src: p, DstKind: wire.OperandArray, Dst: uint64(b)},
	} {
		if g.box(&bad) == cuda.Success {
			t.Errorf("a box %s was copied", what)
		}
	}
	g.turn(t, a, b, rows)
	g.mipmap(t)
	for _, id := range []wire.ID{a, b} {
		g.ok(g.Session.ArrayDestroy(g.call(wire.OpArrayDestroy), &wire.ArrayDestroyArgs{Array: id}), "ArrayDestroy")
	}
	if g.Session.ArrayDestroy(g.call(wire.OpArrayDestroy), &wire.ArrayDestroyArgs{Array: a}) == cuda.Success {
		t.Error("an array was destroyed twice")
	}
}

// turn runs a kernel that reads a as a texture and writes b as a surface.
func (g *Guest) turn(t *testing.T, a, b wire.ID, rows []byte) {
	tex, surf := g.ID(), g.ID()
	desc := make([]byte, textureDesc)
	for i := range 3 {
		binary.LittleEndian.PutUint32(desc[4*i:], 1) // clamp
	}
	binary.LittleEndian.PutUint32(desc[16:], 1) // read as integers
	var to wire.TexObjectCreateReply
	g.ok(g.Session.TexObjectCreate(g.call(wire.OpTexObjectCreate), &wire.TexObjectCreateArgs{
		Tex: tex, Array: a, Resource: make([]byte, resourceDesc), Texture: desc,
	}, &to), "TexObjectCreate")
	var so wire.SurfObjectCreateReply
	g.ok(g.Session.SurfObjectCreate(g.call(wire.OpSurfObjectCreate), &wire.SurfObjectCreateArgs{
		Surf: surf, Array: b, Resource: make([]byte, resourceDesc),
	}, &so), "SurfObjectCreate")
	mod, fn := g.load(texKernel), g.ID()
	var info wire.ModuleGetFunctionReply
	g.ok(g.Session.ModuleGetFunction(g.call(wire.OpModuleGetFunction), &wire.ModuleGetFunctionArgs{Func: fn, Module: mod, Name: []byte("turn")}, &info), "turn")
	params := binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(nil, to.Object), so.Object)
	g.ok(g.Session.Launch(g.call(wire.OpLaunch), &wire.LaunchArgs{Func: fn, Stream: 1, Gx: arrayRows, Gy: 1, Gz: 1, Bx: 32, By: 1, Bz: 1, Params: params}), "Launch")
	p := g.alloc(uint64(len(rows)))
	g.ok(g.box(&wire.Memcpy3DArgs{SrcKind: wire.OperandArray, Src: uint64(b), Dst: p, DstPitch: rowBytes, DstHeight: arrayRows}), "out of the surface")
	g.ok(g.sync(), "turn")
	got := g.get(p, len(rows))
	for i := 0; i < len(rows); i += 4 {
		mirror := i/rowBytes*rowBytes + rowBytes - 4 - i%rowBytes
		if !bytes.Equal(got[i:i+4], rows[mirror:mirror+4]) {
			t.Errorf("word %d of the surface is %x, want %x", i/4, got[i:i+4], rows[mirror:mirror+4])
			break
		}
	}
	g.ok(g.Session.TexObjectDestroy(g.call(wire.OpTexObjectDestroy), &wire.TexObjectDestroyArgs{Tex: tex}), "TexObjectDestroy")
	g.ok(g.Session.SurfObjectDestroy(g.call(wire.OpSurfObjectDestroy), &wire.SurfObjectDestroyArgs{Surf: surf}), "SurfObjectDestroy")
	desc = desc[:8]
	if g.Session.TexObjectCreate(g.call(wire.OpTexObjectCreate), &wire.TexObjectCreateArgs{Tex: g.ID(), Array: a, Resource: make([]byte, resourceDesc), Texture: desc}, &to) == cuda.Success {
		t.Error("a texture of a short description was made")
	}
}

func (g *Guest) mipmap(t *testing.T) {
	m, level := g.ID(), g.ID()
	g.ok(g.Session.MipmapCreate(g.call(wire.OpMipmapCreate), &wire.MipmapCreateArgs{
		Mipmap: m, Width: 16, Height: 4, Format: formatU32, Channels: 1, Levels: 9,
	}), "MipmapCreate")
	var r wire.MipmapGetLevelReply
	g.ok(g.Session.MipmapGetLevel(g.call(wire.OpMipmapGetLevel), &wire.MipmapGetLevelArgs{Level: level, Mipmap: m, Index: 3}, &r), "level 3")
	if r.Width != 2 || r.Height != 1 {
		t.Errorf("level 3 is %d x %d, want 2 x 1", r.Width, r.Height)
	}
	if res := g.Session.MipmapGetLevel(g.call(wire.OpMipmapGetLevel), &wire.MipmapGetLevelArgs{Level: g.ID(), Mipmap: m, Index: 5}, &r); res != cuda.ErrorInvalidValue {
		t.Errorf("level 5: %v", res)
	}
	g.ok(g.Session.MipmapDestroy(g.call(wire.OpMipmapDestroy), &wire.MipmapDestroyArgs{Mipmap: m}), "MipmapDestroy")
	if g.Session.ArrayDestroy(g.call(wire.OpArrayDestroy), &wire.ArrayDestroyArgs{Array: level}) == cuda.Success {
		t.Error("a level outlived its mipmapped array")
	}
}

const linkCaller = `.version 6.4
.target sm_75
.address_size 64
.extern .func (.param .b32 r) twice(.param .b32 a);
.visible .entry k(.param .u64 p)
{
	.reg .b32 %r<4>; .reg .b64 %d<4>;
	ld.param.u64 %d1, [p]; mov.u32 %r1, %tid.x;
	{
		.param .b32 a; .param .b32 r;
		st.param.b32 [a], %r1;
		call.uni (r), twice, (a);
		ld.param.b32 %r2, [r];
	}
	mul.wide.u32 %d2, %r1, 4; add.s64 %d3, %d1, %d2;
	st.global.u32 [%d3], %r2;
	ret;
}
`

const linkCallee = `.version 6.4
.target sm_75
.address_size 64
.visible .func (.param .b32 r) twice(.param .b32 a)
{
	.reg .b32 %r<3>;
	ld.param.b32 %r1, [a]; add.u32 %r2, %r1, %r1; st.param.b32 [r], %r2;
	ret;
}
`

func testLink(t *testing.T, g *Guest) {
	const ptx = 1
	link := func(texts ...string) (wire.LinkCompleteReply, cuda.Result) {
		id := g.ID()
		g.ok(g.Session.LinkCreate(g.call(wire.OpLinkCreate), &wire.LinkCreateArgs{Link: id, ErrCap: 1000}), "LinkCreate")
		defer func() {
			g.ok(g.Session.LinkDestroy(g.call(wire.OpLinkDestroy), &wire.LinkDestroyArgs{Link: id}), "LinkDestroy")
		}()
		for _, text := range texts {
			var r wire.LinkAddReply
			if res := g.Session.LinkAdd(g.call(wire.OpLinkAdd), &wire.LinkAddArgs{Link: id, Type: ptx, Name: []byte("input"), Input: []byte(text)}, &r); res != cuda.Success {
				return wire.LinkCompleteReply{ErrLen: r.ErrLen, Result: r.Logs}, res
			}
		}
		var r wire.LinkCompleteReply
		res := g.Session.LinkComplete(g.call(wire.OpLinkComplete), &wire.LinkCompleteArgs{Link: id}, &r)
		return r, res
	}
	r, res := link(linkCaller, linkCallee)
	g.ok(res, "link")
	mod, fn := g.load(string(r.Result[r.InfoLen+r.ErrLen:])), g.ID()
	var info wire.ModuleGetFunctionReply
	g.ok(g.Session.ModuleGetFunction(g.call(wire.OpModuleGetFunction), &wire.ModuleGetFunctionArgs{Func: fn, Module: mod, Name: []byte("k")}, &info), "k")
	p := g.alloc(128)
	g.ok(g.Session.Launch(g.call(wire.OpLaunch), &wire.LaunchArgs{Func: fn, Stream: 1, Gx: 1, Gy: 1, Gz: 1, Bx: 32, By: 1, Bz: 1, Params: binary.LittleEndian.AppendUint64(nil, p)}), "Launch")
	for i, b := 0, g.get(p, 128); i < 32; i++ {
		if v := binary.LittleEndian.Uint32(b[4*i:]); v != uint32(2*i) {
			t.Fatalf("thread %d of a linked kernel wrote %d", i, v)
		}
	}
	// An H200's driver 580 says UNKNOWN.
	for what, texts := range map[string][]string{"undefined": {linkCaller}, "twice": {linkCallee, linkCallee}} {
		r, res := link(texts...)
		if res != cuda.ErrorInvalidSource && res != cuda.ErrorUnknown || !strings.Contains(string(r.Result), "'twice'") {
			t.Errorf("%s: %v, log %q", what, res, r.Result)
		}
	}
}
