package exec

import (
	"strings"
)

// builtinFor returns the implementation of a function that the device runtime
// provides, or nil. Builtins run for the active lanes at a call.
func builtinFor(name string) func(w *warp, s *callSite) {
	switch name {
	case "vprintf":
		return builtinVprintf
	case "__assertfail":
		return builtinAssert
	case "malloc":
		return builtinMalloc
	case "free":
		return builtinFree
	case "__cudaCDP2GetParameterBufferV2", "cudaGetParameterBufferV2":
		return builtinParameterBuffer
	case "__cudaCDP2LaunchDeviceV2", "__cudaCDP2LaunchDeviceV2_ptsz", "cudaLaunchDeviceV2", "cudaLaunchDeviceV2_ptsz":
		return builtinLaunchDevice
	case "__cudaCDP2GetLastError", "cudaGetLastError":
		return builtinDeviceError(false)
	case "__cudaCDP2PeekAtLastError", "cudaPeekAtLastError":
		return builtinDeviceError(true)
	case "__cudaCDP2StreamCreateWithFlags", "cudaStreamCreateWithFlags":
		return builtinStreamCreate
	case "__cudaCDP2StreamDestroy", "cudaStreamDestroy":
		return builtinSucceed
	case "cudaGraphSetConditional":
		return builtinSetConditional
	}
	return nil
}

// builtinSetConditional is void cudaGraphSetConditional(handle, value).
func builtinSetConditional(w *warp, s *callSite) {
	set := w.blk.launch.config.SetConditional
	for _, l := range w.act {
		if lane := int(l & 31); set != nil {
			set(w.arg(s, 0, lane), uint32(w.arg(s, 1, lane)))
		}
	}
}

// builtinMalloc is void *malloc(size_t).
func builtinMalloc(w *warp, s *callSite) {
	h := w.blk.launch.config.Heap
	for _, l := range w.act {
		lane, addr := int(l&31), uint64(0)
		if h != nil {
			addr = h.Malloc(w.arg(s, 0, lane))
		}
		w.result(s, lane, addr)
	}
}

// builtinFree is void free(void *). Freeing what malloc did not give ends the
// kernel, as it does on a GPU.
func builtinFree(w *warp, s *callSite) {
	h := w.blk.launch.config.Heap
	for _, l := range w.act {
		addr := w.arg(s, 0, int(l&31))
		if addr != 0 && (h == nil || !h.Free(addr)) {
			w.faultLine(s.line, Trap, "free of something that malloc did not give")
		}
	}
}

// Bounds of what a kernel may make the host format.
const (
	maxFormat   = 16 << 10
	maxArgument = 1 << 10
)

// arg reads argument i of a lane.
func (w *warp) arg(s *callSite, i, lane int) uint64 {
	if i >= len(s.args) {
		return 0
	}
	a := &s.args[i]
	if a.reg >= 0 {
		return w.r[a.reg][lane]
	}
	at := uint64(lane)*w.localCap + w.fr.base + a.off
	return getBytes(w.local[at : at+min(a.size, 8)])
}

// result writes the return value of a lane.
func (w *warp) result(s *callSite, lane int, v uint64) {
	if len(s.rets) == 0 {
		return
	}
	a := &s.rets[0]
	if a.reg >= 0 {
		w.r[a.reg][lane] = v
		return
	}
	at := uint64(lane)*w.localCap + w.fr.base + a.off
	putBytes(w.local[at:at+a.size], v)
}

// builtinVprintf is int vprintf(const char *format, void *args). It returns
// the number of arguments, as CUDA does.
func builtinVprintf(w *warp, s *callSite) {
	for _, l := range w.act {
		lane := int(l & 31)
		format, ok := w.readString(lane, w.arg(s, 0, lane), maxFormat)
		if !ok {
			w.faultLine(s.line, IllegalAddress, "format of printf")
		}
		n, size := printfArgs(format)
		var args []byte
		if size > 0 {
			if args, ok = w.readMemory(lane, w.arg(s, 1, lane), size); !ok {
				w.faultLine(s.line, IllegalAddress, "arguments of printf")
			}
		}
		if out := w.blk.launch.config.Printf; out != nil {
			out(FormatPrintf(format, args, func(addr uint64) (string, bool) { return w.readString(lane, addr, maxArgument) }))
		}
		w.result(s, lane, uint64(n))
	}
}

// builtinAssert is __assertfail(message, file, line, function, charsize). The
// text is what cuda-gdb and the runtime print.
func builtinAssert(w *warp, s *callSite) {
	lane := firstLane(w.mask)
	text := func(i int) string {
		v, ok := w.readString(lane, w.arg(s, i, lane), maxArgument)
		if !ok {
			return "?"
		}
		return strings.ToValidUTF8(v, "?")
	}
	line := uint32(w.arg(s, 2, lane))
	f := w.newFault(Assert, lane)
	f.Line = int(s.line)
	f.Msg = text(1) + ":" + itoa(line) + ": " + text(3) + ": block: " + triple(f.Block) + ", thread: " + triple(f.Thread) + " Assertion `" + text(0) + "` failed."
	panic(f)
}
