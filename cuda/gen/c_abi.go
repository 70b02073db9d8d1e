package main

import (
	_ "embed"
	"strings"

	"causeway/cuda/idl"
)

//go:embed abi_structs.h
var abiStructs string

// cABI declares the types of the driver API's prototypes, under their public names.
func cABI(w *writer, f *idl.File) {
	w.cFile("CW_GEN_CUDA_ABI_H", "<stddef.h>", "<stdint.h>")
	w.f("/* Types of the driver API by their public names, numbers and layouts. Declarations are our own: the .idl files of cuda/api. */\n")
	w.f("typedef enum cudaError_enum {")
	for _, r := range f.Results {
		w.f("\t%s = %d,", r.Name, r.Code)
	}
	w.f("} CUresult;\n")
	for _, e := range f.Enums {
		w.f("typedef enum %s_enum {", e.Name)
		for _, v := range e.Values {
			w.f("\t%s = %d,", v.Name, v.Value)
		}
		w.f("} %s;\n", e.Name)
	}
	for _, t := range f.Types {
		if before, after, ok := strings.Cut(t.Decl, "(*)"); ok {
			w.f("typedef %s(*%s)%s;", before, t.Name, after)
		} else {
			w.f("typedef %s;", strings.TrimSpace(idl.NormalType(t.Decl)+" ")+space(t.Decl)+t.Name)
		}
	}
	w.f("\n%s\n#endif", abiStructs)
}

// space separates a type from the name behind it; pointers need none.
func space(decl string) string {
	if strings.HasSuffix(decl, "*") {
		return ""
	}
	return " "
}
