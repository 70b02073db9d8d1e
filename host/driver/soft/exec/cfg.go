package exec

import (
	"fmt"
	"slices"

	"causeway/host/driver/soft/ptx"
)

// graph is a function's control flow: straight runs of instructions, each with
// one terminator. It guarantees to later passes that terminators other than
// branches carry no guard, that every instruction which names the lanes to
// wait for is preceded by a termSync of its own, and that every block ends in
// an explicit terminator with valid targets.
type graph struct {
	nodes []node
}

type node struct {
	ins     []ptx.Instr
	term    termKind
	instr   *ptx.Instr // the terminator's instruction, if it has one
	guard   int        // termBranch: predicate register
	not     bool
	next    int
	taken   int
	targets []int
	line    int
	uses    []int // termRet: registers that hold the results
}

// succs calls f for each successor.
func (n *node) succs(f func(int)) {
	switch n.term {
	case termRet, termExit:
		return
	case termBranch:
		f(n.taken)
	case termIndexed:
		for _, t := range n.targets {
			f(t)
		}
		return
	}
	f(n.next)
}

// wholeWarp stands for an operand with all lanes.
const wholeWarp = 1 << 16

// maskOperand returns the operand that names the lanes an instruction waits
// for, wholeWarp, or -1.
func maskOperand(in *ptx.Instr) int {
	switch in.Op {
	case "shfl", "vote", "match", "redux", "elect":
		if slices.Contains(in.Mods, "sync") && len(in.Operands) > 1 {
			return len(in.Operands) - 1
		}
	case "bar", "barrier":
		if slices.Contains(in.Mods, "warp") && len(in.Operands) == 1 {
			return 0
		}
	case "mma", "wmma", "ldmatrix", "stmatrix", "movmatrix":
		return wholeWarp
	}
	return -1
}

func terminator(in *ptx.Instr) (termKind, bool) {
	switch in.Op {
	case "bra":
		return termBranch, true
	case "brx":
		return termIndexed, true
	case "call":
		return termCall, true
	case "ret":
		return termRet, true
	case "exit":
		return termExit, true
	case "bar", "barrier":
		return termBarrier, !slices.Contains(in.Mods, "warp")
	}
	return 0, false
}

// buildGraph cuts the body into blocks.
func buildGraph(f *ptx.Func) (*graph, error) {
	b := &graphBuilder{f: f, g: &graph{}, at: make([]int, len(f.Body)+1)}
	leader := make([]bool, len(f.Body)+1)
	for _, i := range f.Labels {
		leader[i] = true
	}
	b.open()
	for i := range f.Body {
		if leader[i] && len(b.cur().ins) > 0 {
			b.fallInto()
		}
		b.at[i] = len(b.g.nodes) - 1
		if err := b.add(i); err != nil {
			return nil, err
		}
	}
	if leader[len(f.Body)] && len(b.cur().ins) > 0 {
		b.fallInto()
	}
	b.at[len(f.Body)] = len(b.g.nodes) - 1
	b.cur().term = termRet
	b.patch()
	b.results()
	return b.g, nil
}

type graphBuilder struct {
	f    *ptx.Func
	g    *graph
	at   []int // instruction to the block that it starts or is in
	skip []int // guarded terminators: blocks whose taken is an instruction index
}

func (b *graphBuilder) open() { b.g.nodes = append(b.g.nodes, node{guard: -1}) }

func (b *graphBuilder) cur() *node { return &b.g.nodes[len(b.g.nodes)-1] }

// fallInto ends the current block with a jump to a new one.
func (b *graphBuilder) fallInto() {
	n := b.cur()
	n.term, n.next = termJump, len(b.g.nodes)
	b.open()
}

func (b *graphBuilder) add(i int) error {
	in := &b.f.Body[i]
	kind, isTerm := terminator(in)
	mask := maskOperand(in)
	if !isTerm && mask < 0 {
		n := b.cur()
		n.ins = append(n.ins, *in)
		return nil
	}
	guarded := in.Guard >= 0 && kind != termBranch
	if guarded {
		n := b.cur()
		n.term, n.guard, n.not, n.line = termBranch, in.Guard, !in.GuardNot, in.Line
		n.taken, n.next = i+1, len(b.g.nodes)
		b.skip = append(b.skip, len(b.g.nodes)-1)
		b.open()
		plain := *in
		plain.Guard = -1
		in = &plain
	}
	n := b.cur()
	n.line = in.Line
	if mask >= 0 {
		n.term, n.instr, n.next = termSync, in, len(b.g.nodes)
		b.open()
		if in.Op != "bar" && in.Op != "barrier" {
			b.cur().ins = append(b.cur().ins, *in)
		}
		if guarded { // the lanes that skip it join after it
			b.fallInto()
		}
		return nil
	}
	n.term, n.instr, n.next = kind, in, len(b.g.nodes)
	switch kind {
	case termBranch:
		if err := b.branch(n, in); err != nil {
			return err
		}
	case termIndexed:
		if err := b.indexed(n, in); err != nil {
			return err
		}
	}
	b.open()
	return nil
}

func (b *graphBuilder) branch(n *node, in *ptx.Instr) error {
	if len(in.Operands) != 1 || in.Operands[0].Kind != ptx.OpLabel {
		return fmt.Errorf("line %d: branch to something that is no label of the function", in.Line)
	}
	n.taken = int(in.Operands[0].Imm)
	if in.Guard < 0 {
		n.term, n.next = termJump, n.taken
		n.targets = []int{n.taken} // next is an instruction index: patched
		return nil
	}
	n.guard, n.not = in.Guard, in.GuardNot
	b.skip = append(b.skip, len(b.g.nodes)-1)
	return nil
}

func (b *graphBuilder) indexed(n *node, in *ptx.Instr) error {
	if len(in.Operands) != 2 || in.Operands[1].Kind != ptx.OpSymbol || in.Operands[0].Kind != ptx.OpReg {
		return fmt.Errorf("line %d: malformed brx.idx", in.Line)
	}
	for _, name := range b.f.Tables[in.Operands[1].Name] {
		i, ok := b.f.Labels[name]
		if !ok {
			return fmt.Errorf("line %d: branch target %s is no label of the function", in.Line, name)
		}
		n.targets = append(n.targets, i)
	}
	return nil
}

// results makes returning read the results that live in registers.
func (b *graphBuilder) results() {
	var regs []int
	for _, v := range b.f.Returns {
		if v.Space == ptx.RegSpace {
			regs = append(regs, v.Reg)
		}
	}
	for i := range b.g.nodes {
		if b.g.nodes[i].term == termRet {
			b.g.nodes[i].uses = regs
		}
	}
}

// patch turns instruction indices into block numbers.
func (b *graphBuilder) patch() {
	for _, i := range b.skip {
		n := &b.g.nodes[i]
		n.taken = b.at[n.taken]
	}
	for i := range b.g.nodes {
		n := &b.g.nodes[i]
		switch {
		case n.term == termIndexed:
			for j, t := range n.targets {
				n.targets[j] = b.at[t]
			}
		case n.term == termJump && n.targets != nil:
			n.next, n.targets = b.at[n.targets[0]], nil
		}
	}
}
