package exec

// The order of blocks is what makes diverged lanes meet again: a warp always
// runs its split with the lowest block number (sched.go), so the lanes that
// are ahead wait for the others exactly where the paths join, if every block
// of a loop comes before the blocks after the loop, and otherwise a block comes
// before its successors. That is a weak topological order (Bourdoncle 1993);
// running by it is the thread frontier scheme of Diamos et al. (MICRO 2011). It
// joins at the immediate post-dominator or earlier, also in unstructured and
// irreducible graphs. The order matters for speed alone: any is correct.

// maxOrder bounds the blocks of a function that are ordered; a larger function
// keeps its source order.
const maxOrder = 1 << 16

// orderBlocks drops unreachable nodes and renumbers the rest.
func orderBlocks(g *graph) {
	order, ok := weakTopological(g)
	if !ok {
		order = reachable(g)
	}
	number := make([]int, len(g.nodes))
	for i, n := range order {
		number[n] = i
	}
	out := make([]node, len(order))
	for i, old := range order {
		n := g.nodes[old]
		switch n.term {
		case termRet, termExit:
		case termIndexed:
			for j, t := range n.targets {
				n.targets[j] = number[t]
			}
		case termBranch:
			n.taken = number[n.taken]
			n.next = number[n.next]
		default:
			n.next = number[n.next]
		}
		out[i] = n
	}
	g.nodes = out
}

// reachable lists the nodes reachable from the entry in source order.
func reachable(g *graph) []int {
	seen := make([]bool, len(g.nodes))
	work := []int{0}
	seen[0] = true
	for len(work) > 0 {
		n := work[len(work)-1]
		work = work[:len(work)-1]
		g.nodes[n].succs(func(s int) {
			if !seen[s] {
				seen[s] = true
				work = append(work, s)
			}
		})
	}
	var order []int
	for i, ok := range seen {
		if ok {
			order = append(order, i)
		}
	}
	return order
}

// wto computes Bourdoncle's order. out is filled backwards.
type wto struct {
	g     *graph
	dfn   []int
	num   int
	stack []int
	out   []int
	work  int
}

const settled = int(^uint(0) >> 1)

func weakTopological(g *graph) ([]int, bool) {
	if len(g.nodes) > maxOrder {
		return nil, false
	}
	w := &wto{g: g, dfn: make([]int, len(g.nodes)), work: 1<<20 + 64*len(g.nodes)}
	w.visit(0)
	if w.work < 0 {
		return nil, false
	}
	for i, j := 0, len(w.out)-1; i < j; i, j = i+1, j-1 {
		w.out[i], w.out[j] = w.out[j], w.out[i]
	}
	return w.out, true
}

// visit returns the lowest depth-first number reachable from v on the stack.
func (w *wto) visit(v int) int {
	w.work--
	w.stack = append(w.stack, v)
	w.num++
	w.dfn[v] = w.num
	head, loop := w.num, false
	if w.work < 0 {
		return head
	}
	w.g.nodes[v].succs(func(s int) {
		low := w.dfn[s]
		if low == 0 {
			low = w.visit(s)
		}
		if low <= head {
			head, loop = low, true
		}
	})
	if head != w.dfn[v] {
		return head
	}
	w.dfn[v] = settled
	top := w.pop()
	if loop {
		for top != v {
			w.dfn[top] = 0
			top = w.pop()
		}
		w.g.nodes[v].succs(func(s int) {
			if w.dfn[s] == 0 {
				w.visit(s)
			}
		})
	}
	w.out = append(w.out, v)
	return head
}

func (w *wto) pop() int {
	v := w.stack[len(w.stack)-1]
	w.stack = w.stack[:len(w.stack)-1]
	return v
}
