package exec

import (
	"context"
	"slices"
	"sync"
)

// Kernels that launch kernels (CUDA's device runtime, as nvcc of CUDA 12 and
// newer calls it). Children run when their parent's grid has ended, in the
// order of launches, those of the tail stream last; nothing in the programming
// model lets a parent wait for one.

// Windows of parameter buffers: one slot for each launch.
const (
	childWindow = 0xffff_0006_0000_0000
	childStride = 32 << 10 // at least what parameters can take
	maxChildren = 1 << 14  // of one grid
	maxDepth    = 24       // of launches by kernels
)

// Streams that the device runtime names.
const (
	streamTail      = 3
	streamOfDevice  = 0x100 // what device code gets for a stream of its own
	errInvalidValue = 1     // cudaError_t
	errNoFunction   = 98
	errTooDeep      = 65
	errTooMany      = 69
)

// children are the launches that a grid's blocks have asked for.
type children struct {
	mu   sync.Mutex // a leaf lock
	list []*child
}

type child struct {
	kernel   *Kernel
	config   Config
	launched bool
	tail     bool
}

// add reserves a parameter buffer, or gives 0.
func (c *children) add(k *child) uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.list) == maxChildren {
		return 0
	}
	c.list = append(c.list, k)
	return childWindow + uint64(len(c.list)-1)*childStride
}

// at finds the launch whose buffer addr lies in.
func (c *children) at(addr uint64) *child {
	c.mu.Lock()
	defer c.mu.Unlock()
	if i := (addr - childWindow) / childStride; i < uint64(len(c.list)) {
		return c.list[i]
	}
	return nil
}

// run launches what was asked for.
func (c *children) run(ctx context.Context, parent *Config) error {
	for _, tail := range [...]bool{false, true} {
		for _, k := range c.list {
			if !k.launched || k.tail != tail {
				continue
			}
			stats := Stats{}
			if k.config.Stats = nil; parent.Stats != nil {
				k.config.Stats = &stats
			}
			err := k.kernel.Launch(ctx, k.config)
			if parent.Stats != nil {
				parent.Stats.WarpInstructions += stats.WarpInstructions
				parent.Stats.LaneInstructions += stats.LaneInstructions
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// kernelOf is the kernel whose code is c.
func (m *Module) kernelOf(c *code) *Kernel {
	i := slices.IndexFunc(m.kernels, func(k *Kernel) bool { return k.code == c })
	if i < 0 {
		return nil
	}
	return m.kernels[i]
}

// triple reads a dim3 argument.
func (w *warp) triple(s *callSite, i, lane int) (v [3]uint32) {
	if i < len(s.args) && s.args[i].reg < 0 && s.args[i].size >= 12 {
		at := uint64(lane)*w.localCap + w.fr.base + s.args[i].off
		for j := range v {
			v[j] = uint32(getBytes(w.local[at+4*uint64(j):][:4]))
		}
	}
	return v
}

// builtinParameterBuffer is void *cudaGetParameterBufferV2(func, grid, block,
// shared memory).
func builtinParameterBuffer(w *warp, s *callSite) {
	l := w.blk.launch
	for _, at := range w.act {
		lane, addr := int(at&31), uint64(0)
		m := l.kernel.module
		var k *Kernel
		if c := m.codeAt(w.arg(s, 0, lane)); c != nil {
			k = m.kernelOf(c)
		}
		switch {
		case k == nil || k.bytes > childStride:
			w.deviceError[lane] = errNoFunction
		case l.config.depth == maxDepth:
			w.deviceError[lane] = errTooDeep
		default:
			c := &child{kernel: k, config: *l.config}
			c.config.Grid, c.config.Block, c.config.DynShared = w.triple(s, 1, lane), w.triple(s, 2, lane), uint32(w.arg(s, 3, lane))
			c.config.Cluster, c.config.Cooperative, c.config.depth = [3]uint32{}, false, l.config.depth+1
			c.config.Params = make([]byte, max(k.bytes, 8))
			w.charge(uint64(len(c.config.Params)) + 256)
			if addr = l.children.add(c); addr == 0 {
				w.deviceError[lane] = errTooMany
			}
		}
		w.result(s, lane, addr)
	}
}

// builtinLaunchDevice is cudaError_t cudaLaunchDeviceV2(buffer, stream).
func builtinLaunchDevice(w *warp, s *callSite) {
	l := w.blk.launch
	for _, at := range w.act {
		lane, res := int(at&31), uint32(0)
		k := l.children.at(w.arg(s, 0, lane))
		switch {
		case k == nil || k.launched:
			res = errInvalidValue
		default:
			if _, err := k.kernel.prepare(&k.config); err != nil {
				res = errInvalidValue
				if k.kernel.err != nil {
					panic(k.kernel.err)
				}
				break
			}
			k.launched, k.tail = true, w.arg(s, 1, lane) == streamTail
		}
		if res != 0 {
			w.deviceError[lane] = res
		}
		w.result(s, lane, uint64(res))
	}
}

// builtinDeviceError is cudaError_t cudaGetLastError() and cudaPeekAtLastError().
func builtinDeviceError(keep bool) func(w *warp, s *callSite) {
	return func(w *warp, s *callSite) {
		for _, at := range w.act {
			lane := int(at & 31)
			w.result(s, lane, uint64(w.deviceError[lane]))
			if !keep {
				w.deviceError[lane] = 0
			}
		}
	}
}

// builtinStreamCreate is cudaError_t cudaStreamCreateWithFlags(stream, flags):
// children run one after another, so that all streams are as good as one.
func builtinStreamCreate(w *warp, s *callSite) {
	for _, at := range w.act {
		lane := int(at & 31)
		w.storeWord(lane, s, w.arg(s, 0, lane), streamOfDevice)
		w.result(s, lane, 0)
	}
}

func builtinSucceed(w *warp, s *callSite) {
	for _, at := range w.act {
		w.result(s, int(at&31), 0)
	}
}
