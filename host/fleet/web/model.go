package web

import (
	"fmt"
	"time"

	"causeway/host/fleet/overview"
	"causeway/host/report"
)

// shown is what the page's template needs.
type shown struct {
	Seen
	Version                       string
	Old                           string // how old it is; "": it is new
	Waiting, Refused, Used        int
	GPUs, Away                    int
	Memory, Claimed, Compute      uint64
	Stranded                      uint64
	Leases                        []lease
	Nodes                         []node
	Claims                        []row
	MemoryPart, ComputePart, Time string
}

type node struct {
	*overview.Node
	GPUs []gpu
}

type gpu struct {
	*overview.GPU
	MemoryPart, ComputePart string // for widths: "31"
	Stranded                uint64
	Away                    bool
}

type row struct {
	*overview.Claim
	Age string
}

// lease is of a GPU of another host.
type lease struct{ Claim, State, Host, Device string }

// stale is how old an overview may be before the page says so.
const stale = 20 * time.Second

// model counts together what is shown.
func model(s Seen, now time.Time, version string) *shown {
	m := &shown{Seen: s, Version: version}
	if s.Fleet == nil {
		return m
	}
	m.Time = s.At.UTC().Format("15:04:05 UTC")
	if age := now.Sub(s.At); age > stale || s.Err != nil {
		m.Old = report.Age(age)
	}
	wanted := s.Fleet.Wanted()
	for i := range s.Fleet.Nodes {
		m.node(&s.Fleet.Nodes[i], wanted)
	}
	for i := range s.Fleet.Claims {
		m.claim(&s.Fleet.Claims[i], now)
	}
	m.MemoryPart, m.ComputePart = part(m.Claimed, m.Memory), part(m.Compute, 100*uint64(m.GPUs))
	return m
}

func (m *shown) node(n *overview.Node, wanted overview.Wanted) {
	out := node{Node: n}
	for j := range n.GPUs {
		g := &n.GPUs[j]
		away := n.Away() || len(g.Taints) > 0
		out.GPUs = append(out.GPUs, gpu{g, part(g.Claimed, g.Memory), part(g.Compute, 100), wanted.Stranded(n, g), away})
		m.GPUs++
		if away {
			m.Away++
		}
		m.Memory += g.Memory
		m.Claimed += g.Claimed
		m.Compute += g.Compute
		m.Stranded += wanted.Stranded(n, g)
	}
	m.Nodes = append(m.Nodes, out)
}

func (m *shown) claim(c *overview.Claim, now time.Time) {
	switch c.State {
	case overview.Waiting:
		m.Waiting++
	case overview.Refused:
		m.Refused++
	case overview.InUse:
		m.Used++
	}
	for _, p := range c.Parts {
		if p.Lease != "" {
			m.Leases = append(m.Leases, lease{c.Key(), p.Lease, p.Node, p.Device})
		}
	}
	m.Claims = append(m.Claims, row{c, report.Age(now.Sub(c.Created).Truncate(time.Minute))})
}

// part of a whole in hundredths, 0 to 100: a little is not nothing.
func part(n, of uint64) string {
	switch {
	case of == 0 || n == 0:
		return "0"
	case n >= of:
		return "100"
	}
	return fmt.Sprint(max(1, int(100*float64(n)/float64(of))))
}
