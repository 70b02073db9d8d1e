package idl

import (
	"errors"
	"slices"
)

// maxFields bounds an operation, so that its fixed part fits a record easily.
const maxFields = 64

func (f *File) addOp(l line) (func(line) error, error) {
	if len(l.words) < 3 || !identifier(l.words[1]) {
		return nil, l.Errorf("want op NAME sync|async|wait ...")
	}
	o := Op{Pos: l.Pos, Name: l.words[1], Mode: Mode(l.words[2])}
	if o.Mode != Sync && o.Mode != Async && o.Mode != Wait {
		return nil, l.Errorf("op %s: mode %s is none of sync, async, wait", o.Name, o.Mode)
	}
	for w := (words{line: l, op: &o, rest: l.words[3:]}); len(w.rest) > 0; {
		if err := w.attribute(); err != nil {
			return nil, err
		}
	}
	f.Ops = append(f.Ops, o)
	p := &f.Ops[len(f.Ops)-1]
	return p.addField, nil
}

func (o *Op) addField(l line) error {
	w := l.words
	if len(w) < 3 || len(w) > 4 || w[0] != "in" && w[0] != "out" || !identifier(w[1]) {
		return l.Errorf("want in|out FIELD TYPE [KIND]")
	}
	fd := Field{Pos: l.Pos, Name: w[1], Type: w[2]}
	if sizes[fd.Type] == 0 || fd.Type == "u8" || fd.Type == "u16" || fd.Type == "char" {
		return l.Errorf("type %s is not allowed in an op", fd.Type)
	}
	object := fd.Type == "id" || fd.Type == "newid" || fd.Type == "stream"
	switch {
	case len(w) == 4:
		fd.Kind = w[3]
	case fd.Type == "stream":
		fd.Kind = "stream"
	case object:
		fd.Kind = fd.Name
	}
	if object != slices.Contains(Kinds, fd.Kind) {
		return l.Errorf("%s %s: %q is not a kind of object", o.Name, fd.Name, fd.Kind)
	}
	list := &o.In
	if w[0] == "out" {
		list = &o.Out
		if object || fd.Type == "data" {
			return l.Errorf("%s: type %s cannot come back", o.Name, fd.Type)
		}
	}
	if len(*list) == maxFields {
		return l.Errorf("%s: more than %d fields", o.Name, maxFields)
	}
	for _, g := range append(slices.Clone(o.In), o.Out...) {
		if g.Name == fd.Name {
			return l.Errorf("%s: field %s was declared at %s", o.Name, fd.Name, g.Pos)
		}
	}
	*list = append(*list, fd)
	return nil
}

// check lays the fixed parts out and verifies what the recorder and the encoders rely on.
func (o *Op) check(consts []Const) error {
	var errs []error
	o.InLen, o.OutLen = layout(o.In), layout(o.Out)
	if o.Mode == Async && len(o.Out) > 0 {
		errs = append(errs, o.Errorf("op %s: an async op has no reply", o.Name))
	}
	spans := 0
	for _, f := range o.Out {
		if f.Span() {
			spans++
		}
	}
	if spans > 1 {
		errs = append(errs, o.Errorf("op %s: more than one bytes in the reply", o.Name))
	}
	if o.Effect.Begins() && !namedOtherwise(o.Kind) && !o.HasIn("newid") {
		errs = append(errs, o.Errorf("op %s: %s %s without a newid", o.Name, o.Effect, o.Kind))
	}
	return errors.Join(append(errs, o.checkTraits(consts))...)
}

// layout gives each field its offset and returns the size, rounded up to 8.
func layout(fields []Field) int {
	n := 0
	for i := range fields {
		a := alignOf(fields[i].Type)
		n = (n + a - 1) / a * a
		fields[i].Offset = n
		n += sizes[fields[i].Type]
	}
	return (n + 7) / 8 * 8
}

// ObjectIn is where a record's effect finds its object.
type ObjectIn string

// Places.
const (
	ObjectNone    ObjectIn = ""
	ObjectRequest ObjectIn = "request" // field Object of the request
	ObjectReply   ObjectIn = "reply"   // field Object of the reply
	ObjectContext ObjectIn = "context" // the calling thread's current context
	ObjectSession ObjectIn = "session" // there is one
)

// namedOtherwise reports whether objects of a kind have no ids: memory has addresses, regions have
// numbers of their own, there is one session, and of access to another context and of a library's
// code there is one for each.
func namedOtherwise(kind string) bool {
	return kind == "mem" || kind == "region" || kind == "session" || kind == "peer" || kind == "instance"
}

// Object finds the field that names the object of the effect: the first newid or id; for mem the
// address ptr.
func (o *Op) Object() (ObjectIn, *Field) {
	if !o.Effect.Recorded() {
		return ObjectNone, nil
	}
	name := map[string]string{"mem": "ptr", "region": "region", "peer": "peer", "instance": "library"}[o.Kind]
	for i := range o.In {
		f := &o.In[i]
		if name != "" && f.Name == name || !namedOtherwise(o.Kind) && (f.Type == "newid" || f.Type == "id") {
			return ObjectRequest, f
		}
	}
	for i := range o.Out {
		if o.Kind == "mem" && o.Out[i].Name == name {
			return ObjectReply, &o.Out[i]
		}
	}
	if o.Kind == "session" {
		return ObjectSession, nil
	}
	return ObjectContext, nil
}
