package worker

import (
	"bytes"
	"os"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/driver"
)

// variablesEnv, if it is "own", has all sessions keep the addresses of their variables by themselves, and "driver" none: to compare.
const variablesEnv = "CAUSEWAY_VARIABLES"

// reserve has the driver keep the addresses of variables, for sessions of which it is known that it would not find them again by doing the same: those with
// memory of pools, or with code in several contexts.
func (w *Worker) reserve(s *snapshot, images wire.BlobSource) {
	r, ok := w.session.(driver.Reserver)
	if !ok {
		return
	}
	l := &loads{}
	var d wire.Dispatcher
	var addrs []uint64
	contexts, pools := map[wire.ID]bool{}, false
	for i := range s.Requests {
		q := &s.Requests[i]
		hdr, op, err := wire.ParseHeader(q.Record)
		if err != nil {
			continue // its replay says so
		}
		switch op {
		case wire.OpModuleLoad, wire.OpLibraryLoad:
			_, _, _ = d.Dispatch(l, &wire.Call{Op: op, Ctx: hdr.Ctx}, q.Record, images) // likewise
			fallthrough
		case wire.OpLibraryManage, wire.OpModuleManage, wire.OpLibraryGetModule, wire.OpKernelGetFunction, wire.OpKernelFunction:
			if len(q.Placed) > 0 {
				addrs, contexts[hdr.Ctx] = append(addrs, q.Placed...), true
			}
		case wire.OpGreenCtxCreate:
			return // code of an edition is for one context
		case wire.OpPoolGetDefault, wire.OpPoolCreate, wire.OpPoolSetAttribute:
			pools = true
		}
	}
	if how := os.Getenv(variablesEnv); how == "own" || how != "driver" && (pools || len(contexts) > 1) {
		r.Reserve(addrs, l.images)
	}
}

// keptImage is an image that outlives its request: a long one came by itself, and stays.
func keptImage(b []byte) []byte {
	if len(b) <= wire.MaxRecord {
		return bytes.Clone(b)
	}
	return b
}

// loads are the images of requests that load code.
type loads struct {
	wire.Unsupported
	images [][]byte
}

func (l *loads) ModuleLoad(_ *wire.Call, a *wire.ModuleLoadArgs, _ *wire.ModuleLoadReply) cuda.Result {
	l.images = append(l.images, keptImage(a.Image))
	return cuda.Success
}

func (l *loads) LibraryLoad(_ *wire.Call, a *wire.LibraryLoadArgs, _ *wire.LibraryLoadReply) cuda.Result {
	l.images = append(l.images, keptImage(a.Image))
	return cuda.Success
}
