package soft

import (
	"encoding/binary"
	"testing"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/driver"
)

func TestStreamAttributes(t *testing.T) {
	r := newRig(t, driver.Options{})
	a, b := r.stream(1), r.stream(1)
	value := func(word uint32) []byte {
		return append(binary.LittleEndian.AppendUint32(nil, word), make([]byte, attributeValueSize-4)...)
	}
	set := func(st wire.Stream, attr uint32, v []byte) cuda.Result {
		return r.s.StreamSetAttribute(r.call(wire.OpStreamSetAttribute), &wire.StreamSetAttributeArgs{Target: st, Attr: attr, Value: v})
	}
	get := func(st wire.Stream, attr uint32) (uint32, cuda.Result) {
		var reply wire.StreamGetAttributeReply
		res := r.s.StreamGetAttribute(r.call(wire.OpStreamGetAttribute), &wire.StreamGetAttributeArgs{Stream: st, Attr: attr}, &reply)
		if res != cuda.Success {
			return 0, res
		}
		return binary.LittleEndian.Uint32(reply.Value), res
	}
	for _, c := range []struct {
		what string
		attr uint32
		v    []byte
		want cuda.Result
		back uint32
	}{
		{"policy", cuda.LaunchAttrSynchronizationPolicy, value(3), cuda.Success, 3},
		{"no such policy", cuda.LaunchAttrSynchronizationPolicy, value(77), cuda.ErrorInvalidValue, 3},
		{"priority beyond the range", cuda.LaunchAttrPriority, value(0xffffff00), cuda.Success, 0xffffffff},
		{"an attribute of kernels", cuda.LaunchAttrCooperative, value(1), cuda.ErrorInvalidValue, 0},
		{"no value", cuda.LaunchAttrMemSyncDomain, nil, cuda.ErrorInvalidValue, 0},
	} {
		r.want(set(a, c.attr, c.v), c.want, c.what)
		if got, res := get(a, c.attr); res == cuda.Success && got != c.back {
			t.Errorf("%s: %#x comes back, want %#x", c.what, got, c.back)
		}
	}
	r.ok(r.s.StreamCopyAttributes(r.call(wire.OpStreamCopyAttributes), &wire.StreamCopyAttributesArgs{Target: b, Source: a}))
	if got, res := get(b, cuda.LaunchAttrSynchronizationPolicy); res != cuda.Success || got != 3 {
		t.Errorf("copied policy is %d, %v", got, res)
	}
	if got, res := get(wire.StreamLegacy, cuda.LaunchAttrSynchronizationPolicy); res != cuda.Success || got != 0xffffffff {
		t.Errorf("policy of the default stream is %#x, %v", got, res)
	}
	_, res := get(99, cuda.LaunchAttrPriority)
	r.want(res, cuda.ErrorInvalidHandle, "no such stream")
}

// TestTexturesOfFreedMemory: a kernel that reads a texture of freed memory fails, and the worker
// lives.
func TestTexturesOfFreedMemory(t *testing.T) {
	r := newRig(t, driver.Options{})
	id, tex := r.id(), r.id()
	r.ok(r.s.ArrayCreate(r.call(wire.OpArrayCreate), &wire.ArrayCreateArgs{Array: id, Width: 1 << 14, Height: 1 << 10, Format: 0x03, Channels: 1}))
	var reply wire.TexObjectCreateReply
	r.ok(r.s.TexObjectCreate(r.call(wire.OpTexObjectCreate), &wire.TexObjectCreateArgs{
		Tex: tex, Array: id, Resource: make([]byte, resourceDescSize), Texture: make([]byte, textureDescSize),
	}, &reply))
	if r.s.texSet.Texture(reply.Object) == nil {
		t.Fatal("kernels do not find the texture")
	}
	r.ok(r.s.ArrayDestroy(r.call(wire.OpArrayDestroy), &wire.ArrayDestroyArgs{Array: id}))
	if r.s.texSet.Texture(reply.Object) != nil {
		t.Error("kernels find a texture of memory that is gone")
	}
	r.ok(r.s.TexObjectDestroy(r.call(wire.OpTexObjectDestroy), &wire.TexObjectDestroyArgs{Tex: tex}))
}

func TestArrayShapes(t *testing.T) {
	for _, c := range []struct {
		what string
		d    arrayShape
		want cuda.Result
	}{
		{"row", arrayShape{64, 0, 0, 0x20, 1, 0}, cuda.Success},
		{"sheet", arrayShape{64, 64, 0, 0x10, 4, arraySurface}, cuda.Success},
		{"box", arrayShape{8, 8, 8, 0x01, 2, 0}, cuda.Success},
		{"layers", arrayShape{8, 0, 8, 0x01, 2, arrayLayered}, cuda.Success},
		{"cubes", arrayShape{8, 8, 12, 0x01, 2, arrayLayered | arrayCubemap}, cuda.Success},
		{"nothing", arrayShape{}, cuda.ErrorInvalidValue},
		{"three channels", arrayShape{8, 8, 0, 0x20, 3, 0}, cuda.ErrorInvalidValue},
		{"no such format", arrayShape{8, 8, 0, 0x55, 1, 0}, cuda.ErrorInvalidValue},
		{"blocks", arrayShape{8, 8, 0, 0x91, 4, 0}, cuda.ErrorNotSupported},
		{"depth alone", arrayShape{8, 0, 8, 0x20, 1, 0}, cuda.ErrorInvalidValue},
		{"cube of five", arrayShape{8, 8, 5, 0x20, 1, arrayCubemap}, cuda.ErrorInvalidValue},
		{"too wide", arrayShape{array1DWidth + 1, 0, 0, 0x20, 1, 0}, cuda.ErrorInvalidValue},
		{"too high", arrayShape{8, array2DHeight + 1, 0, 0x20, 1, 0}, cuda.ErrorInvalidValue},
		{"huge", arrayShape{1 << 62, 1 << 62, 1 << 62, 0x20, 4, 0}, cuda.ErrorInvalidValue},
		{"unknown flag", arrayShape{8, 8, 0, 0x20, 1, 0x8000}, cuda.ErrorInvalidValue},
		{"sparse", arrayShape{512, 512, 0, 0x20, 1, arraySparse}, cuda.ErrorNotSupported},
	} {
		if got := c.d.judge(); got != c.want {
			t.Errorf("%s: %v, want %v", c.what, got, c.want)
		}
	}
}
