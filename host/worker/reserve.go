package worker

import (
	"bytes"
	"os"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/driver"
)

// variablesEnv, if it is "own", has sessions keep the addresses of their variables by themselves. It is off: real drivers took code that was so changed, and a whole
// move by it was not seen yet.
const variablesEnv = "CAUSEWAY_VARIABLES"

// reserve has the driver keep the addresses of variables, if that is asked for.
func (w *Worker) reserve(s *snapshot, images wire.BlobSource) {
	r, ok := w.session.(driver.Reserver)
	if !ok || os.Getenv(variablesEnv) != "own" {
		return
	}
	l := &loads{}
	var d wire.Dispatcher
	var addrs []uint64
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
		case wire.OpLibraryManage, wire.OpModuleManage, wire.OpLibraryInstance, wire.OpLibraryGetModule, wire.OpKernelGetFunction, wire.OpKernelFunction:
			addrs = append(addrs, q.Placed...)
		case wire.OpGreenCtxCreate:
			return // code of an edition is for one context
		}
	}
	r.Reserve(addrs, l.images)
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
