package verbs

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/bits"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"causeway/remote"
	"causeway/remote/frame"
)

/*
Queue pairs for copies beside the one of the frames (rails), over as many pairs of ports as there
are. Where both ends want some, they agree on them inside of TLS once the first queue pair carries
bytes: the client says which it has, the server chooses a port of its own for each and says so, the
client says which of them it has connected, and the server, once its adapter has sent something by
each, which are used. What comes to nothing on the way is not used, and nothing else fails of it.
*/

// railsMask says which are connected, and which are used, as a mask of their numbers.
const railsMask = "CWVMASK\x01"

// railLimit is how long the server's adapter may take to send something by each.
const railLimit = 2 * time.Second

// errNoRail is why a queue pair is not used of which the other end has said so.
var errNoRail = errors.New("the other end has none there")

// place is a port with the address that queue pairs have there.
type place struct {
	adapter Adapter
	gid     GID
}

func (p place) String() string {
	port := p.adapter.Port()
	return fmt.Sprintf("%s/%d", port.Device, port.Number)
}

// places are the ports that copies may go by, the frames' first: of its link, and of the
// connection's kind of address.
func places(first place, adapters []Adapter, local netip.Addr) []place {
	all := []place{first}
	for _, a := range adapters {
		p := a.Port()
		if a == first.adapter || p.Link != first.adapter.Port().Link {
			continue
		}
		i := slices.IndexFunc(p.GIDs, func(g GID) bool { return p.Link == InfiniBand || g.RoCEv2 && alike(g.Addr, local) })
		if i >= 0 {
			all = append(all, place{a, p.GIDs[i]})
		}
	}
	return all
}

// alike reports whether a GID may be reached from where local is: both IPv4's, or neither, and more
// than the link's own.
func alike(gid [16]byte, local netip.Addr) bool {
	a := netip.AddrFrom16(gid)
	return a.Is4In6() == local.Unmap().Is4() && !a.Unmap().IsLinkLocalUnicast()
}

// near reports whether two addresses look like those of one network, whose mask an address does not
// tell.
func near(l Link, a, b [16]byte) bool {
	n := 8 // InfiniBand's subnet, and IPv6's usual one
	if l == Ethernet && netip.AddrFrom16(a).Is4In6() {
		n = 15
	}
	return bytes.Equal(a[:n], b[:n])
}

// alikeness is how many bits two addresses begin with in common.
func alikeness(a, b [16]byte) int {
	for i := range a {
		if a[i] != b[i] {
			return i*8 + bits.LeadingZeros8(a[i]^b[i])
		}
	}
	return 128
}

// wanted is how many rails an end would have, which wants so many queue pairs in all; 0: one for
// each port.
func wanted(pairs, ports int) int {
	if pairs == 0 {
		pairs = ports
	}
	return min(max(pairs-1, 0), mostRails)
}

// agreeRails has both ends agree on queue pairs for copies. An error is the connection's, or the
// other end broke a rule.
func (u *upgrade) agreeRails(own Offer, peer Peer) error {
	most := min(own.Rails, peer.offer.Rails)
	reach := peer.offer.Reach && u.client || own.Reach && !u.client
	switch {
	case most == 0 || !reach:
		return u.keep(0)
	case u.client:
		return u.askRails(most, peer)
	}
	return u.answerRails(most, peer)
}

// askRails is the client's part.
func (u *upgrade) askRails(most int, peer Peer) error {
	var own []RailOffer
	for i := range most {
		p := u.places[(i+1)%len(u.places)]
		if number, ok := u.number(p.adapter); ok {
			if r, o := u.newRail(p, number); r != nil {
				u.rails, own = append(u.rails, r), append(own, o)
			}
		}
	}
	if _, err := u.base.Write(AppendRails(nil, own)); err != nil {
		return err
	}
	theirs, err := ReadRails(u.base, len(own), true, peer)
	if err != nil {
		return err
	}
	mask := uint64(0)
	for i, r := range u.rails {
		if r.connect(own[i], theirs[i]) {
			mask |= 1 << i
		}
	}
	if _, err := u.base.Write(word(railsMask, mask)); err != nil {
		return err
	}
	used, err := u.readMask(mask)
	if err != nil {
		return err
	}
	return u.keep(used)
}

// answerRails is the server's.
func (u *upgrade) answerRails(most int, peer Peer) error {
	theirs, err := ReadRails(u.base, most, false, peer)
	if err != nil {
		return err
	}
	own, uses, mask := make([]RailOffer, len(theirs)), map[Adapter]int{u.places[0].adapter: 1}, uint64(0)
	for i, t := range theirs {
		p := choosePlace(u.places, uses, t.offer.Link, t.offer.GID)
		r, o := u.newRail(p, t.offer.Adapter)
		if r == nil {
			u.rails = append(u.rails, &rail{place: p, dead: true, why: errors.New("no queue pair or memory for it")})
			continue
		}
		u.rails = append(u.rails, r)
		if r.connect(o, t) {
			own[i] = o
			mask |= 1 << i
			uses[p.adapter]++
		}
	}
	if _, err := u.base.Write(AppendRails(nil, own)); err != nil {
		return err
	}
	if mask, err = u.readMask(mask); err != nil {
		return err
	}
	mask = u.tryRails(mask)
	if _, err := u.base.Write(word(railsMask, mask)); err != nil {
		return err
	}
	return u.keep(mask)
}

