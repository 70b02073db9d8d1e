package main

import "strconv"

// exportTable is one of cuGetExportTable's, by the first four bytes of its id; words are driver
// 580's, 0 if they are not known.
type exportTable struct {
	id, asks, does string
	words          int
	served         bool
}

// exportTables are all that a library was seen to ask for. Those served are in
// guest/libcuda/api/exporttables.c.
var exportTables = []exportTable{
	{"6bd5fb6c", "libcudart", "the runtime's own interface", 13, true},
	{"a094798c", "libcudart", "flags of callbacks for tools: none is ever set", 7, true},
	{"42d85a81", "libcudart, cuBLASLt", "a tool's value for each thread: there is no tool", 3, true},
	{"c693336e", "libcudart", "storage that belongs to a context", 0, true},
	{"263e8860", "libcudart", "questions about contexts", 15, true},
	{"d4082055", "libcudart", "the integrity question", 3, true},
	{"21318c60", "cuBLASLt, cuFFT, cuSPARSE", "contexts and streams as these libraries see them", 93, true},
	{"1734dc26", "cuBLASLt", "where multiprocessors lie", 17, true},
	{"6e163fbe", "cuFFT", "the functions of a module", 99, true},
	{"da9151d3", "NVRTC, nvJitLink", "the cache of compiled code", 7, true},
	{"f8cff951", "libcudart 13", "asked for at the start; no function of it was seen to be called", 3, false},
	{"2c8e0ad8", "CUPTI", "profiling, which a vGPU does not offer; thirty-odd more follow once it is there", 12, false},
	{"7cb63f9b", "CUPTI", "likewise", 67, false},
	{"d7bd8af8", "CUPTI", "likewise", 10, false},
	{"9af0707b", "libnvcuvid", "the video decoder, which nvJPEG loads where it is installed; a guest has none", 28, false},
	{"b10541e1", "libnvcuvid, CUPTI", "likewise", 31, false},
	{"69a28e9f", "the driver's libnvidia-ml", "Causeway's own asks for none", 34, false},
}

// coverageTables is the section about them.
func coverageTables(w *writer) {
	w.f("## Export tables\n")
	w.f("Tables of functions beside the public interface, which NVIDIA's own libraries ask `cuGetExportTable` for. Every function of a table that is")
	w.f("served can be called; what no library was seen to call answers `CUDA_ERROR_NOT_SUPPORTED`. A table that is refused is named")
	w.f("with `CAUSEWAY_LOG=info`; the libraries below do without.\n")
	w.f("| id | words | who asks | what it is | |\n|---|---|---|---|---|")
	for _, t := range exportTables {
		words, served := "", "refused"
		if t.words > 0 {
			words = strconv.Itoa(t.words)
		}
		if t.served {
			served = "served"
		}
		w.f("| `%s` | %s | %s | %s | %s |", t.id, words, t.asks, t.does, served)
	}
}
