package ptx

// Type is a fundamental type.
type Type uint8

// Types. B128 has no arithmetic.
const (
	NoType Type = iota
	B8
	B16
	B32
	B64
	B128
	U8
	U16
	U32
	U64
	S8
	S16
	S32
	S64
	F16
	F16x2
	BF16
	BF16x2
	F32
	F64
	Pred
	TexRef
	SamplerRef
	SurfRef
)

type typeInfo struct {
	name string
	size uint64
}

var typeTable = [...]typeInfo{
	NoType: {"", 0}, B8: {"b8", 1}, B16: {"b16", 2}, B32: {"b32", 4}, B64: {"b64", 8}, B128: {"b128", 16},
	U8: {"u8", 1}, U16: {"u16", 2}, U32: {"u32", 4}, U64: {"u64", 8},
	S8: {"s8", 1}, S16: {"s16", 2}, S32: {"s32", 4}, S64: {"s64", 8},
	F16: {"f16", 2}, F16x2: {"f16x2", 4}, BF16: {"bf16", 2}, BF16x2: {"bf16x2", 4}, F32: {"f32", 4}, F64: {"f64", 8},
	Pred: {"pred", 1}, TexRef: {"texref", 8}, SamplerRef: {"samplerref", 8}, SurfRef: {"surfref", 8},
}

// TypeOf returns the type a modifier names, without its dot, or NoType.
func TypeOf(mod string) Type {
	for t := B8; int(t) < len(typeTable); t++ {
		if typeTable[t].name == mod {
			return t
		}
	}
	return NoType
}

func (t Type) String() string { return typeTable[t].name }

// Size is the type's size in bytes.
func (t Type) Size() uint64 { return typeTable[t].size }

// Bits is the type's width; 1 for predicates.
func (t Type) Bits() int {
	if t == Pred {
		return 1
	}
	return int(typeTable[t].size) * 8
}

// Float reports whether t is a floating type.
func (t Type) Float() bool { return t >= F16 && t <= F64 }

// Signed reports whether t is a signed integer.
func (t Type) Signed() bool { return t >= S8 && t <= S64 }

// Space is a state space.
type Space uint8

// State spaces. Generic stands for an absent space.
const (
	Generic Space = iota
	Global
	Shared
	Const
	LocalSpace
	Param
	RegSpace
	Tex
)

var spaceNames = [...]string{Generic: "generic", Global: "global", Shared: "shared", Const: "const", LocalSpace: "local", Param: "param", RegSpace: "reg", Tex: "tex"}

func (s Space) String() string { return spaceNames[s] }
