package device

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"causeway/remote"
	"causeway/virtio/fs/fstest"
	"causeway/virtio/virtiotest"
)

// FuzzSession reads its input as what a guest and a worker do, an operation and its operand in two
// bytes, and holds the device against a model of what a session promises:
//
//   - no page goes back to the guest's kernel while the worker may touch it (fakeWorker.check, at each message and at its end);
//   - a loan ends when its term does, or the worker has been silent for too long and is ended; never before;
//   - a session whose pages are all lent runs, with the pages that are lent now, and has been parked as often as the model says;
//   - an extent is copied to and from what is lent, or refused;
//   - at its end nothing is kept.
func FuzzSession(f *testing.F) {
	lib := f.TempDir()
	if err := os.WriteFile(filepath.Join(lib, "libcuda.so.1"), []byte("ELF, so to speak"), 0o644); err != nil {
		f.Fatal(err)
	}
	for _, s := range []string{"life", "lapse", "hung", "moved", "hostile"} {
		f.Add([]byte(sequences[s]))
	}
	f.Fuzz(func(t *testing.T, in []byte) { runSequence(t, lib, in[:min(len(in), 400)]) })
}

// sequences are seeds: see play.
var sequences = map[string]string{
	"life":    "h\x00L\x00s\x00d\x01l\x10l\x11t\x05L\x00x\x11x\x91t\x05L\x00e\x01l\x10d\x01L\x00c\x00h\x00L\x00s\x00",
	"lapse":   "h\x00L\x00s\x00d\x01d\x02L\x00t\x07L\x00x\x11t\x04w\x01k\x01t\x07v\x00L\x00l\x10t\x06l\x10v\x00L\x00",
	"hung":    "h\x00L\x00s\x00d\x01L\x00g\x00t\x06t\x04g\x01L\x00g\x00e\x01x\x01x\x81t\x06c\x00h\x00L\x00g\x00s\x00t\x07g\x01",
	"moved":   "h\x00L\x00s\x00d\x03L\x00b\x00t\x07v\x00b\x00L\x00e\x03b\x00q\x00L\x00c\x00",
	"hostile": "h\x00s\x00t\x05L\x00d\x01a\x01a\x23a\x31L\x00a\x11v\x00a\x12d\x01e\x05e\x01l\x10",
}

// TestSequences runs sequences by chance, the same every time.
func TestSequences(t *testing.T) {
	lib := library(t)
	n := 300
	if testing.Short() {
		n = 30
	}
	for seed := range n {
		r := rand.New(rand.NewPCG(uint64(seed), 1))
		in := []byte("h\x00L\x00s\x00")
		for len(in) < 160 {
			in = append(in, "ttttLLLllldddexxwkggvbaaqcs"[r.IntN(27)], byte(r.IntN(256)))
		}
		if t.Failed() {
			return
		}
		t.Run(fmt.Sprint(seed), func(t *testing.T) { runSequence(t, lib, in) })
	}
}

func runSequence(t *testing.T, lib string, in []byte) {
	synctest.Test(t, func(t *testing.T) {
		p := &player{kernel: newKernel(t, quietDevice(lib))}
		t.Cleanup(p.halt)
		p.reopen()
		for ; len(in) >= 2 && !t.Failed(); in = in[2:] {
			p.last = fmt.Sprintf("%c %#x", in[0], in[1])
			p.play(in[0], in[1])
			p.settle()
			p.catchUp()
		}
		if w := p.workers.last(); w != nil {
			w.hang(false)
		}
	})
}

// player is a guest and its worker that follow a sequence.
type player struct {
	*kernel
	model model
	start *fstest.Call // the WRITE that starts the session
	first int          // the session's first worker among all
	last  string       // operation
}

// Regions have up to three pieces of two pages; region 0 has two halves. Each piece has pages in
// two places.
const (
	playRegions = 4
	playPieces  = 3
	playPages   = 2
	playSlot    = 63
)

// reopen closes the session and opens another.
func (p *player) reopen() {
	if p.file != nil {
		// A kernel sends RELEASE when no process has the file any more.
		if w := p.workers.last(); w != nil {
			w.hang(false)
		}
		p.settle()
		if err := p.file.Close(); err != nil {
			p.t.Error(err)
		}
		p.sleep(stopGrace)
	}
	p.open()
	p.first = len(p.workers.started)
	old := p.model.regions
	p.model = model{}
	for id := range old {
		for i := range count(id) {
			pc := &p.model.regions[id].pieces[i]
			if pc.places = old[id].pieces[i].places; pc.places[0] == nil {
				n := int(sizeOfPiece(id) / pageSize)
				pc.places = [2][]virtiotest.Buffer{p.pages(n), p.pages(n)}
			}
		}
	}
}

