package exec

import (
	"fmt"
	"math"

	"causeway/host/driver/soft/ptx"
)

// Module is a loaded module.
type Module struct {
	src     *ptx.Module
	globals []Global
	kernels []*Kernel
	byName  map[string]*Kernel
	addr    map[string]uint64 // global and const variables
	funcs   []*code
	funcOf  map[string]*code
	shared  map[string]*sharedVar // module scope
	vars    []*sharedVar          // all shared variables by index
	space   map[string]ptx.Space
	hasBody map[string]bool // functions defined anywhere in the module
	consts  uint64          // bytes of constant memory
	taken   []*code         // functions whose address is used
	budget  int             // steps left for finding what kernels reach
}

// maxReach bounds the work of finding what each kernel can reach.
const maxReach = 1 << 24

// Load lowers m and places its variables. Instructions exec lacks do not fail
// Load; they fail the Launch of kernels that can reach them.
func Load(m *ptx.Module, alloc AllocFunc) (*Module, error) {
	mod := &Module{src: m, byName: map[string]*Kernel{}, addr: map[string]uint64{},
		funcOf: map[string]*code{}, shared: map[string]*sharedVar{}, space: map[string]ptx.Space{}, hasBody: map[string]bool{}, budget: maxReach}
	if err := mod.declareFuncs(); err != nil {
		return nil, err
	}
	if err := mod.placeVars(alloc); err != nil {
		return nil, err
	}
	for _, f := range m.Funcs {
		if c := mod.funcOf[f.Name]; f.Defined && !c.defined {
			mod.lowerFunc(f, c)
		}
	}
	if len(mod.vars)*len(m.Funcs) > maxReach {
		return nil, fmt.Errorf("exec: %d shared variables in %d functions are too many", len(mod.vars), len(m.Funcs))
	}
	for _, f := range m.Funcs {
		if f.Kernel && f.Defined && mod.byName[f.Name] == nil {
			k := mod.newKernel(f)
			mod.kernels = append(mod.kernels, k)
			mod.byName[f.Name] = k
		}
	}
	return mod, nil
}

// declareFuncs gives every function its code and thereby its address, so that
// bodies and initialisers may refer to any.
func (m *Module) declareFuncs() error {
	for _, f := range m.src.Funcs {
		if m.hasBody[f.Name] && f.Defined {
			return fmt.Errorf("exec: line %d: function %s is defined twice", f.Line, f.Name)
		}
		m.hasBody[f.Name] = m.hasBody[f.Name] || f.Defined
		if m.funcOf[f.Name] != nil {
			continue
		}
		c := &code{name: f.Name, index: len(m.funcs), builtin: builtinFor(f.Name)}
		m.funcs = append(m.funcs, c)
		m.funcOf[f.Name] = c
	}
	return nil
}

// codeAt returns the function at an address taken from this module, or nil.
func (m *Module) codeAt(addr uint64) *code {
	i := (addr - codeWindow) / 16
	if addr < codeWindow || addr%16 != 0 || i >= uint64(len(m.funcs)) {
		return nil
	}
	return m.funcs[i]
}

func (m *Module) take(c *code) {
	if !c.taken {
		c.taken = true
		m.taken = append(m.taken, c)
	}
}

func (c *code) address() uint64 { return codeWindow + 16*uint64(c.index) }

func (m *Module) addShared(v *ptx.Var) *sharedVar {
	s := &sharedVar{v: v, index: len(m.vars)}
	m.vars = append(m.vars, s)
	return s
}

// placeVars allocates the module's variables, then fills them, since an
// initialiser may hold the address of a later variable.
func (m *Module) placeVars(alloc AllocFunc) error {
	type placed struct {
		v   *ptx.Var
		mem []byte
	}
	var list []placed
	for _, v := range m.src.Vars {
		switch v.Space {
		case ptx.Shared:
			m.shared[v.Name] = m.addShared(v)
			continue
		case ptx.Global, ptx.Const:
		default:
			continue // textures and such: an error where they are used
		}
		if v.Linkage == ptx.Extern || v.Size == 0 || v.Type >= ptx.TexRef {
			continue
		}
		if _, dup := m.addr[v.Name]; dup {
			return fmt.Errorf("exec: line %d: variable %s is defined twice", v.Line, v.Name)
		}
		addr, mem, err := alloc(v.Name, v.Size, max(v.Align, 1), v.Space)
		if err != nil {
			return fmt.Errorf("exec: variable %s of %d bytes: %w", v.Name, v.Size, err)
		}
		if mem != nil && uint64(len(mem)) < v.Size {
			return fmt.Errorf("exec: variable %s: %d bytes of memory for %d", v.Name, len(mem), v.Size)
		}
		m.addr[v.Name], m.space[v.Name] = addr, v.Space
		if v.Space == ptx.Const {
			m.consts += v.Size
		}
		m.globals = append(m.globals, Global{v.Name, v.Space, addr, v.Size, v.Managed})
		list = append(list, placed{v, mem})
	}
	for _, p := range list {
		if p.mem == nil {
			if err := m.mentioned(p.v); err != nil {
				return err
			}
			continue
		}
		clear(p.mem[:p.v.Size])
		if err := m.initialise(p.v, p.mem[:p.v.Size]); err != nil {
			return err
		}
	}
	return nil
}

// mentioned takes notice of the functions whose addresses an initialiser holds.
func (m *Module) mentioned(v *ptx.Var) error {
	for i := range v.Init {
		if e := &v.Init[i]; e.Kind == ptx.InitSymbol {
			if _, ok := m.address(e.Symbol); !ok {
				return unknownSymbol(v, e.Symbol)
			}
		}
	}
	return nil
}

func unknownSymbol(v *ptx.Var, symbol string) error {
	return fmt.Errorf("exec: line %d: initialiser of %s names unknown symbol %s", v.Line, v.Name, symbol)
}

func (m *Module) initialise(v *ptx.Var, mem []byte) error {
	size := v.Type.Size()
	for i := range v.Init {
		e := &v.Init[i]
		val := e.Value
		switch e.Kind {
		case ptx.InitFloat:
			val = floatImm(math.Float64frombits(e.Value), v.Type)
		case ptx.InitInt:
			if v.Type.Float() {
				val = floatImm(float64(int64(e.Value)), v.Type)
			}
		case ptx.InitSymbol:
			addr, ok := m.address(e.Symbol)
			if !ok {
				return unknownSymbol(v, e.Symbol)
			}
			val += addr
			for mask := e.Mask; mask != 0 && mask&0xff == 0; mask >>= 8 {
				val >>= 8
			}
		}
		at := e.Index * size
		if at+size > uint64(len(mem)) {
			return fmt.Errorf("exec: line %d: too many initialisers for %s", v.Line, v.Name)
		}
		putBytes(mem[at:at+size], val)
	}
	return nil
}

// address is the value of a variable's or function's name in global memory.
func (m *Module) address(name string) (uint64, bool) {
	if a, ok := m.addr[name]; ok {
		return a, true
	}
	if c := m.funcOf[name]; c != nil {
		m.take(c)
		return c.address(), true
	}
	return 0, false
}

// floatImm converts a literal to the bits of a floating or untyped operand.
func floatImm(v float64, t ptx.Type) uint64 {
	switch t {
	case ptx.F16:
		return uint64(toHalf(v))
	case ptx.BF16:
		return uint64(toBfloat(v))
	case ptx.F32, ptx.B32, ptx.U32, ptx.S32:
		return uint64(math.Float32bits(float32(v)))
	}
	return math.Float64bits(v)
}
