// Package swap decides who has room on a GPU of whose memory more is promised than there is. It is
// a pure function of what the vGPUs' device processes say; the caller takes one step after the
// other, and asks anew.
//
// The sum of all room is never more than the GPU has. Who needs room gets, in the order in which
// the needs came: what is free; what others have room for and do not use; the place of the session
// that was idle for longest; of one that waits itself and came later; and at last, once it has
// waited for a turn, of one that works and has had its turn, first of a vGPU that has more than its
// part. A session that was just brought back is left alone for a while, so that two that take turns
// get something done in theirs.
package swap

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"causeway/host/api"
)

// Times of a policy.
const (
	Idle = 300 * time.Millisecond // a program that did nothing for so long does nothing
	// How long a session is left alone that was brought to the GPU.
	Stay = time.Second
	// How long a program works before one that waits for as long takes its place.
	Turn     = 2 * time.Second
	Patience = 30 * time.Second // how long an allocation waits when nothing can be suspended
)

// grain is how much room is given at once, where there is that much.
const grain = 16 << 20

// VGPU is one on the GPU.
type VGPU struct {
	Key string
	api.RoomStatus
	// Fixed: it is not asked to make room, and may use all of its limit.
	Fixed bool
}

// GPU is a GPU, with all of its vGPUs.
type GPU struct {
	Memory     uint64 // bytes that they may have together
	Overcommit float64
	VGPUs      []VGPU
}

// Kind of a Step.
type Kind int

// Kinds.
const (
	None    Kind = iota // nobody needs anything
	Give                // set a vGPU's room
	Suspend             // a session
	Deny                // tell a session that there is no room to be had
	Wait                // and look again
)

// Step is what to do next.
type Step struct {
	Kind    Kind
	Key     string
	Room    uint64
	Session uint64
	Why     string
}

// wanted is the need whose turn it is.
type wanted struct {
	api.Need
	of *VGPU
}

// held is what a vGPU has room for or uses.
func (v *VGPU) held() uint64 {
	if v.Fixed && v.Limit != 0 {
		return max(v.Limit, v.Used)
	}
	return max(v.Room, v.Used)
}

// Next is what to do next.
func Next(g *GPU) Step {
	w, ok := first(g)
	if !ok {
		return Step{}
	}
	free := g.Memory
	for i := range g.VGPUs {
		if v := &g.VGPUs[i]; v != w.of {
			free -= min(free, v.held())
		}
	}
	need := w.of.Used + w.Bytes
	if need <= free {
		return Step{Kind: Give, Key: w.of.Key, Room: max(need, min(free, (need+grain-1)/grain*grain))}
	}
	for i := range g.VGPUs {
		if v := &g.VGPUs[i]; v != w.of && !v.Fixed && v.Room > max(v.Used, 1) {
			return Step{Kind: Give, Key: v.Key, Room: v.Used}
		}
	}
	lacks := need - free
	if could := w.others(g); could < lacks {
		return w.deny("%d bytes are wanted, %d more than are free, and all that could be suspended holds %d", w.Bytes, lacks, could)
	}
	if v, s := victim(g, w); s != nil {
		return Step{Kind: Suspend, Key: v.Key, Session: s.ID}
	}
	if w.Waited > Patience {
		return w.deny("%d bytes are wanted, and within %v nothing could be suspended", w.Bytes, Patience)
	}
	return Step{Kind: Wait}
}

// first is the need that has waited for longest. Needs of one vGPU are in their order.
func first(g *GPU) (w wanted, ok bool) {
	for i := range g.VGPUs {
		v := &g.VGPUs[i]
		if len(v.Needs) > 0 && (!ok || v.Needs[0].Waited > w.Waited) {
			w, ok = wanted{v.Needs[0], v}, true
		}
	}
	return w, ok
}

// victim is the session that is to make room; nil: none is now.
func victim(g *GPU, w wanted) (of *VGPU, best *api.RoomSession) {
	type candidate struct {
		v    *VGPU
		s    *api.RoomSession
		rank int // the lower the better
		by   time.Duration
	}
	var list []candidate
	for i := range g.VGPUs {
		v := &g.VGPUs[i]
		for j := range v.Sessions {
			s := &v.Sessions[j]
			if v.Fixed || s.Stays || s.Bytes == 0 || v == w.of && s.ID == w.Session {
				continue
			}
			c := candidate{v: v, s: s}
			switch {
			case s.Waits:
				c.rank, c.by = 1, s.Here
			case s.Idle >= Idle && s.Here >= Stay:
				c.rank, c.by = 0, s.Idle
			case s.Here >= Turn && w.Waited >= Turn && v.above(g.Overcommit):
				c.rank, c.by = 2, s.Here
			case s.Here >= Turn && w.Waited >= Turn:
				c.rank, c.by = 3, s.Here
			default:
				continue
			}
			list = append(list, c)
		}
	}
	if len(list) == 0 {
		return nil, nil
	}
	c := slices.MinFunc(list, func(a, b candidate) int {
		return cmp.Or(cmp.Compare(a.rank, b.rank), cmp.Compare(b.by, a.by), cmp.Compare(a.v.Key, b.v.Key), cmp.Compare(a.s.ID, b.s.ID))
	})
	return c.v, c.s
}

// above says whether a vGPU uses more than its part of a GPU on which all use what they may.
func (v *VGPU) above(overcommit float64) bool {
	return v.Limit == 0 || float64(v.Used) > float64(v.Limit)/max(overcommit, 1)
}

// others is what all sessions hold that could make room, if they all did.
func (w *wanted) others(g *GPU) (could uint64) {
	for i := range g.VGPUs {
		v := &g.VGPUs[i]
		for _, s := range v.Sessions {
			if !v.Fixed && (v != w.of || s.ID != w.Session) {
				could += s.Bytes
			}
		}
	}
	return could
}

// deny refuses an allocation. A session that is suspended waits on: it has done nothing wrong.
func (w *wanted) deny(format string, args ...any) Step {
	if w.Back {
		return Step{Kind: Wait}
	}
	return Step{Kind: Deny, Key: w.of.Key, Session: w.Session, Why: fmt.Sprintf(format, args...)}
}
