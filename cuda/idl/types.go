package idl

import "fmt"

// File is the parsed content of one or more .idl files.
type File struct {
	Consts  []Const
	Structs []Struct
	Ops     []Op
	Enums   []Enum
	Results []Result
	Types   []Type
	Themes  []Theme
	Entries []Entry
	Binds   []Bind
	Seals   []Seal
}

// Pos says where a declaration stands.
type Pos struct {
	File string
	Line int
}

func (p Pos) String() string { return fmt.Sprintf("%s:%d", p.File, p.Line) }

// Errorf makes an error that begins with the position.
func (p Pos) Errorf(format string, args ...any) error {
	return fmt.Errorf("%s: %w", p, fmt.Errorf(format, args...))
}

// Const is a number that both sides use.
type Const struct {
	Pos
	Name, Type string
	Text       string // value as written
	Value      uint64
}

// Struct is a layout in shared memory or in a message.
type Struct struct {
	Pos
	Name    string
	Message bool
	Fields  []StructField
	Size    int
}

// StructField is one field of a Struct; Count is 0 for a scalar.
type StructField struct {
	Pos
	Name, Type string
	Count      int
	Offset     int
}

// Mode says when an operation is answered.
type Mode string

// Modes.
const (
	Sync  Mode = "sync"
	Async Mode = "async"
	Wait  Mode = "wait"
)

// Effect says what is recorded of an operation: what it does to an object, or that nothing is.
type Effect string

// Effects.
const (
	Creates    Effect = "creates"
	Destroys   Effect = "destroys"
	Retains    Effect = "retains"  // creates, or counts once more
	Releases   Effect = "releases" // undoes one of Retains; the last one destroys
	Modifies   Effect = "modifies"
	Marks      Effect = "marks"  // modifies; the last one counts
	Resets     Effect = "resets" // modifies; what belongs to the object is gone
	Transient  Effect = "transient"
	Unrecorded Effect = "unrecorded" // leaves something behind that is not rebuilt
)

// Begins reports whether there is an object afterwards that was none before.
func (e Effect) Begins() bool { return e == Creates || e == Retains }

// Ends reports whether objects may be gone afterwards.
func (e Effect) Ends() bool { return e == Destroys || e == Releases || e == Resets }

// Recorded reports whether there is an object that is affected.
func (e Effect) Recorded() bool { return e != "" && e != Transient && e != Unrecorded }

// Op is one operation of the wire. cuda/api/ops.idl says what its attributes mean.
type Op struct {
	Pos
	Name        string
	Num         int // 1, 2, ... in order of declaration
	Mode        Mode
	Place       string // worker, driver, gpu
	Order       string // stream, none; empty: all
	Capture     string // any, node, refused, unsafe, wait
	CaptureWhen Condition
	Effect      Effect
	Kind        string   // of the object that Effect concerns
	Keyed       bool     // an earlier one with the same Keys is forgotten
	Keys        []string // fields
	Counts      string   // nothing, launch, bytes, guest; empty: nothing
	Awaited     Condition
	OwnResult   bool // said; see OwnReply
	Always      bool
	Drains      bool // a driver may wait for the device in it
	Bare        bool
	Current     bool // the calling thread's context is made current before
	In          []Field
	Out         []Field
	InLen       int // bytes of the fixed in fields, rounded up to 8
	OutLen      int
}

// Field is one argument of an Op.
type Field struct {
	Pos
	Name, Type string
	Kind       string // of an id, newid or stream
	Offset     int    // in the fixed part
}

// Span reports whether the field is variable bytes.
func (f Field) Span() bool { return f.Type == "bytes" || f.Type == "data" }

// HasIn reports whether the request has a field of one of the types.
func (o *Op) HasIn(types ...string) bool { return has(o.In, types) }

// HasOut reports whether the reply has a field of one of the types.
func (o *Op) HasOut(types ...string) bool { return has(o.Out, types) }

func has(fields []Field, types []string) bool {
	for _, f := range fields {
		for _, t := range types {
			if f.Type == t {
				return true
			}
		}
	}
	return false
}

// Kinds of objects, in the order of their numbers (1...).
var Kinds = []string{"ctx", "module", "library", "func", "kernel", "stream", "event", "pool", "mem",
	"array", "mipmap", "link", "tex", "surf", "texref", "surfref", "resdesc", "green",
	"memhandle", "resv", "mapping",
	"graph", "graphnode", "graphexec",
	"session", "region",
	"peer",     // access of the current context to the memory of the one that the request names
	"instance", // code and variables of a library in the current context
}

// sizes of the types of struct and op fields.
var sizes = map[string]int{
	"u8": 1, "char": 1, "u16": 2, "u32": 4, "i32": 4, "u64": 8, "f32": 4,
	"id": 4, "newid": 4, "stream": 4, "bytes": 8, "data": 8,
}

// alignOf is 4 for spans, which are two u32.
func alignOf(t string) int {
	if t == "bytes" || t == "data" {
		return 4
	}
	return sizes[t]
}

// Enum is a public enumeration.
type Enum struct {
	Pos
	Name   string // C type; Go's is GoType
	Go     string // prefix of the Go constants; empty: C only
	Strip  string // prefix of the C constants that Go drops
	Values []EnumValue
}

// EnumValue is one constant; C name with its prefix.
type EnumValue struct {
	Name  string
	Value int64
}

// Type is a C type of a prototype: typedef Decl Name.
type Type struct {
	Pos
	Name, Decl string
}

// Result is one CUresult.
type Result struct {
	Pos
	Code       int
	Name, Text string // CUDA_ERROR_...
}
