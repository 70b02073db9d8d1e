package link

import (
	"slices"
	"time"
)

// Kind is a row of the tables, for tests.
type Kind struct {
	Number      uint32
	Name        string
	Fixed, Tail int
	Unit        int
	Files, Most int
	Parent      bool // the parent is sent it
}

// Kinds lists all rows, in the order of their numbers.
func Kinds() []Kind { return slices.Concat(rows(toWorker, false), rows(toParent, true)) }

func rows[M Message](t table[M], parent bool) (list []Kind) {
	for n, d := range t.numbers {
		list = append(list, Kind{uint32(n), d.name, d.fixed, d.tail, d.unit, d.files, d.mostFiles, parent})
	}
	slices.SortFunc(list, func(a, b Kind) int { return int(a.Number) - int(b.Number) })
	return list
}

// Encode makes a packet of a message of either direction.
func Encode(m Message) ([]byte, []int, error) {
	if w, ok := m.(ToWorker); ok {
		return encode(toWorker, w)
	}
	return encode(toParent, m.(ToParent))
}

// Decode is what an end makes of a packet.
func Decode(parent bool, b []byte, files []int) (Message, func(), error) {
	if parent {
		r, err := decode(toParent, b, files)
		return r.message, r.Discard, err
	}
	r, err := decode(toWorker, b, files)
	return r.message, r.Discard, err
}

// Raw sends any packet.
func (c *Conn[Out, In]) Raw(b []byte) error {
	_, err := c.uc.Write(b)
	return err
}

// MaxPacket is the longest packet of any kind.
const MaxPacket = maxPacket

// SetHearing bounds Send.
func (c *Conn[Out, In]) SetHearing(d time.Duration) { c.hearing = d }
