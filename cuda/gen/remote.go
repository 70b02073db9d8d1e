package main

import (
	"strings"

	"causeway/cuda/idl"
)

// remoteLayout gives package remote, which imports nothing of ours, the layout of region 0 and of
// messages.
func remoteLayout(w *writer, f *idl.File) {
	w.goFile("remote", "encoding/binary")
	w.f("// Numbers of cuda/api/session.idl, which says what they mean.\nconst (")
	for _, c := range f.Consts {
		if c.File == "session.idl" {
			w.f("%s %s = %s", c.Name, map[string]string{"u16": "uint16", "u32": "uint32", "u64": "uint64"}[c.Type], c.Text)
		}
	}
	w.f(")\n")
	for _, s := range f.Structs {
		if s.File != "session.idl" {
			continue
		}
		goStruct(w, &s)
		if s.Message {
			w.f("// %sSize is the length of an encoded %s.\nconst %sSize = %d\n", s.Name, s.Name, s.Name, s.Size)
			w.f("// Append appends the encoded form to b.")
			w.f("func (v *%s) Append(b []byte) []byte {\nb, _ = binary.Append(b, binary.LittleEndian, v) // fixed size: cannot fail\nreturn b\n}\n", s.Name)
			w.f("// Decode reads the first %sSize bytes of b.", s.Name)
			w.f("func (v *%s) Decode(b []byte) error {\n_, err := binary.Decode(b, binary.LittleEndian, v)\nreturn err\n}\n", s.Name)
		}
		for _, fd := range s.Fields {
			if !s.Message && !strings.HasPrefix(fd.Name, "pad") && s.Name != "Span" {
				w.f("// Offset of %s.%s.\nconst %s%sOffset = %d\n", s.Name, camel(fd.Name), s.Name, camel(fd.Name), fd.Offset)
			}
		}
	}
}
