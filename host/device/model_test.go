package device

import (
	"bytes"
	"fmt"
	"syscall"
	"time"

	"causeway/remote"
	"causeway/virtio/fs/fstest"
	"causeway/virtio/virtiotest"
)

// model is what a session should be.
type model struct {
	state   state
	regions [playRegions]modelRegion
	parks   int
	moved   int64 // bytes of extents
	hung    bool

	// What waits for a worker that hangs.
	stuck time.Time // since when; zero: nothing waits
	by    byte      // 'e': the end of region which, 'p': a park, 's': the start
	which int
	limit time.Duration // then the worker is ended

	starter time.Time // since when a start waits for loans; zero: none does
}

type modelRegion struct {
	declared, ending, sent bool
	pieces                 [playPieces]modelPiece
}

type modelPiece struct {
	places [2][]virtiotest.Buffer
	place  int
	call   *fstest.Call
	lent   bool
	ever   bool // since the region was declared
	since  time.Time
}

// count is how many pieces a region has.
func count(id int) int {
	if id == 0 {
		return 2
	}
	return id
}

func sizeOfPiece(id int) uint64 {
	if id == 0 {
		return remote.Region0Size / 2
	}
	return playPages * pageSize
}

func (r *modelRegion) complete(id int) bool {
	for i := range count(id) {
		if !r.pieces[i].lent {
			return false
		}
	}
	return r.declared
}

// forget is the end of a region, or its beginning. Its pages stay the program's.
func (r *modelRegion) forget(declared bool) {
	old := r.pieces
	*r = modelRegion{declared: declared}
	for i := range old {
		r.pieces[i].places = old[i].places
	}
}

// busy: something waits for a worker that hangs, and what follows waits behind it.
func (m *model) busy() bool { return !m.stuck.IsZero() }

func (m *model) wait(by byte, which int, since time.Time, limit time.Duration) {
	m.stuck, m.by, m.which, m.limit = since, by, which, limit
}

// endLoans: all pages go back.
func (m *model) endLoans() {
	for id := range m.regions {
		for i := range m.regions[id].pieces {
			m.regions[id].pieces[i].lent = false
		}
	}
}

func (m *model) die() {
	if m.busy() && m.by == 'e' {
		m.regions[m.which].forget(false)
	}
	m.state, m.stuck, m.starter = dead, time.Time{}, time.Time{}
	m.endLoans()
}

// park is the turn of a park.
func (m *model) park(now time.Time) {
	switch {
	case m.hung:
		m.wait('p', 0, now, silence)
	default:
		m.state = parked
		m.parks++
		m.endLoans()
	}
}

// lapse: a loan has not been renewed.
func (m *model) lapse(at time.Time) {
	switch {
	case m.state == starting:
		m.die()
	case m.state != running:
		m.endLoans()
	default:
		m.state = parking
		if !m.busy() {
			m.park(at)
		}
	}
}

// next is when something happens by itself, and what; zero: nothing does.
func (m *model) next() (at time.Time, what func(at time.Time)) {
	by := func(t time.Time, f func(time.Time)) {
		if at.IsZero() || t.Before(at) {
			at, what = t, f
		}
	}
	if m.state == dead {
		return at, nil
	}
	if m.busy() {
		by(m.stuck.Add(m.limit), func(time.Time) { m.die() })
	}
	if !m.starter.IsZero() {
		by(m.starter.Add(loanWait), func(time.Time) { m.starter = time.Time{} })
	}
	if m.state == parking {
		return at, what
	}
	for id := range m.regions {
		for i := range m.regions[id].pieces {
			if p := &m.regions[id].pieces[i]; p.lent {
				at := p.since.Add(loanTerm)
				if started := m.stuck.Add(silence); m.state == starting && started.After(at) {
					at = started
				}
				by(at, m.lapse)
			}
		}
	}
	return at, what
}

