package device

import (
	"errors"
	"fmt"
	"time"

	"github.com/klauspost/compress/s2"
)

/*
Bodies of frames are packed where that makes the link carry more of them: each connection decides, a
group of frames at a time, by what it has measured. As long as the link takes what comes nothing is
packed, nor tried. Where the connection spends its time in waiting for the link one frame is packed
to see what that takes and saves; packing begins if by both more would go through, and ends when
less does than without.
*/

// Groups of frames that a connection decides about.
const (
	packGroup = 4 << 20 // bytes of bodies
	// Groups from a trial that was for nothing to the next; twice as many after each, up to
	// packRare.
	packTrial = 8
	packRare  = 256
	packStay  = 32  // groups that are packed before it looks again what goes through without
	packGain  = 1.1 // how much more must go through by packing
	packLeast = 16  // of a frame a 16th at least is saved, or it is sent as it is
)

// packing decides for one connection. Its goroutine owns it.
type packing struct {
	on  bool
	try bool // the next frame is a trial
	// Bytes a second that went through unpacked when the link was what they waited for; 0: not
	// known.
	plain float64
	rest  int // groups until something is tried
	back  int // groups that were waited for last

	g     packed // of this group
	trial packed
}

// packed is what frames took.
type packed struct {
	body, wire        uint64 // bytes
	idle, pack, write time.Duration
}

func (p *packed) add(n packed) {
	p.body += n.body
	p.wire += n.wire
	p.idle += n.idle
	p.pack += n.pack
	p.write += n.write
}

// rate is how many bytes of bodies went through in a second, while there were some.
func (p *packed) rate() float64 {
	return float64(p.body) / max(time.Nanosecond, p.pack+p.write).Seconds()
}

// wants says whether a frame is to be packed.
func (p *packing) wants() bool { return p.on || p.try }

// note counts a frame that was sent, and decides behind each group.
func (p *packing) note(n packed) {
	if p.try {
		p.try, p.trial = false, n
		if p.on = p.pays(); p.on {
			p.rest = packStay
		} else {
			p.later()
		}
		p.g = packed{}
		return
	}
	if p.g.add(n); p.g.body < packGroup {
		return
	}
	g := p.g
	p.g = packed{}
	p.rest--
	waits := g.idle < g.write // for the link, more than for what is to be sent
	switch {
	case p.on && g.rate() < p.plain:
		p.on = false
		p.later()
	case p.on && p.rest <= 0:
		p.on, p.back = false, 0
	case !p.on:
		if p.plain = 0; waits {
			p.plain = g.rate()
			p.try = p.rest <= 0
		}
	}
}

// later puts the next trial off.
func (p *packing) later() {
	p.back = min(max(packTrial, 2*p.back), packRare)
	p.rest = p.back
}

// pays says whether more goes through if all frames are as the trial.
func (p *packing) pays() bool {
	if p.trial.wire >= p.trial.body || p.plain == 0 {
		return false
	}
	each := p.trial.pack.Seconds()/float64(p.trial.body) + float64(p.trial.wire)/float64(p.trial.body)/p.plain
	return 1/each > packGain*p.plain
}

// packFrame is a frame of data with its body packed, in room; nil: that saves too little.
func packFrame(b, room []byte) []byte {
	body := b[copyHeader:]
	out := append(room[:0], b[:copyHeader]...)
	p := s2.Encode(out[copyHeader:cap(out)], body)
	if len(p) > len(body)-len(body)/packLeast {
		return nil
	}
	out = out[:copyHeader+len(p)]
	if len(p) > 0 && &out[copyHeader] != &p[0] { // room was not enough, as it always is
		return nil
	}
	sizeFrame(out, uint32(len(body)))
	return out
}

// packRoom is what packFrame needs.
func packRoom() []byte { return make([]byte, 0, copyHeader+s2.MaxEncodedLen(mostCopyData)) }

var errPacked = errors.New("a body that unpacks to something else than its frame says")

// unpack makes the body what it was, in room, which holds any.
func (f *copyFrame) unpack(room []byte) error {
	if f.plain == 0 {
		return nil
	}
	if n, err := s2.DecodedLen(f.body); err != nil || n != int(f.plain) {
		return fmt.Errorf("%w: %w: %d bytes, not %d", errCopyFrame, errPacked, n, f.plain)
	}
	b, err := s2.Decode(room[:f.plain], f.body)
	if err != nil || len(b) != int(f.plain) {
		return fmt.Errorf("%w: %w: %w", errCopyFrame, errPacked, err)
	}
	f.body = b
	return nil
}
