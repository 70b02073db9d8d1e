package exec

import (
	"slices"
	"strings"

	"causeway/host/driver/soft/ptx"
)

// Kernel is an entry function.
type Kernel struct {
	name       string
	module     *Module
	code       *code
	params     []Param
	bytes      uint64
	attrs      Attributes
	sharedSize uint64
	sharedAt   []uint64 // offset by sharedVar.index
	dynamicAt  uint64   // where dynamic shared memory begins
	heap       bool     // some code calls malloc or free
	reserved   bool     // some code uses the system's part of shared memory
	err        error    // why it cannot be launched
}

func (m *Module) newKernel(f *ptx.Func) *Kernel {
	k := &Kernel{name: f.Name, module: m, code: m.funcOf[f.Name]}
	k.params, k.bytes = paramLayout(f.Params)
	reach, ok := k.reachable()
	if !ok {
		k.err = &UnsupportedError{Function: f.Name, Line: f.Line, What: "a call graph of this size"}
	}
	k.placeShared(reach)
	for _, c := range reach {
		if c.err != nil {
			k.err = c.err
			break
		}
	}
	k.attributes(f, reach)
	return k
}

// paramLayout places parameters as the driver packs them: in order, each at
// its alignment.
func paramLayout(vars []*ptx.Var) ([]Param, uint64) {
	var list []Param
	var at uint64
	for _, v := range vars {
		at = (at + v.Align - 1) &^ (v.Align - 1)
		list = append(list, Param{at, v.Size, v.Align})
		at += v.Size
	}
	return list, at
}

// reachable lists the functions a launch can enter: by direct calls and, once
// one of them calls through a pointer, any function whose address was taken.
func (k *Kernel) reachable() (list []*code, ok bool) {
	seen := map[*code]bool{k.code: true}
	list = []*code{k.code}
	indirect := false
	for i := 0; i < len(list); i++ {
		c := list[i]
		next := c.calls
		if c.indirect && !indirect {
			indirect = true
			if k.module.budget -= len(k.module.taken); k.module.budget < 0 {
				return list, false
			}
			next = slices.Concat(next, k.module.taken)
		}
		if k.module.budget -= len(next) + 1; k.module.budget < 0 {
			return list, false
		}
		for _, n := range next {
			if !seen[n] {
				seen[n] = true
				list = append(list, n)
			}
		}
	}
	return list, true
}

// placeShared gives the shared variables in reach their offsets. Those of
// unknown size all start where the static ones end.
func (k *Kernel) placeShared(reach []*code) {
	k.sharedAt = make([]uint64, len(k.module.vars))
	done := make([]bool, len(k.module.vars))
	var dynamic []*sharedVar
	dynAlign := uint64(1)
	for _, c := range reach {
		for _, s := range c.shared {
			if done[s.index] {
				continue
			}
			done[s.index] = true
			if s.v.Size == 0 || s.v.Linkage == ptx.Extern && len(s.v.Dims) > 0 && s.v.Dims[0] == 0 {
				dynamic = append(dynamic, s)
				dynAlign = max(dynAlign, s.v.Align)
				continue
			}
			k.sharedSize = (k.sharedSize + s.v.Align - 1) &^ (s.v.Align - 1)
			k.sharedAt[s.index] = k.sharedSize
			k.sharedSize += s.v.Size
		}
	}
	if len(dynamic) > 0 {
		dynAlign = max(dynAlign, 16)
	}
	base := (k.sharedSize + dynAlign - 1) &^ (dynAlign - 1)
	for _, s := range dynamic {
		k.sharedAt[s.index] = base
	}
	k.dynamicAt = base
}

func (k *Kernel) attributes(f *ptx.Func, reach []*code) {
	a := &k.attrs
	a.SharedBytes = uint32(min(k.sharedSize, 1<<31))
	a.ConstBytes = k.module.consts
	pressure := 0
	for _, c := range reach {
		k.heap = k.heap || c.name == "malloc" || c.name == "free" || strings.Contains(c.name, "GetParameterBuffer") && k.module.funcOf["malloc"] != nil
		k.reserved = k.reserved || c.reserved
		a.LocalBytes = max(a.LocalBytes, c.frame)
		pressure = max(pressure, c.pressure)
	}
	a.Registers = uint32(min(max((pressure+8)&^7, 16), 255))
	a.MaxThreadsPerBlock = maxThreads
	for _, ext := range [...][3]uint32{f.MaxNTID, f.ReqNTID} {
		if n := uint64(ext[0]) * uint64(ext[1]) * uint64(ext[2]); n > 0 && n < maxThreads {
			a.MaxThreadsPerBlock = uint32(n)
		}
	}
	a.RequiredBlock = f.ReqNTID
	a.RequiredCluster, a.ExplicitCluster = f.ReqCluster, f.ExplicitCluster
	a.PTXVersion = k.module.src.SM
	a.BinaryVersion = k.module.src.SM
}

// Kernel returns the named kernel.
func (m *Module) Kernel(name string) (*Kernel, bool) {
	k, ok := m.byName[name]
	return k, ok
}
