package soft

import (
	"testing"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/driver"
)

func TestDevices(t *testing.T) {
	list, err := NewMany(3).Devices()
	if err != nil || len(list) != 3 {
		t.Fatalf("%v, %v", list, err)
	}
	again, err := NewMany(3).Devices()
	if err != nil {
		t.Fatal(err)
	}
	for i, d := range list {
		if d != again[i] || d.TotalMem == 0 || d.Index != i {
			t.Errorf("device %d: %+v, then %+v", i, d, again[i])
		}
		for _, o := range list[:i] {
			if o.UUID == d.UUID {
				t.Errorf("two devices are %s", d.UUID)
			}
		}
	}
	for _, o := range [][]int{{3}, {-1}, {0, 7}} {
		if s, err := NewMany(3).Open(nil, driver.Options{Devices: o}); err == nil {
			t.Errorf("devices %v are there", o)
			s.Close()
		}
	}
}

func TestVisibleDevices(t *testing.T) {
	var gpus []*gpu
	for i := range 4 {
		gpus = append(gpus, newGPU(i, driver.Options{}))
	}
	for env, want := range map[string][]int{
		"HOME=/":                                     {0, 1, 2, 3},
		"HOME=/\x00CUDA_VISIBLE_DEVICES=2,0":         {2, 0},
		"CUDA_VISIBLE_DEVICES=":                      {},
		"CUDA_VISIBLE_DEVICES=-1":                    {},
		"CUDA_VISIBLE_DEVICES=1,9,2":                 {1},
		"CUDA_VISIBLE_DEVICES=1,1":                   {},
		"CUDA_VISIBLE_DEVICES=GPU-":                  {},
		"CUDA_VISIBLE_DEVICES= 3 ,x":                 {3},
		"CUDA_VISIBLE_DEVICES=" + gpus[1].uuidText(): {1},
	} {
		got := visible(gpus, []byte(env))
		if len(got) != len(want) {
			t.Errorf("%q: %d devices, want %v", env, len(got), want)
			continue
		}
		for i, g := range got {
			if g.index != want[i] {
				t.Errorf("%q: device %d is %d", env, i, g.index)
			}
		}
	}
}

func TestAttributes(t *testing.T) {
	g := newGPU(0, driver.Options{Cores: 3, MemoryLimit: 5 << 20})
	d := g.info(false)
	var back wire.DeviceInfo
	if b := d.Append(nil); len(b) != wire.DeviceInfoSize || back.Decode(b) != nil || back != *d {
		t.Fatal("device description does not survive the wire")
	}
	for attr, want := range map[int]int32{
		cuda.DeviceAttrMultiprocessorCount:         3,
		cuda.DeviceAttrWarpSize:                    32,
		cuda.DeviceAttrManagedMemory:               0,
		cuda.DeviceAttrCanMapHostMemory:            0,
		cuda.DeviceAttrClusterLaunch:               1,
		cuda.DeviceAttrMaxSharedMemoryPerBlock:     48 << 10,
		cuda.DeviceAttrComputeCapabilityMajor:      9,
		cuda.DeviceAttrMaximumTexture1dWidth:       131072,
		cuda.DeviceAttrStreamPrioritiesSupported:   1,
		cuda.DeviceAttrMaxThreadsPerMultiprocessor: 2048,
	} {
		if d.Attrs[attr] != want || d.AttrValid[attr/8]&(1<<(attr%8)) == 0 {
			t.Errorf("attribute %d is %d, want %d", attr, d.Attrs[attr], want)
		}
	}
	if d.TotalMem != 5<<20 || d.AttrValid[0]&1 != 0 {
		t.Errorf("memory %d, valid %b", d.TotalMem, d.AttrValid[0])
	}
	if g.info(true).Attrs[cuda.DeviceAttrCanMapHostMemory] != 1 {
		t.Error("mapped memory is not offered although the carrier maps")
	}
}

