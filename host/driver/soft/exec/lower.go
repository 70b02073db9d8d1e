package exec

import (
	"fmt"
	"runtime/debug"
	"slices"

	"causeway/host/driver/soft/ptx"
)

// Per function, Load runs these passes in this order:
//
//	buildGraph     cfg.go       body to blocks with explicit terminators
//	orderBlocks    order.go     drop the unreachable, number by priority
//	assignSlots    slots.go     registers to slots (by liveness.go)
//	lowerer.run    here         instructions to operations
//
// To add an instruction: one line in the table of lower_table.go, and a lowering
// beside its family. Give it a closure per lane first (map1 … map3); write a
// loop of its own only when a profile asks for it.

const (
	tempSlots = 12
	tempPreds = 6
	maxSlots  = 1 << 16 // 16 MiB of registers per warp
)

// lowerer turns one function's instructions into operations.
type lowerer struct {
	m     *Module
	f     *ptx.Func
	c     *code
	g     *graph
	as    *assignment
	local map[*ptx.Var]uint64 // offsets in the frame
	param map[*ptx.Var]uint64 // kernel parameters: offsets in Config.Params
	index map[uint64]int32    // constants by value
	sh    map[*ptx.Var]*sharedVar

	in    *ptx.Instr
	ops   []op
	temps int32
	ptemp int32
}

// lowerFunc fills c. What cannot be lowered is kept as c.err for the launch.
func (m *Module) lowerFunc(f *ptx.Func, c *code) {
	c.defined = true
	l := &lowerer{m: m, f: f, c: c, index: map[uint64]int32{}, local: map[*ptx.Var]uint64{},
		param: map[*ptx.Var]uint64{}, sh: map[*ptx.Var]*sharedVar{}}
	c.err = l.guarded()
	if c.err != nil {
		c.blocks = []block{{term: termExit}}
	}
}

// guarded turns a bug of ours that hostile code may reach into the function's
// error, with its stack.
func (l *lowerer) guarded() (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("exec: internal error in %s: %v\n%s", l.f.Name, r, debug.Stack())
		}
	}()
	return l.run()
}

func (l *lowerer) unsupported(format string, args ...any) error {
	line := l.f.Line
	if l.in != nil {
		line = l.in.Line
	}
	return &UnsupportedError{Function: l.f.Name, Line: line, What: fmt.Sprintf(format, args...)}
}

func (l *lowerer) run() error {
	g, err := buildGraph(l.f)
	if err != nil {
		return l.unsupported("%v", err)
	}
	orderBlocks(g)
	l.g, l.as = g, assignSlots(l.f, g)
	l.c.pressure = l.as.pressure
	l.c.preds = l.as.preds + tempPreds
	if l.as.slots > maxSlots {
		return l.unsupported("%d registers", l.as.slots)
	}
	if err := l.layout(); err != nil {
		return err
	}
	l.c.blocks = make([]block, len(g.nodes))
	for i := range g.nodes {
		if err := l.block(&g.nodes[i], &l.c.blocks[i]); err != nil {
			return err
		}
	}
	l.c.slots = l.as.slots + tempSlots + len(l.c.consts)
	if l.c.slots > maxSlots {
		return l.unsupported("%d registers and constants", l.c.slots)
	}
	return nil
}

// maxFrame bounds a function's local variables, in bytes per thread.
const maxFrame = maxStack

// layout places local variables and parameters in the frame.
func (l *lowerer) layout() error {
	at := uint64(0)
	place := func(v *ptx.Var) error {
		align := max(v.Align, 1)
		at = (at + align - 1) &^ (align - 1)
		l.local[v] = at
		at += v.Size
		if at > maxFrame {
			return l.unsupported("%d bytes of local memory", at)
		}
		return nil
	}
	if l.f.Kernel {
		params, _ := paramLayout(l.f.Params)
		for i, v := range l.f.Params {
			l.param[v] = params[i].Offset
		}
	}
	for _, v := range slices.Concat(l.f.Returns, l.f.Params, l.f.Vars) {
		_, kernelParam := l.param[v]
		switch {
		case kernelParam, v.Space == ptx.RegSpace:
		case v.Space == ptx.LocalSpace, v.Space == ptx.Param:
			if err := place(v); err != nil {
				return err
			}
		case v.Space == ptx.Shared:
			l.sh[v] = l.m.addShared(v)
		case v.Space == ptx.Global || v.Space == ptx.Const:
			return l.unsupported("variable %s in .%s space inside of a function", v.Name, v.Space)
		}
	}
	l.c.frame = (at + 15) &^ 15
	if !l.f.Kernel {
		l.c.params = l.slotArgs(l.f.Params)
		l.c.rets = l.slotArgs(l.f.Returns)
	}
	return nil
}