// pass lets time go on in the model.
func (m *model) pass(now time.Time) {
	for {
		at, what := m.next()
		if what == nil || at.After(now) {
			return
		}
		what(at)
	}
}

// late bounds how much later than in the model things happen by themselves.
const late = 3 * shortestNap

// catchUp waits until the session has done what is due in the model, and holds them against each
// other.
func (p *player) catchUp() {
	for range 20 {
		at, _ := p.model.next()
		p.model.pass(time.Now())
		if at.IsZero() || at.After(time.Now()) {
			break
		}
		p.sleep(late)
	}
	p.compare()
}

// send: the worker is told of regions that are complete.
func (m *model) send() {
	if m.busy() || m.state != running && m.state != parked {
		return
	}
	all := true
	for id := range m.regions {
		switch r := &m.regions[id]; {
		case r.complete(id):
			r.sent = true
		case r.sent && !r.ending:
			all = false
		}
	}
	if m.state == parked && all {
		m.state = running
	}
}

func (m *model) startIfLent() {
	if m.starter.IsZero() || m.state != opening || !m.regions[0].complete(0) {
		return
	}
	m.starter = time.Time{}
	m.regions[0].sent = true
	m.state = running
	if m.hung {
		m.state = starting
		m.wait('s', 0, time.Now(), startLimit)
	}
	m.send()
}

// unstick: the worker did everything that it was told.
func (m *model) unstick() {
	if !m.busy() {
		return
	}
	m.stuck = time.Time{}
	switch m.by {
	case 'e':
		m.regions[m.which].forget(false)
	case 's':
		m.state = running
	}
	if m.state == parking {
		m.park(time.Now())
	}
	m.send()
}

// revoked: all pages were taken back.
func (m *model) revoked() {
	switch {
	case m.state == idle || m.state == dead:
	case m.state == starting, m.busy():
		m.die()
	case m.hung && (m.state == running || m.state == parking):
		m.die()
	case m.state == running:
		m.park(time.Now())
	default:
		m.starter = time.Time{}
		m.endLoans()
	}
}

// end ends a region.
func (p *player) end(id int) {
	m := &p.model
	if m.busy() {
		return // a program's thread waits in the kernel, and holds the file
	}
	r := &m.regions[id]
	ok := r.declared && !r.ending
	c := p.control(remote.Hello{Type: remote.MsgRegionEnd, Region: uint32(id)})
	switch {
	case !ok:
	case id == 0:
		r.ending = true
		m.die()
	case r.sent && m.hung && m.state < dead:
		r.ending = true
		m.wait('e', id, time.Now(), silence)
		p.pending(p.last+": end of a region in use", c)
		return
	default:
		r.forget(false)
		m.send()
	}
	p.answerOf(c, ok)
}

// extent copies bytes to or from a region.
func (p *player) extent(id int, arg byte) {
	m, r := &p.model, &p.model.regions[id]
	const size = 5000
	off, in := uint64(arg>>2&0x1f)*1000, arg&0x80 != 0
	buffer := p.pages(2)
	buffer[0].Bytes = buffer[0].Bytes[:size]
	for i := range buffer[0].Bytes {
		buffer[0].Bytes[i] = byte(i*7) ^ arg
	}
	sent := bytes.Clone(buffer[0].Bytes)
	submit := p.file.Read
	if in {
		submit = p.file.Write
	}
	c, err := submit(0, int64(remote.FileExtent|uint64(id)<<44|off), buffer)
	if err != nil {
		p.t.Fatal(err)
	}
	p.settle()
	end := off + size
	lent := true
	for i := range count(id) {
		first := uint64(i) * sizeOfPiece(id)
		lent = lent && (r.pieces[i].lent || end <= first || off >= first+sizeOfPiece(id))
	}
	want := syscall.Errno(0)
	switch {
	case m.state == dead:
		want = syscall.EPIPE
	case id == 0 || !r.declared || r.ending || end > uint64(count(id))*sizeOfPiece(id):
		want = syscall.EINVAL
	case m.state != running || !lent:
		want = syscall.EAGAIN
	}
	p.want(fmt.Sprintf("%s: extent of %d at %d of region %d in state %v", p.last, size, off, id, m.state), c, want)
	if want != 0 {
		return
	}
	m.moved += size
	var bytesThere []byte
	for i := range count(id) {
		bytesThere = append(bytesThere, r.pieces[i].places[r.pieces[i].place][0].Bytes...)
	}
	if !bytes.Equal(bytesThere[off:end], buffer[0].Bytes) || in && !bytes.Equal(sent, buffer[0].Bytes) {
		p.t.Errorf("%s: bytes differ on both sides", p.last)
	}
}

