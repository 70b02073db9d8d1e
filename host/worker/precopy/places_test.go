package precopy

import (
	"bytes"
	"context"
	"errors"
	"io"
	"maps"
	"strings"
	"testing"

	"causeway/host/driver"
)

// places are a driver's, in which memory waits for the operations that allocate it.
type places struct {
	t testing.TB
	// What operations will have allocated when the last round comes; nil: whatever is said to be.
	session  memory
	none     bool // nothing can wait here
	expected memory
	landed   memory
	settled  bool
}

var _ driver.Expecter = (*places)(nil)

// Expects implements driver.Expecter.
func (*places) Expects() bool { return true }

// Expect implements driver.Expecter: of some memory it says that it cannot.
func (p *places) Expect(addr, size uint64) error {
	if p.none || addr%7 == 0 {
		return errors.ErrUnsupported
	}
	for at, b := range p.expected {
		if addr < at+uint64(len(b)) && at < addr+size {
			p.t.Errorf("%#x+%#x is expected beside %#x+%#x", addr, size, at, len(b))
		}
	}
	if p.expected == nil {
		p.expected, p.landed = memory{}, memory{}
	}
	p.expected[addr] = make([]byte, size)
	return nil
}

func (p *places) part(addr, size uint64) []byte {
	for at, b := range p.expected {
		if addr >= at && addr-at < uint64(len(b)) && size <= uint64(len(b))-(addr-at) {
			return b[addr-at:][:size]
		}
	}
	p.t.Errorf("%#x+%#x is not expected", addr, size)
	return make([]byte, size)
}

// Fill implements driver.Expecter.
func (p *places) Fill(addr, size uint64, r io.Reader) error {
	_, err := io.ReadFull(r, p.part(addr, size))
	return err
}

// Zero implements driver.Expecter.
func (p *places) Zero(addr, size uint64) error {
	clear(p.part(addr, size))
	return nil
}

// Forget implements driver.Expecter.
func (p *places) Forget(addr, size uint64) error {
	if uint64(len(p.expected[addr])) != size {
		p.t.Errorf("%#x+%#x is forgotten, and was not expected", addr, size)
	}
	delete(p.expected, addr)
	return nil
}

// Landed implements driver.Expecter.
func (p *places) Landed(addr, size uint64) error {
	if b := p.expected[addr]; uint64(len(b)) != size {
		p.t.Errorf("%#x+%#x has landed, and was not expected", addr, size)
	}
	if p.session != nil && uint64(len(p.session[addr])) != size {
		return errors.New("no such allocation")
	}
	p.landed[addr] = p.expected[addr]
	return nil
}

// Settle implements driver.Expecter.
func (p *places) Settle() error {
	p.expected, p.settled = nil, true
	return nil
}

// TestInPlace: what can be in its place is there after each round, and nothing of it is kept
// beside; the rest is, within a bound.
func TestInPlace(t *testing.T) {
	big := bytes.Repeat([]byte("causeway"), 100<<10)
	m := memory{0x1000: big, 7 << 40: {1, 2, 3}}
	p := &places{t: t, session: m}
	s, v := NewSender(), NewReceiver(1<<30, 10)
	v.Into(p)
	var wire bytes.Buffer
	round(t, s, m, &wire)
	m[0x1000] = bytes.Clone(big)
	m[0x1000][5] = 9
	round(t, s, m, &wire)
	if err := s.Still(&wire); err != nil {
		t.Fatal(err)
	}
	if err := v.Rounds(context.Background(), &wire); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(p.expected[0x1000], m[0x1000]) || v.kept != 3 {
		t.Errorf("%d bytes are kept, in place are %d ranges", v.kept, len(p.expected))
	}
	m[0x1000][6] = 9
	if last, err := s.Last(context.Background(), m.export, &wire); err != nil || last.Sent != Block {
		t.Errorf("the last round sent %+v, %v", last, err)
	}
	copied := memory{}
	if err := v.Last(context.Background(), &wire, copied.fill); err != nil {
		t.Fatal(err)
	}
	if maps.Copy(copied, p.landed); !equal(m, copied) {
		t.Error("the copy is another")
	}
	if !p.settled {
		t.Error("memory is still expected")
	}
}

// TestNotAllocated: memory that the session turns out not to have is refused by its address, and
// given back.
func TestNotAllocated(t *testing.T) {
	add := frame{kind: frameAdd, addr: 0x1000, len: 100}
	of := frame{kind: frameRange, addr: 0x1000, len: 100}
	block := frame{kind: frameBlock, addr: 0x1063, len: 2, size: 2}
	for name, c := range map[string]struct {
		frames []frame
		want   string
		places places
	}{
		"not the session's":  {[]frame{add, {kind: frameStill}, of}, "0x1000", places{session: memory{1: nil}}},
		"another size":       {[]frame{add, {kind: frameStill}, of}, "0x1000", places{session: memory{0x1000: make([]byte, 99)}}},
		"past the end":       {[]frame{add, {kind: frameStill}, of, block}, "out of order", places{}},
		"backwards":          {[]frame{add, {kind: frameStill}, of, {kind: frameZero, addr: 0x1010, len: 2}, {kind: frameZero, addr: 0x1000, len: 2}}, "out of order", places{}},
		"twice":              {[]frame{add, {kind: frameStill}, of, of}, "comes twice", places{}},
		"more than can wait": {[]frame{{kind: frameAdd, addr: 0x1000, len: MostHeld}, {kind: frameAdd, addr: 7 << 40, len: 1}}, "more memory than waits", places{none: true}},
	} {
		t.Run(name, func(t *testing.T) {
			p := c.places
			p.t = t
			var b []byte
			for _, f := range c.frames {
				b = f.append(b)
			}
			r := bytes.NewReader(append(b, 1, 2))
			v := NewReceiver(1<<30, 10)
			v.Into(&p)
			err := v.Rounds(context.Background(), r)
			if err == nil {
				err = v.Last(context.Background(), r, memory{}.fill)
			}
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v", err)
			}
		})
	}
}

// TestReceiverBounds: as many ranges and bytes are received as may be, to the last, and one that is
// gone makes room for another.
func TestReceiverBounds(t *testing.T) {
	v := NewReceiver(100, 3)
	for i, c := range []struct {
		kind       uint32
		addr, size uint64
		fits       bool
	}{
		{frameAdd, 0x1000, 60, true}, {frameAdd, 0x2000, 41, false}, {frameAdd, 0x2000, 40, true}, {frameAdd, 0x3000, 1, false}, {frameGone, 0x2000, 40, true},
		{frameAdd, 0x2000, 1, true}, {frameAdd, 0x3000, 1, true}, {frameAdd, 0x4000, 1, false}, {frameGone, 0x3000, 2, false}, {frameGone, 0x3000, 1, true},
		{frameAdd, 0x4000, 40, false}, {frameAdd, 0x4000, 39, true}, {frameGone, 0x1000, 60, true}, {frameAdd, 0x1000, 60, true},
	} {
		if err := v.follow(frame{kind: c.kind, addr: c.addr, len: c.size}, nil); (err == nil) != c.fits {
			t.Errorf("%d, %#x+%d: %v", i, c.addr, c.size, err)
		}
	}
}