func (l *lowerer) slotArgs(vars []*ptx.Var) []slotArg {
	var list []slotArg
	for _, v := range vars {
		a := slotArg{off: l.local[v], size: v.Size, reg: -1}
		if v.Space == ptx.RegSpace {
			if a.reg = l.as.slot[v.Reg]; a.reg == unassigned {
				a.reg = int32(l.as.slots) // a temporary: nobody reads it
			}
		}
		list = append(list, a)
	}
	return list
}

// block lowers one node.
func (l *lowerer) block(n *node, b *block) error {
	l.ops = nil
	for i := range n.ins {
		if err := l.instr(&n.ins[i]); err != nil {
			return err
		}
	}
	if err := l.terminator(n, b); err != nil {
		return err
	}
	b.ops = l.ops
	return nil
}

func (l *lowerer) instr(in *ptx.Instr) error {
	l.in, l.temps, l.ptemp = in, 0, 0
	fn := lowerings[in.Op]
	if fn == nil {
		return l.unsupported("%s", in)
	}
	first := len(l.ops)
	if err := fn(l); err != nil {
		return err
	}
	if in.Guard >= 0 {
		for i := first; i < len(l.ops); i++ {
			l.guard(&l.ops[i])
		}
	}
	return nil
}

// guard makes o run only for the lanes of the instruction's predicate.
func (l *lowerer) guard(o *op) {
	inner := *o
	*o = op{fn: opGuarded, p: l.as.slot[l.in.Guard], line: inner.line, x: &opExtra{inner: inner, not: l.in.GuardNot}}
}

func opGuarded(w *warp, o *op) {
	p := w.p[o.p]
	if o.x.not {
		p = ^p
	}
	all, act := w.mask, w.act
	p &= all
	if p == 0 {
		return
	}
	inner := &o.x.inner
	w.at = inner
	if p == all {
		inner.fn(w, inner)
		return
	}
	w.mask, w.act = p, listLanes(&w.scratch, p)
	inner.fn(w, inner)
	w.mask, w.act = all, act
}

func (l *lowerer) emit(o op) {
	if l.in != nil {
		o.line = int32(l.in.Line)
	}
	l.ops = append(l.ops, o)
}

// has reports whether the instruction carries a modifier.
func (l *lowerer) has(mod string) bool { return slices.Contains(l.in.Mods, mod) }

// hasAny returns the first of the modifiers that is present.
func (l *lowerer) hasAny(mods ...string) string {
	for _, m := range mods {
		if l.has(m) {
			return m
		}
	}
	return ""
}

// types lists the type modifiers in order.
func (l *lowerer) types() []ptx.Type {
	var list []ptx.Type
	for _, m := range l.in.Mods {
		if t := ptx.TypeOf(m); t != ptx.NoType {
			list = append(list, t)
		}
	}
	return list
}

// typ is the last type modifier, which is the operation's type.
func (l *lowerer) typ() ptx.Type {
	for i := len(l.in.Mods) - 1; i >= 0; i-- {
		if t := ptx.TypeOf(l.in.Mods[i]); t != ptx.NoType {
			return t
		}
	}
	return ptx.NoType
}

// need checks the number of operands.
func (l *lowerer) need(n int) error {
	if len(l.in.Operands) != n {
		return l.unsupported("%s with %d operands", l.in, len(l.in.Operands))
	}
	return nil
}

func (l *lowerer) constant(v uint64) int32 {
	if s, ok := l.index[v]; ok {
		return s
	}
	s := int32(l.as.slots + tempSlots + len(l.c.consts))
	l.c.consts = append(l.c.consts, v)
	l.index[v] = s
	return s
}

func (l *lowerer) temp() (int32, error) {
	if l.temps == tempSlots {
		return 0, l.unsupported("%s with so many operands", l.in)
	}
	l.temps++
	return int32(l.as.slots) + l.temps - 1, nil
}

func (l *lowerer) predTemp() (int32, error) {
	if l.ptemp == tempPreds {
		return 0, l.unsupported("%s with so many operands", l.in)
	}
	l.ptemp++
	return int32(l.as.preds) + l.ptemp - 1, nil
}
