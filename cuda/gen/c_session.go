package main

import (
	"fmt"

	"causeway/cuda/idl"
)

// cSession is everything that the session layer needs without the encoders: constants, layouts,
// operation numbers.
func cSession(w *writer, f *idl.File) {
	w.cFile("CW_GEN_SESSION_H", "<stddef.h>", "<stdint.h>")
	w.f("/* Numbers of cuda/api/session.idl and ops.idl, which say what they mean. */")
	for _, c := range f.Consts {
		suffix := map[string]string{"u16": "u", "u32": "u", "u64": "ull"}[c.Type]
		w.f("#define %s %s%s", macro(c.Name), c.Text, suffix)
	}
	w.f("\n/* Layouts. */")
	for _, s := range f.Structs {
		cStruct(w, &s)
	}
	w.f("/* Operations. */\nenum cw_op {")
	for _, o := range f.Ops {
		w.f("\t%s = %d,", opMacro(o.Name), o.Num)
	}
	w.f("};\n\n#endif")
}

func opMacro(name string) string { return "CW_OP" + macro(name)[2:] }

func cStruct(w *writer, s *idl.Struct) {
	name := "struct cw_" + snake(s.Name)
	w.f("%s {", name)
	for _, fd := range s.Fields {
		count := ""
		if fd.Count > 0 {
			count = fmt.Sprintf("[%d]", fd.Count)
		}
		w.f("\t%s %s%s;", cType(fd.Type), fd.Name, count)
	}
	w.f("};")
	for _, fd := range s.Fields {
		w.f("_Static_assert(offsetof(%s, %s) == %d, \"%s.%s\");", name, fd.Name, fd.Offset, s.Name, fd.Name)
	}
	w.f("_Static_assert(sizeof(%s) == %d, \"%s\");\n", name, s.Size, s.Name)
}
