package main

import (
	"strconv"
	"strings"

	"causeway/cuda/idl"
)

func wireConsts(w *writer, f *idl.File) {
	w.goFile("wire", "encoding/binary")
	w.f("// Numbers of the protocol: cuda/api/session.idl and ops.idl say what they mean.\nconst (")
	for _, c := range f.Consts {
		if c.Name == "OpSkip" {
			continue // typed, in ops_gen.go
		}
		w.f("%s = %s", c.Name, c.Text)
	}
	w.f(")\n")
	for _, s := range f.Structs {
		if !strings.HasPrefix(s.File, "ops") {
			continue
		}
		w.f("// %sSize is the length of an encoded %s.\nconst %sSize = %d\n", s.Name, s.Name, s.Name, s.Size)
		goStruct(w, &s)
		w.f("// Append appends the encoded form to b.")
		w.f("func (v *%s) Append(b []byte) []byte {\nb, _ = binary.Append(b, binary.LittleEndian, v) // fixed size: cannot fail\nreturn b\n}\n", s.Name)
		w.f("// Decode reads the first %sSize bytes of b.", s.Name)
		w.f("func (v *%s) Decode(b []byte) error {\n_, err := binary.Decode(b, binary.LittleEndian, v)\nreturn err\n}\n", s.Name)
	}
}

func goStruct(w *writer, s *idl.Struct) {
	w.f("// %s has the layout of the struct of that name in %s.\ntype %s struct {", s.Name, s.File, s.Name)
	for _, fd := range s.Fields {
		t := goType(fd.Type)
		if fd.Count > 0 {
			t = "[" + strconv.Itoa(fd.Count) + "]" + t
		}
		w.f("%s %s", camel(fd.Name), t)
	}
	w.f("}\n")
}

func wireOps(w *writer, f *idl.File) {
	w.goFile("wire")
	w.f("// Operations. Numbers follow the order of declaration in cuda/api/ops.idl.\nconst (")
	for _, o := range f.Ops {
		w.f("Op%s Op = %d", o.Name, o.Num)
	}
	for _, c := range f.Consts {
		if c.Name == "OpSkip" {
			w.f("// OpSkip pads to the end of the ring; it is no operation.\nOpSkip Op = %s", c.Text)
		}
	}
	w.f(")\n\n// Kinds of objects.\nconst (\nKindNone Kind = iota")
	for _, k := range idl.Kinds {
		w.f("Kind%s", camel(k))
	}
	w.f(")\n\nvar kindNames = [...]string{\"none\",")
	for _, k := range idl.Kinds {
		w.f("%q,", k)
	}
	w.f("}\n")
	fixed := 8
	for _, o := range f.Ops {
		fixed = max(fixed, o.InLen, o.OutLen)
	}
	w.f("// maxFixed is the longest fixed part of any request or reply.\nconst maxFixed = %d\n", fixed)
	w.f("// operations is indexed by Op.\nvar operations = [...]OpInfo{")
	for _, o := range f.Ops {
		w.f("Op%s: {", o.Name)
		w.f("Name: %q, Mode: %s, Fixed: %d, ReplyFixed: %d,", o.Name, camel(string(o.Mode)), o.InLen, o.OutLen)
		wireTraits(w, &o)
		if in, fd := o.Object(); in != idl.ObjectNone {
			w.f("Effect: %s, Kind: Kind%s, In: In%s,", camel(string(o.Effect)), camel(o.Kind), camel(string(in)))
			if fd != nil {
				w.f("Object: Ref{Name: %q, Offset: %d, Kind: Kind%s, New: %t},", fd.Name, fd.Offset, camel(o.Kind), fd.Type == "newid")
			}
		}
		wireRefs(w, &o)
		w.f("},")
	}
	w.f("}")
}

// wireTraits writes what is not as the zero OpInfo has it.
func wireTraits(w *writer, o *idl.Op) {
	is := func(yes bool, format string, args ...any) {
		if yes {
			w.f(format+",", args...)
		}
	}
	is(o.Always, "Always: true")
	is(o.OwnReply(), "OwnReply: true")
	is(o.Place == "gpu", "GPU: true")
	is(o.Order != "", "Order: Order%s", camel(o.Order))
	is(o.Capture != "any", "Capture: Capture%s", camel(o.Capture))
	is(o.Counts != "" && o.Counts != "nothing", "Counts: Counts%s", camel(o.Counts))
	is(o.Awaited != idl.Condition{}, "Awaited: true")
	is(o.Keyed, "Keyed: true")
	if len(o.Keys) > 0 {
		w.f("Keys: []Key{")
		for _, fd := range o.KeyFields() {
			w.f("{Offset: %d, Size: %d},", fd.Offset, fieldSize(fd.Type))
		}
		w.f("},")
	}
}

