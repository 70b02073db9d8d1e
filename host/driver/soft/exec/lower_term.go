package exec

import (
	"causeway/host/driver/soft/ptx"
)

// terminator lowers how a block ends.
func (l *lowerer) terminator(n *node, b *block) error {
	l.in, l.temps, l.ptemp = n.instr, 0, 0
	b.term, b.next, b.taken, b.line = n.term, int32(n.next), int32(n.taken), int32(n.line)
	var err error
	switch n.term {
	case termBranch:
		b.pred, b.not = l.as.slot[n.guard], n.not
	case termIndexed:
		b.reg, err = l.src(0, ptx.U32)
		for _, t := range n.targets {
			b.targets = append(b.targets, int32(t))
		}
	case termSync:
		if at := maskOperand(n.instr); at == wholeWarp {
			b.reg = l.constant(fullMask)
		} else {
			b.reg, err = l.src(at, ptx.U32)
		}
	case termBarrier:
		b.bar, err = l.barrier()
	case termCall:
		b.call, err = l.call()
	}
	return err
}

// barrier lowers bar and barrier in all their forms.
func (l *lowerer) barrier() (*barrierSite, error) {
	s := &barrierSite{count: -1, wait: !l.has("arrive")}
	if l.has("cluster") {
		s.cluster, s.id = true, l.constant(clusterBarrier)
		return s, nil
	}
	at := 0
	var err error
	if l.has("red") {
		switch l.hasAny("popc", "and", "or") {
		case "popc":
			s.red = redPopc
			s.dst, err = l.dst(0)
		case "and":
			s.red = redAnd
		case "or":
			s.red = redOr
		default:
			return nil, l.unsupported("%s", l.in)
		}
		if len(l.in.Operands) < 3 {
			return nil, l.unsupported("%s with %d operands", l.in, len(l.in.Operands))
		}
		if s.red != redPopc {
			s.dst, err = l.predDst(&l.in.Operands[0])
		}
		if err != nil {
			return nil, err
		}
		last := l.in.Operands[len(l.in.Operands)-1]
		s.not, last.Not = last.Not, false
		if s.pred, err = l.pred(&last); err != nil {
			return nil, err
		}
		l.in.Operands = l.in.Operands[:len(l.in.Operands)-1]
		at = 1
	} else if !l.has("sync") && !l.has("arrive") {
		return nil, l.unsupported("%s", l.in)
	}
	if len(l.in.Operands) == at {
		s.id = l.constant(0)
		return s, nil
	}
	if s.id, err = l.src(at, ptx.U32); err != nil {
		return nil, err
	}
	if len(l.in.Operands) > at+1 {
		s.count, err = l.src(at+1, ptx.U32)
	}
	return s, err
}

// call lowers a direct or indirect call.
func (l *lowerer) call() (*callSite, error) {
	ops := l.in.Operands
	s := &callSite{line: int32(l.in.Line)}
	var err error
	if len(ops) > 0 && ops[0].Kind == ptx.OpList {
		if s.rets, err = l.arguments(ops[0].Elems, true); err != nil {
			return nil, err
		}
		ops = ops[1:]
	}
	if len(ops) == 0 {
		return nil, l.unsupported("call without a target")
	}
	target := ops[0]
	if len(ops) > 1 && ops[1].Kind == ptx.OpList {
		if s.args, err = l.arguments(ops[1].Elems, false); err != nil {
			return nil, err
		}
	}
	switch target.Kind {
	case ptx.OpReg:
		l.c.indirect = true
		s.reg, err = l.value(&target, ptx.U64)
		return s, err
	case ptx.OpSymbol:
		s.target = l.m.funcOf[target.Name]
	}
	if s.target == nil {
		return nil, l.unsupported("call of something that is no function: %s", target.Name)
	}
	if !s.target.defined && s.target.builtin == nil && !l.m.hasBody[target.Name] {
		return nil, l.unsupported("call of external function %s", target.Name)
	}
	l.c.calls = append(l.c.calls, s.target)
	return s, nil
}

func (l *lowerer) arguments(list []ptx.Operand, dst bool) ([]argument, error) {
	var out []argument
	for i := range list {
		o := &list[i]
		if o.Kind == ptx.OpSymbol && o.Var != nil {
			off, ok := l.local[o.Var]
			if !ok {
				return nil, l.unsupported("call with parameter %s that is not in .param space", o.Name)
			}
			out = append(out, argument{off: off, size: o.Var.Size, reg: -1})
			continue
		}
		var slot int32
		var err error
		size := uint64(8)
		if o.Kind == ptx.OpReg && !l.isPred(o) {
			size = l.f.Regs[o.Reg].Type.Size()
		}
		if dst {
			slot, err = l.dstOf(o)
		} else {
			slot, err = l.value(o, ptx.B64)
		}
		if err != nil {
			return nil, err
		}
		out = append(out, argument{size: size, reg: slot})
	}
	return out, nil
}
