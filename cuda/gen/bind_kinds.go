package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"causeway/cuda/idl"
)

// method is the Go method of one entry while it is put together.
type method struct {
	b      *binder
	e      *idl.Bind
	in     []string          // Go parameters
	before []string          // statements before the call
	checks []string          // what must hold
	args   map[string]string // expression for each C parameter
	refs   []ref             // Go memory whose address is an argument
	outs   []out             // words that the driver writes
	floats bool
}

type ref struct{ param, expr string }

type out struct {
	param, init, result string
	decode              string // %s is the word
}

func (m *method) refuse(why string) { panic(fmt.Sprintf("%s: %s: %s", m.e.Pos, m.e.Symbol, why)) }

// kind is what an idl kind does for a parameter p, called name in Go. Words are other parameters or
// numbers:
//
//	mem N [UNIT]     Mem: N is its size, in units of so many bytes
//	host N           Host: N is its size
//	rect P W H UNIT  Rect: pitch, width in units, height
//	word32, word64   Mem of at least so much
//	newmem N         result Mem, of N bytes
//	list N           slice; N is its length, the same for all lists with that N
//	maybe N          as list, nil allowed
//	array N          slice of N elements: a parameter, or a number
//	room N           slice to be filled; *N is its length before and how many there are afterwards, a result
//	copied N         result: a copy of the N elements that the driver's pointer shows
//	out              result: a word
//	word             a word whose address is passed
//	exchange         a word whose address is passed, and the result
//	image            Image
//	input N          Input: N is its size
//	options N V      *Options: how many, and their values
//	block            HostAddress of C memory
//	device           Address passed as void *
//	hint             an address asked for
//	file             a descriptor passed as void *
//	callback, id     a C function of ours; a number that it gets back
func (m *method) kind(p idl.Param, k idl.BindKind) {
	name := goParam(p.Name)
	word := func(i int) string {
		if i >= len(k.Words) {
			m.refuse(k.Param + ": " + k.Kind + " wants more words")
		}
		return k.Words[i]
	}
	take := func(t string) { m.in = append(m.in, name+" "+t) }
	switch k.Kind {
	case "mem", "host":
		take(map[string]string{"mem": "Mem", "host": "Host"}[k.Kind])
		m.args[p.Name] = name + ".at"
		size := name + ".size"
		if len(k.Words) > 1 && word(1) != "1" {
			m.checks = append(m.checks, size+"%"+word(1)+" == 0")
			size += "/" + word(1)
		}
		m.same(word(0), size)
	case "rect":
		take("Rect")
		m.args[p.Name], m.args[word(0)], m.args[word(2)] = name+".mem.at", name+".pitch", name+".height"
		m.args[word(1)] = name + ".width/" + word(3)
		if word(3) != "1" {
			m.checks = append(m.checks, name+".width%"+word(3)+" == 0")
		}
	case "word32", "word64":
		take("Mem")
		bits, _ := strconv.Atoi(k.Kind[4:])
		m.checks = append(m.checks, fmt.Sprintf("%s.size >= %d", name, bits/8))
		m.args[p.Name] = name + ".at"
	case "newmem":
		m.outs = append(m.outs, out{p.Name, "", "Mem", "Mem{at: %s, size: " + goParam(word(0)) + "}"})
	case "list", "maybe":
		take("[]" + m.element(p))
		m.refs = append(m.refs, ref{p.Name, "first(" + name + ")"})
		length := "uint64(len(" + name + "))"
		if k.Kind == "maybe" {
			m.checks = append(m.checks, "("+name+" == nil || "+length+" == "+m.args[word(0)]+")")
		} else {
			m.same(word(0), length)
		}
	case "array":
		take("[]" + m.element(p))
		m.refs = append(m.refs, ref{p.Name, "first(" + name + ")"})
		if _, err := strconv.Atoi(word(0)); err == nil {
			m.checks = append(m.checks, "len("+name+") >= "+word(0))
		} else {
			m.args[word(0)] = "uint64(len(" + name + "))"
		}
	case "room":
		take("[]" + m.element(p))
		m.refs = append(m.refs, ref{p.Name, "first(" + name + ")"})
		length := "uint64(len(" + name + "))"
		i := slices.IndexFunc(m.outs, func(o out) bool { return o.param == word(0) })
		if i < 0 {
			m.outs = append(m.outs, out{word(0), length, "uint64", "%s"})
		} else {
			m.checks = append(m.checks, "("+name+" == nil || "+length+" == "+m.outs[i].init+")")
		}
	case "copied":
		t := m.element(idl.Param{Type: strings.Replace(p.Type, "**", "*", 1)})
		m.outs = append(m.outs, out{p.Name, "", "[]" + t, "copied[" + t + "](%s, {" + word(0) + "})"})
	case "out":
		m.outs = append(m.outs, out{p.Name, "", "uint64", "%s"})
	case "word", "exchange":
		t := "uint64"
		if p.Type != "void *" {
			t = m.element(p)
		}
		take(t)
		o := out{param: p.Name, init: "uint64(" + name + ")"}
		if k.Kind == "exchange" {
			o.result, o.decode = t, t+"(%s)"
		}
		m.outs = append(m.outs, o)
	case "image":
		take("Image")
		m.args[p.Name] = name + ".at"
	case "input":
		take("Input")
		m.args[p.Name], m.args[word(0)] = name+".at", name+".size"
	case "options":
		take("*Options")
		m.args[word(0)], m.args[p.Name], m.args[word(1)] = name+".count()", name+".keyList()", name+".valueList()"
	case "block":
		take("HostAddress")
		m.args[p.Name] = name + ".v"
	case "device":
		take("Address")
		m.args[p.Name] = name + ".v"
	case "hint":
		take("Hint")
		m.args[p.Name] = "uint64(" + name + ")"
	case "id":
		take("uint64")
		m.args[p.Name] = name
	case "file":
		take("int")
		m.args[p.Name] = "uint64(" + name + ")"
	case "callback":
		take("Callback")
		m.args[p.Name] = name + ".v"
	default:
		m.refuse("kind " + k.Kind)
	}
}

