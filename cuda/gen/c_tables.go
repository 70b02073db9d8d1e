package main

import (
	"cmp"
	"slices"

	"causeway/cuda/idl"
)

// cProcs is the table behind cuGetProcAddress.
func cProcs(w *writer, f *idl.File) {
	w.cFile("", "gen/entries.h", "gen/exports.h")
	var list []idl.Entry
	for _, e := range f.Entries {
		if e.Since > 0 {
			list = append(list, e)
		}
	}
	slices.SortFunc(list, func(a, b idl.Entry) int {
		return cmp.Or(cmp.Compare(a.Base, b.Base), cmp.Compare(a.Since, b.Since))
	})
	w.f("const struct cw_proc cw_procs[] = {")
	for _, e := range list {
		thread := "NULL"
		if s := e.Symbols(); len(s) > 1 {
			thread = "(void *)" + s[1]
		}
		w.f("\t{%q, %d, (void *)%s, %s},", e.Base, e.Since, e.Symbol, thread)
	}
	w.f("};\nconst unsigned cw_proc_count = sizeof cw_procs / sizeof cw_procs[0];")
}

// cErrors is the table behind cuGetErrorName and cuGetErrorString.
func cErrors(w *writer, f *idl.File) {
	w.cFile("", "gen/entries.h")
	for _, part := range []struct {
		name string
		of   func(idl.Result) string
	}{
		{"name", func(r idl.Result) string { return r.Name }},
		{"text", func(r idl.Result) string { return r.Text }},
	} {
		w.f("const char *cw_result_%s(int code)\n{\n\tswitch (code) {", part.name)
		for _, r := range f.Results {
			w.f("\tcase %d:\n\t\treturn %q;", r.Code, part.of(r))
		}
		w.f("\t}\n\treturn NULL;\n}\n")
	}
}