func TestContexts(t *testing.T) {
	r := openRig(t, NewMany(2), driver.Options{})
	p := r.alloc(1000)
	retain := func(ctx wire.ID, dev uint32) cuda.Result {
		return r.s.PrimaryCtxRetain(r.call(wire.OpPrimaryCtxRetain), &wire.PrimaryCtxRetainArgs{Ctx: ctx, Dev: dev}, new(wire.PrimaryCtxRetainReply))
	}
	release := func(ctx wire.ID, dev uint32) cuda.Result {
		return r.s.PrimaryCtxRelease(r.call(wire.OpPrimaryCtxRelease), &wire.PrimaryCtxReleaseArgs{Ctx: ctx, Dev: dev})
	}
	second := r.id()
	r.ok(retain(r.ctx, 0))
	r.ok(retain(second, 1))
	r.want(retain(second, 2), cuda.ErrorInvalidDevice, "device 2")
	r.want(retain(second, 0), cuda.ErrorInvalidHandle, "number of another context")
	first := r.ctx
	r.ctx = second
	q := r.alloc(1000)
	if q-p < arenaStride/2 {
		t.Errorf("devices share addresses: %#x, %#x", p, q)
	}
	r.ok(r.s.Memcpy(r.call(wire.OpMemcpy), &wire.MemcpyArgs{Dst: q, Src: p, Size: 1000, Stream: 1}))
	var can wire.DeviceCanAccessPeerReply
	r.ok(r.s.DeviceCanAccessPeer(r.call(wire.OpDeviceCanAccessPeer), &wire.DeviceCanAccessPeerArgs{Peer: 1}, &can))
	if can.Can != 1 {
		t.Error("peers are not accessible")
	}
	enable := func(peer wire.ID) cuda.Result {
		return r.s.CtxEnablePeerAccess(r.call(wire.OpCtxEnablePeerAccess), &wire.CtxEnablePeerAccessArgs{Peer: peer})
	}
	disable := func() cuda.Result {
		return r.s.CtxDisablePeerAccess(r.call(wire.OpCtxDisablePeerAccess), &wire.CtxDisablePeerAccessArgs{Peer: first})
	}
	r.want(enable(second), cuda.ErrorPeerAccessUnsupported, "peer access to itself")
	r.want(disable(), cuda.ErrorPeerAccessNotEnabled, "disable before")
	r.ok(enable(first))
	r.want(enable(first), cuda.ErrorPeerAccessAlreadyEnabled, "peer access again")
	r.ok(disable())
	r.ctx = first
	r.ok(release(first, 0))
	r.ok(r.put(p, []byte{1}, 1))
	r.ok(release(first, 0))
	r.want(r.put(p, []byte{1}, 1), cuda.ErrorInvalidContext, "context that nobody retains")
	r.want(release(first, 0), cuda.ErrorInvalidContext, "one release too many")
	r.ok(retain(first, 0))
	r.want(r.put(p, []byte{1}, 1), cuda.ErrorInvalidValue, "memory of the context before")
}

func TestLimits(t *testing.T) {
	r := newRig(t, driver.Options{})
	set := func(limit uint32, v uint64) cuda.Result {
		return r.s.CtxSetLimit(r.call(wire.OpCtxSetLimit), &wire.CtxSetLimitArgs{Limit: limit, Value: v})
	}
	get := func(limit uint32) (uint64, cuda.Result) {
		var v wire.CtxGetLimitReply
		res := r.s.CtxGetLimit(r.call(wire.OpCtxGetLimit), &wire.CtxGetLimitArgs{Limit: limit}, &v)
		return v.Value, res
	}
	for _, c := range []struct {
		limit uint32
		value uint64
		want  uint64
		res   cuda.Result
	}{
		{cuda.LimitStackSize, 2001, 2016, cuda.Success},
		{cuda.LimitStackSize, 1 << 30, 2016, cuda.ErrorInvalidValue},
		{cuda.LimitMallocHeapSize, 1 << 30, 1 << 30, cuda.Success},
		{cuda.LimitPersistingL2CacheSize, 1, 0, cuda.ErrorUnsupportedLimit},
		{77, 1, 0, cuda.ErrorInvalidValue},
	} {
		res := set(c.limit, c.value)
		if v, _ := get(c.limit); res != c.res || v != c.want {
			t.Errorf("limit %d: %d, %v", c.limit, v, res)
		}
	}
}