// same makes a C parameter the size of what several Go parameters hold, which must agree.
func (m *method) same(param, expr string) {
	if other, ok := m.args[param]; ok {
		m.checks = append(m.checks, expr+" == "+other)
		return
	}
	m.args[param] = expr
}

// element is the Go type behind a pointer.
func (m *method) element(p idl.Param) string {
	c := strings.TrimSuffix(strings.TrimPrefix(p.Type, "const "), " *")
	k, ok := m.b.types[c]
	if !ok {
		m.refuse("type " + p.Type)
	}
	return k.name
}

// plain is a parameter of which the description says nothing.
func (m *method) plain(p idl.Param) {
	name := goParam(p.Name)
	k, known := m.b.types[p.Type]
	c, pointer := strings.CutSuffix(p.Type, " *")
	constant := strings.HasPrefix(c, "const ")
	to, points := m.b.types[strings.TrimPrefix(c, "const ")]
	switch {
	case known && k.is == isStruct && k.size > 16: // by value, where the ABI puts it: on the stack
		m.in = append(m.in, name+" "+k.name)
		m.args[p.Name] = "struct " + name
	case known && k.is == isHandle:
		m.in = append(m.in, name+" "+k.name)
		m.args[p.Name] = name + ".v"
	case known && k.is == isFloat:
		m.in = append(m.in, name+" float32")
		m.args[p.Name], m.floats = name, true
	case known && k.name == "int32":
		m.in = append(m.in, name+" int32")
		m.args[p.Name] = "uint64(uint32(" + name + "))"
	case known && k.is == isNumber:
		m.in = append(m.in, name+" "+k.name)
		m.args[p.Name] = "uint64(" + name + ")"
	case p.Type == "const char *":
		m.in = append(m.in, name+" []byte")
		m.before = append(m.before, name+" = append("+name+"[:len("+name+"):len("+name+")], 0)")
		m.refs = append(m.refs, ref{p.Name, "unsafe.Pointer(&" + name + "[0])"})
	case p.Type == "const char **":
		m.outs = append(m.outs, out{p.Name, "", "string", "textAt(%s)"})
	case p.Type == "void **" || pointer && c == "void *":
		m.outs = append(m.outs, out{p.Name, "", "HostAddress", "HostAddress{v: %s}"})
	case c == "void" || c == "const void":
		m.in = append(m.in, name+" HostAddress")
		m.args[p.Name] = name + ".v"
	case pointer && points && to.is == isStruct:
		m.in = append(m.in, name+" *"+to.name)
		m.refs = append(m.refs, ref{p.Name, "unsafe.Pointer(" + name + ")"})
	case pointer && points && !constant && to.is == isHandle:
		m.outs = append(m.outs, out{p.Name, "", to.name, to.name + "{v: %s}"})
	case pointer && points && !constant && to.is == isFloat:
		m.outs = append(m.outs, out{p.Name, "", "float32", "math.Float32frombits(uint32(%s))"})
	case pointer && points && !constant:
		m.outs = append(m.outs, out{p.Name, "", to.name, to.name + "(%s)"})
	default:
		m.refuse("the description must say how to take " + p.Type + " " + p.Name)
	}
}

// goParam is a parameter's name in Go.
func goParam(c string) string { return fieldName(c, true) }