// compare holds the session against the model.
func (p *player) compare() {
	m, s := &p.model, p.session()
	if s == nil {
		p.t.Fatalf("%s: there is no session", p.last)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	bad := func(format string, args ...any) { p.t.Errorf("%s: "+format, append([]any{p.last}, args...)...) }
	if s.state != m.state {
		bad("the session is %v, the model %v", s.state, m.state)
	}
	if n := s.moved.Load(); n != m.moved {
		bad("%d bytes of extents are counted, not %d", n, m.moved)
	}
	if (s.starter != nil) != !m.starter.IsZero() && m.state != dead {
		// Of a dead session it is answered by the next tick.
		bad("a start waits: %v", s.starter != nil)
	}
	regions, pieces, bytes := 0, 0, uint64(0)
	for id := range m.regions {
		r, have := &m.regions[id], s.regions[uint32(id)]
		if r.declared != (have != nil) {
			bad("region %d is there: %v", id, have != nil)
		}
		lent := uint64(0)
		for i := range count(id) {
			pc := &r.pieces[i]
			if pc.call != nil && pc.lent == done(pc.call) {
				bad("piece %d of region %d is lent: %v", i, id, !done(pc.call))
			}
			if pc.lent {
				lent += sizeOfPiece(id)
			}
			if r.declared && pc.ever {
				pieces++
			}
		}
		if !r.declared {
			continue
		}
		regions++
		bytes += uint64(count(id)) * sizeOfPiece(id)
		if have != nil && have.lent != lent {
			bad("%#x bytes of region %d are lent, counted are %#x", lent, id, have.lent)
		}
	}
	if s.declared != bytes || s.pieces != pieces || len(s.regions) != regions {
		bad("counted are %d regions of %#x bytes in %d pieces; there are %d of %#x in %d", len(s.regions), s.declared, s.pieces, regions, bytes, pieces)
	}
	if err := s.countsPromises(); err != nil {
		bad("%v", err)
	}
	p.compareWorker(bad)
}

// compareWorker holds what the worker knows against the model.
func (p *player) compareWorker(bad func(string, ...any)) {
	m, w := &p.model, p.workers.last()
	if w == nil || m.state <= opening || m.hung {
		return
	}
	parks := 0
	for _, w := range p.workers.started[p.first:] {
		n, _ := w.counts()
		parks += n
	}
	if parks != m.parks {
		bad("parked %d times, the model %d", parks, m.parks)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if m.state == dead != w.ended {
		bad("the worker has ended: %v", w.ended)
	}
	if m.state == parked != w.parked && m.state != dead {
		bad("the worker is parked: %v", w.parked)
	}
	if m.state != running {
		return
	}
	for id := range m.regions {
		r, knows := &m.regions[id], w.regions[uint32(id)]
		if !r.complete(id) || r.ending {
			continue
		}
		for i := range count(id) {
			pc := &r.pieces[i]
			if knows == nil || fmt.Sprint(knows.pieces[uint64(i)*sizeOfPiece(id)]) != extentsOf(pc.places[pc.place]) {
				bad("of piece %d of region %d the worker knows other pages", i, id)
				return
			}
		}
	}
}
