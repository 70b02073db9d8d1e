package worker

import (
	"fmt"
	"slices"

	"causeway/cuda/fatbin"
	"causeway/cuda/wire"
)

// portable says what of the recorded code no driver could compile for another model of GPU. It runs
// on the consumer.
func (r *recorder) portable() error {
	for _, e := range r.entries() {
		hdr, op, err := wire.ParseHeader(e.rec)
		if err != nil {
			return err
		}
		var image []byte
		switch op {
		case wire.OpModuleLoad, wire.OpLibraryLoad, wire.OpLinkAdd:
		default:
			continue
		}
		a, err := wire.Decode(op, e.rec, &r.blobs)
		if err != nil {
			return err
		}
		switch a := a.(type) {
		case *wire.ModuleLoadArgs:
			image = a.Image
		case *wire.LibraryLoadArgs:
			image = a.Image
		case *wire.LinkAddArgs:
			image = a.Input
		}
		if why := bound(image); why != "" {
			return fmt.Errorf("%s, %d bytes of code in context %d: %s, and another model of GPU needs PTX", op, len(image), hdr.Ctx, why)
		}
	}
	return nil
}

// bound says what ties code to a model of GPU; empty: nothing, there is PTX of it.
func bound(image []byte) string {
	switch f := fatbin.Detect(image); f {
	case fatbin.PTX:
		return ""
	case fatbin.Container:
		list, err := fatbin.Decode(image)
		if err != nil {
			return err.Error()
		}
		if slices.ContainsFunc(list, func(e fatbin.Entry) bool { return e.Kind == fatbin.KindPTX }) {
			return ""
		}
		return "it is machine code alone"
	case fatbin.ELF:
		return "it is machine code"
	default:
		return fmt.Sprintf("it is of a kind (%v) that is not known to hold PTX", f)
	}
}