// choosePlace is the port for a queue pair of the other end's: of those that look like its
// network's, or of all, the least used, and of these the one whose address is most like its own, as
// the two ends of a cable may have.
func choosePlace(places []place, uses map[Adapter]int, l Link, gid [16]byte) place {
	return slices.MinFunc(places, func(a, b place) int {
		if x, y := near(l, a.gid.Addr, gid), near(l, b.gid.Addr, gid); x != y {
			if x {
				return -1
			}
			return 1
		}
		if d := uses[a.adapter] - uses[b.adapter]; d != 0 {
			return d
		}
		return alikeness(b.gid.Addr, gid) - alikeness(a.gid.Addr, gid)
	})
}

// number is that of the client's adapter: memory is registered with a device once, whatever its
// ports. A session that goes on has the numbers that it had, as memory may be granted by them.
func (u *upgrade) number(a Adapter) (int, bool) {
	i := slices.IndexFunc(u.granters, func(g Adapter) bool { return g != nil && g.Port().Device == a.Port().Device })
	switch {
	case i >= 0:
		return i, true
	case u.again || len(u.granters) == frame.MostKeys:
		return 0, false
	}
	u.granters = append(u.granters, a)
	return len(u.granters) - 1, true
}

// newRail makes a queue pair at a port, and what is said of it. nil: there is no room for it.
func (u *upgrade) newRail(p place, number int) (*rail, RailOffer) {
	q, err := p.adapter.NewQueue(QueueSize{Send: railPieces + 1, Receive: 1})
	if err != nil {
		return nil, RailOffer{}
	}
	r := &rail{place: p, number: number, queue: q, spin: spinning()}
	if !u.client {
		if err := r.lay(p.adapter); err != nil {
			_ = q.Close() // nothing has used it
			return nil, RailOffer{}
		}
	}
	port := p.adapter.Port()
	o := RailOffer{Link: port.Link, MTU: port.MTU, LID: port.LID, Queue: q.Number(), PSN: newPSN(), GID: p.gid.Addr}
	if u.client {
		o.Adapter = number
	}
	return r, o
}

func newPSN() uint32 {
	var psn [4]byte
	_, _ = rand.Read(psn[:]) // does not fail
	return binary.LittleEndian.Uint32(psn[:]) & (1<<24 - 1)
}

// connect readies a queue pair for the other end's.
func (r *rail) connect(own RailOffer, peer RailPeer) bool {
	switch {
	case peer.offer.Queue == 0:
		r.why = errNoRail
	case peer.offer.Link != own.Link:
		r.why = fmt.Errorf("this end has %v, the other %v", own.Link, peer.offer.Link)
	default:
		r.why = r.queue.Connect(Path{GIDIndex: r.place.gid.Index, MTU: min(own.MTU, peer.offer.MTU), OwnPSN: own.PSN, Peer: peer.peer()})
	}
	return r.why == nil
}

// readMask reads which of those in mask the other end has, too.
func (u *upgrade) readMask(mask uint64) (uint64, error) {
	var b [endSize]byte
	if _, err := io.ReadFull(u.base, b[:]); err != nil {
		return 0, err
	}
	n := binary.LittleEndian.Uint64(b[8:])
	if string(b[:8]) != railsMask || n&^mask != 0 {
		return 0, remote.Violation("%x, of the queue pairs for copies %#x", b, mask)
	}
	return n, nil
}

// tryRails has the adapter send something by each, at once, and returns which went through.
func (u *upgrade) tryRails(mask uint64) uint64 {
	var late atomic.Bool
	over := func() error {
		if late.Load() {
			return fmt.Errorf("nothing comes through within %v", railLimit)
		}
		return nil
	}
	kicked := make(chan struct{})
	timer := time.AfterFunc(railLimit, func() {
		defer close(kicked)
		late.Store(true)
		for i, r := range u.rails {
			if mask&(1<<i) != 0 {
				r.queue.Kick()
			}
		}
	})
	defer func() {
		if !timer.Stop() {
			<-kicked // they may be closed next
		}
	}()
	for i, r := range u.rails {
		if mask&(1<<i) != 0 {
			r.why = r.post(Write, 0, 0, 0, 0)
		}
	}
	tried := mask
	for i, r := range u.rails {
		if mask&(1<<i) == 0 {
			continue
		}
		if r.why == nil {
			r.why = r.await(r.posted, over)
		}
		if r.why != nil {
			tried &^= 1 << i
		}
	}
	return tried
}

// keep has those in the mask used, and nothing be left of the others.
func (u *upgrade) keep(mask uint64) error {
	live := map[int]bool{0: true}
	for i, r := range u.rails {
		if mask&(1<<i) != 0 {
			live[r.number] = true
			continue
		}
		if r.why == nil {
			r.why = errNoRail
		}
		if r.dead {
			continue
		}
		r.dead = true
		if err := r.close(); err != nil {
			return err
		}
	}
	for i := range u.granters { // those that no memory is to be registered with keep their number
		if !live[i] {
			u.granters[i] = nil
		}
	}
	return nil
}
