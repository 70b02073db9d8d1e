package main

import (
	"strings"

	"causeway/cuda/idl"
)

// resultName is the Go name of a result: CUDA_ERROR_OUT_OF_MEMORY is ErrorOutOfMemory.
func resultName(c string) string {
	return enumName(strings.TrimPrefix(c, "CUDA_"))
}

func goResults(w *writer, f *idl.File) {
	w.goFile("cuda")
	w.f("// Results by their public numbers.\nconst (")
	for _, r := range f.Results {
		w.f("%s Result = %d // %s", resultName(r.Name), r.Code, r.Text)
	}
	w.f(")\n")
	w.f("// lookup returns the public name and text of a result.\nfunc (r Result) lookup() (name, text string, ok bool) {\nswitch r {")
	for _, r := range f.Results {
		w.f("case %d: return %q, %q, true", r.Code, r.Name, r.Text)
	}
	w.f("}\nreturn \"\", \"\", false\n}")
}

// enumName turns a C constant's words into Go: MAX_THREADS_PER_BLOCK is MaxThreadsPerBlock.
func enumName(c string) string {
	var b strings.Builder
	for word := range strings.SplitSeq(strings.ToLower(c), "_") {
		if up, ok := enumInitialisms[word]; ok {
			b.WriteString(up)
		} else if word != "" {
			b.WriteString(strings.ToUpper(word[:1]) + word[1:])
		}
	}
	return b.String()
}

var enumInitialisms = map[string]string{
	"ptx": "PTX", "gpu": "GPU", "id": "ID", "pci": "PCI", "ecc": "ECC", "l2": "L2", "l1": "L1", "os": "OS", "jit": "JIT",
	"rpc": "RPC", "mps": "MPS", "ipc": "IPC", "gdr": "GDR", "rdma": "RDMA", "cig": "CIG", "numa": "NUMA", "2d": "2D", "3d": "3D", "1d": "1D",
}

func goEnums(w *writer, f *idl.File) {
	w.goFile("cuda")
	for _, e := range f.Enums {
		if e.Go == "" {
			continue
		}
		w.f("// %s.\nconst (", e.Name)
		for _, v := range e.Values {
			w.f("%s%s = %d", e.Go, enumName(strings.TrimPrefix(v.Name, e.Strip)), v.Value)
		}
		w.f(")\n")
	}
}
