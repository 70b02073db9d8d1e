package ptx

import "strings"

// Version is the ISA version of the .version directive.
type Version struct{ Major, Minor int }

// Module is one translation unit.
type Module struct {
	Version     Version
	Target      string // as written, for example "sm_90a"
	SM          int    // 90 for sm_90a
	AddressSize int    // bits; 64 unless said otherwise
	Vars        []*Var // module scope variables in source order
	Funcs       []*Func
}

// Linkage is a symbol's visibility.
type Linkage uint8

// Linkage values; Local is the absence of a directive.
const (
	Local Linkage = iota
	Visible
	Extern
	Weak
	Common
)

// Var is a variable in a state space, at module or function scope, or a
// parameter.
type Var struct {
	Name    string
	Space   Space
	Type    Type
	Vec     int      // elements of a vector type, else 1
	Align   uint64   // bytes, a power of two
	Dims    []uint64 // array dimensions; a leading 0 stands for []
	Size    uint64   // bytes; 0 for an unsized extern array
	Linkage Linkage
	Init    []Init // flattened initialiser; missing elements are zero
	Line    int
	Pointer bool // parameter declared .ptr
	Managed bool // .attribute(.managed): the host may touch it too
	Reg     int  // parameter in .reg space: index in Func.Regs
}

// InitKind says what an initialiser element is.
type InitKind uint8

// Initialiser elements.
const (
	InitInt    InitKind = iota // Value, truncated to the element
	InitFloat                  // Value holds float64 bits, to be converted
	InitSymbol                 // address of Symbol plus Value
)

// Init is one element of an initialiser.
type Init struct {
	Kind    InitKind
	Index   uint64 // element number in the flattened array
	Value   uint64
	Symbol  string
	Generic bool   // generic(Symbol)
	Mask    uint64 // nonzero: byte mask of mask(symbol)
}

// Func is a kernel (.entry) or device function (.func).
type Func struct {
	Name    string
	Kernel  bool
	Linkage Linkage
	Params  []*Var
	Returns []*Var
	Body    []Instr // nil for a declaration
	Defined bool
	Regs    []Reg          // every register named in the body or signature
	Labels  map[string]int // label to index into Body
	Vars    []*Var         // .local, .shared, .param and others of the body
	Tables  map[string][]string
	Protos  map[string]*Proto
	MaxNTID [3]uint32 // .maxntid; zero if absent
	ReqNTID [3]uint32 // .reqntid

	ReqCluster      [3]uint32 // .reqnctapercluster
	ExplicitCluster bool      // .explicitcluster
	MinCTA          uint32    // .minnctapersm
	MaxRegs         uint32    // .maxnreg
	Noreturn        bool
	Line            int
}

// Proto is a .callprototype.
type Proto struct {
	Returns []*Var
	Params  []*Var
}

// Reg is a register.
type Reg struct {
	Name string
	Type Type
}

// Instr is one instruction.
type Instr struct {
	Op       string   // opcode without modifiers: "ld"
	Mods     []string // modifiers without dots: "global", "u32"
	Guard    int      // predicate register index, or -1
	GuardNot bool
	Operands []Operand
	Line     int
}

// OperandKind says what an operand is.
type OperandKind uint8

// Operands.
const (
	OpReg     OperandKind = iota // Reg, Not
	OpImm                        // Imm: integer bits, sign-extended to 64
	OpFloat                      // Imm: float64 bits (0d or decimal literal)
	OpFloat32                    // Imm: float32 bits (0f literal)
	OpSpecial                    // Name: "%tid.x"
	// Name, Imm offset: variable or function; Var when declared in the function
	OpSymbol
	OpLabel // Name, Imm index into Body
	// [base+offset]: Elems[0] base (register, symbol or immediate), Imm offset, further Elems
	OpAddr
	OpVector // {a, b, ...} in Elems
	OpList   // (a, b, ...) in Elems
	OpPair   // a|b in Elems
	OpSink   // _
)

// Operand is one operand.
type Operand struct {
	Kind  OperandKind
	Not   bool // !p
	Reg   int
	Imm   uint64
	Name  string
	Var   *Var
	Elems []Operand
}

// String is the opcode with its modifiers, as in "ld.global.u32".
func (in *Instr) String() string {
	if len(in.Mods) == 0 {
		return in.Op
	}
	return in.Op + "." + strings.Join(in.Mods, ".")
}