func wireRefs(w *writer, o *idl.Op) {
	if !o.HasIn("id", "newid", "stream") {
		return
	}
	w.f("Refs: []Ref{")
	for _, fd := range o.In {
		if fd.Kind != "" {
			w.f("{Name: %q, Offset: %d, Kind: Kind%s, New: %t},", fd.Name, fd.Offset, camel(fd.Kind), fd.Type == "newid")
		}
	}
	w.f("},")
}

func wireArgs(w *writer, f *idl.File) {
	w.goFile("wire")
	for _, o := range f.Ops {
		w.f("// %sArgs is the request of Op%s.", o.Name, o.Name)
		wireStruct(w, o.Name+"Args", o.In)
		w.f("// Op implements Args.\nfunc (*%sArgs) Op() Op { return Op%s }\n", o.Name, o.Name)
		wireCodec(w, o.Name+"Args", o.In, o.InLen)
		if o.Awaited != (idl.Condition{}) {
			w.f("// Awaited implements Awaiter.\nfunc (v *%sArgs) Awaited() bool { return %s }\n", o.Name, holds("v", o.Awaited))
		}
		if _, fd := o.Object(); o.Effect == idl.Marks {
			w.f("// Marked implements Marker.\nfunc (v *%sArgs) Marked() ID { return v.%s }\n", o.Name, camel(fd.Name))
		}
		if stream := o.HasIn("stream"); stream && o.Capture != "any" {
			w.f("// OnStream implements Streamed.\nfunc (v *%sArgs) OnStream() Stream { return v.Stream }\n", o.Name)
		}
	}
	w.f("// NewArgs returns an empty request for op, or nil if there is no such operation.\nfunc NewArgs(op Op) Args {\nswitch op {")
	for _, o := range f.Ops {
		w.f("case Op%s: return new(%sArgs)", o.Name, o.Name)
	}
	w.f("}\nreturn nil\n}")
}

func wireReplies(w *writer, f *idl.File) {
	w.goFile("wire")
	for _, o := range f.Ops {
		if len(o.Out) == 0 {
			continue
		}
		w.f("// %sReply is the reply of Op%s.", o.Name, o.Name)
		wireStruct(w, o.Name+"Reply", o.Out)
		w.f("// Op implements Reply.\nfunc (*%sReply) Op() Op { return Op%s }\n", o.Name, o.Name)
		wireCodec(w, o.Name+"Reply", o.Out, o.OutLen)
	}
	w.f("// NewReply returns an empty reply for op, or nil if it has none.\nfunc NewReply(op Op) Reply {\nswitch op {")
	for _, o := range f.Ops {
		if len(o.Out) > 0 {
			w.f("case Op%s: return new(%sReply)", o.Name, o.Name)
		}
	}
	w.f("}\nreturn nil\n}")
}

func wireStruct(w *writer, name string, fields []idl.Field) {
	if len(fields) == 0 {
		w.f("type %s struct{}\n", name)
		return
	}
	w.f("type %s struct {", name)
	for _, fd := range fields {
		note := ""
		switch {
		case fd.Type == "newid":
			note = "// new " + fd.Kind
		case fd.Type == "id":
			note = "// " + fd.Kind
		case fd.Type == "data":
			note = "// shared memory: copy once, before the method returns"
		}
		w.f("%s %s %s", camel(fd.Name), goType(fd.Type), note)
	}
	w.f("}\n")
}

// wireCodec writes the two methods that know the layout of the fixed part.
func wireCodec(w *writer, name string, fields []idl.Field, size int) {
	w.f("func (*%s) fixed() int { return %d }\n", name, size)
	if len(fields) == 0 {
		w.f("func (*%s) decode(*reader) {}\nfunc (*%s) encode(*writer) {}\n", name, name)
		return
	}
	w.f("func (v *%s) decode(r *reader) {", name)
	for _, fd := range fields {
		w.f("v.%s = r.%s(%d)", camel(fd.Name), codec(fd.Type), fd.Offset)
	}
	w.f("}\n\nfunc (v *%s) encode(w *writer) {", name)
	for _, fd := range fields {
		w.f("w.%s(%d, v.%s)", codec(fd.Type), fd.Offset, camel(fd.Name))
	}
	w.f("}\n")
}

// holds is a Condition in Go, of the request v.
func holds(v string, c idl.Condition) string { return v + "." + camel(c.Field) + " == " + c.Value }

// codec is the reader's and writer's method for a type.
func codec(t string) string {
	switch t {
	case "id", "newid", "stream":
		return "u32"
	}
	return t
}