// play does one operation.
func (p *player) play(op, arg byte) {
	m := &p.model
	id := int(arg) % playRegions
	switch op {
	case 'h':
		ok := m.state == idle
		if m.busy() {
			return // a guest's kernel writes one message at a time
		}
		p.answerOf(p.control(remote.Hello{Type: remote.MsgHello, Va: 0x7f0000000000, Size: remote.Region0Size}), ok)
		if ok {
			m.state, m.regions[0].declared = opening, true
		}
	case 's':
		if m.state != opening || !m.starter.IsZero() {
			p.answerOf(p.control(remote.Hello{Type: remote.MsgStart}), false)
			return
		}
		m.starter = time.Now()
		p.start = p.control(remote.Hello{Type: remote.MsgStart})
		m.startIfLent()
	case 'd':
		if m.busy() {
			return
		}
		r := &m.regions[id]
		ok := m.state != idle && m.state < dead && id != 0 && !r.declared
		p.answerOf(p.control(remote.Hello{Type: remote.MsgRegion, Region: uint32(id), Va: 0x7e0000000000 + uint64(id)<<32, Size: uint64(count(id)) * sizeOfPiece(id)}), ok)
		if ok {
			r.forget(true)
		}
	case 'e':
		p.end(id)
	case 'l':
		p.loan(id, int(arg>>4)%count(id), int(arg>>7))
	case 'L': // as a program does that lives: everything, at the place where it is
		for id := range m.regions {
			for i := range count(id) {
				if r := &m.regions[id]; r.declared && !r.ending {
					p.loan(id, i, r.pieces[i].place)
				}
			}
		}
	case 'a':
		p.attack(id, arg>>4)
	case 't':
		p.sleep([]time.Duration{0, time.Millisecond, 9 * time.Millisecond, 100 * time.Millisecond, 500 * time.Millisecond, time.Second,
			1600 * time.Millisecond, 2 * time.Second}[arg%8])
	case 'g':
		if w := p.workers.last(); w != nil && !w.ended {
			w.hang(arg%2 == 0)
			m.hung = arg%2 == 0
			if !m.hung {
				p.settle()
				m.unstick()
			}
		}
	case 'q':
		if w := p.workers.last(); w != nil && m.state > idle && m.state < dead {
			w.hang(false)
			p.settle()
			m.hung = false
			m.unstick()
			w.exit(errors.New("crashed"))
			p.settle()
			m.die()
		}
	case 'w':
		p.read(waitAt(uint32(arg)))
	case 'k':
		if w := p.workers.last(); w != nil {
			w.wake(uint32(arg))
		}
	case 'x':
		p.extent(id, arg)
	case 'v':
		for range 2 {
			// Something that can be taken back: a wake-up that came first ends one of them.
			p.read(waitAt(playSlot))
		}
		p.d.fs.CancelPending()
		p.settle()
		m.revoked()
	case 'b':
		if !m.busy() {
			n, err := p.d.Rebuild(p.t.Context())
			if want := m.state == running && !m.hung; want != (n == 1) {
				p.t.Errorf("rebuilt %d in state %v: %v", n, m.state, err)
			}
		}
	case 'c':
		p.reopen()
	}
}

// read submits a READ that lends nothing.
func (p *player) read(off int64) {
	if _, err := p.file.Read(0, off, p.pages(1)); err != nil {
		p.t.Fatal(err)
	}
}

// answerOf checks the answer to a WRITE that waits for nobody.
func (p *player) answerOf(c *fstest.Call, ok bool) {
	p.t.Helper()
	if !done(c) {
		p.t.Errorf("%s: no answer in state %v", p.last, p.model.state)
		return
	}
	if errno := p.answered(c); ok != (errno == 0) {
		p.t.Errorf("%s: answered %v, want success %v", p.last, errno, ok)
	}
}

// loan submits a READ as a kernel does that knows its pages: those that are lent stay where they
// are.
func (p *player) loan(id, i, place int) {
	m := &p.model
	r := &m.regions[id]
	pc := &r.pieces[i]
	if pc.lent {
		place = pc.place
	}
	off := uint64(i) * sizeOfPiece(id)
	before := pc.call
	c := p.lend(loanAt(uint32(id), off), pc.places[place])
	switch {
	case m.state >= dead:
		p.want(p.last+": loan of a dead session", c, syscall.EPIPE)
	case !r.declared:
		p.want(p.last+": loan of no region", c, syscall.EINVAL)
	case r.ending, m.state == parking && !pc.lent:
		p.want(p.last+": loan that ends", c, 0)
	default:
		if pc.lent {
			p.want(p.last+": loan that was renewed", before, 0)
		}
		pc.call, pc.lent, pc.ever, pc.place, pc.since = c, true, true, place, time.Now()
		m.startIfLent()
		m.send()
		if m.state < dead { // a start may have failed
			p.pending(p.last+": loan", c)
		}
	}
}

// attack submits a READ that must change nothing.
func (p *player) attack(id int, how byte) {
	m := &p.model
	r := &m.regions[id]
	pages := r.pieces[0].places[1-r.pieces[0].place]
	size := sizeOfPiece(id)
	off := uint64(0)
	switch how % 5 {
	case 0:
		off = pageSize // over the border of two pieces, or of the region
	case 1:
		off = uint64(count(id)) * size
	case 2:
		off = 100
	case 3:
		pages = []virtiotest.Buffer{{GPA: pages[0].GPA, Bytes: pages[0].Bytes[:size-100]}}
	case 4:
		if !r.pieces[0].lent {
			return // these pages are as good as others
		}
	}
	if how%5 == 0 && !r.pieces[0].ever && (count(id) < 2 || !r.pieces[1].ever) && count(id) > 1 {
		return // it overlaps nothing: a loan as good as others
	}
	want := syscall.EINVAL
	switch {
	case m.state >= dead:
		want = syscall.EPIPE
	case r.declared && r.ending, r.declared && m.state == parking && !(off == 0 && r.pieces[0].lent):
		want = 0 // but for what would renew a loan, which is judged also now
	}
	p.want(p.last+": hostile loan", p.lend(loanAt(uint32(id), off), pages), want)
}
