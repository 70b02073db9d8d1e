package verbs_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"testing"

	"causeway/remote"
	"causeway/remote/remotetest"
	"causeway/remote/verbs"
	"causeway/remote/verbs/verbstest"
)

// other has what an end says that begins so be something else.
type other struct {
	net.Conn
	begins string
	change func(b []byte) []byte
}

// Write implements net.Conn.
func (c other) Write(b []byte) (int, error) {
	if !bytes.HasPrefix(b, []byte(c.begins)) {
		return c.Conn.Write(b)
	}
	if _, err := c.Conn.Write(c.change(bytes.Clone(b))); err != nil {
		return 0, err
	}
	return len(b), nil
}

const (
	railsBegin = "CWVRAIL\x01"
	maskBegins = "CWVMASK\x01"
)

// at is where in what an end says of its queue pairs for copies one begins.
func at(i int) int { return 16 + 32*i }

// TestHostileRails: an end that says of its queue pairs for copies what cannot be ends the
// connection, and nothing is left.
func TestHostileRails(t *testing.T) {
	set := func(off int, v byte) func(b []byte) []byte {
		return func(b []byte) []byte { b[off] = v; return b }
	}
	for name, x := range map[string]struct {
		begins string
		server bool // who says it
		change func(b []byte) []byte
	}{
		"other magic":          {railsBegin, false, set(0, 'X')},
		"one more than agreed": {railsBegin, false, func(b []byte) []byte { b[8]++; return append(b, b[at(0):at(1)]...) }},
		"far too many":         {railsBegin, false, set(8, 255)},
		"twice":                {railsBegin, false, func(b []byte) []byte { copy(b[at(1):], b[at(0):at(1)]); return b }},
		"no queue pair":        {railsBegin, false, func(b []byte) []byte { clear(b[at(0)+4:][:4]); return b }},
		"large queue pair":     {railsBegin, false, set(at(0)+7, 1)},
		"no link":              {railsBegin, false, set(at(0), 0)},
		"MTU":                  {railsBegin, false, set(at(1)+1, 9)},
		"packet":               {railsBegin, false, set(at(1)+11, 1)},
		"adapter":              {railsBegin, false, set(at(1)+12, 4)},
		"no address":           {railsBegin, false, func(b []byte) []byte { clear(b[at(1)+16:]); return b }},
		"answers too few":      {railsBegin, true, func(b []byte) []byte { b[8]--; return b[:at(1)] }},
		"answers twice":        {railsBegin, true, func(b []byte) []byte { copy(b[at(1):], b[at(0):at(1)]); return b }},
		"answers nonsense":     {railsBegin, true, set(at(0)+1, 0)},
		"connected others":     {maskBegins, false, func(b []byte) []byte { binary.LittleEndian.PutUint64(b[8:], 7); return b }},
		"uses others":          {maskBegins, true, func(b []byte) []byte { binary.LittleEndian.PutUint64(b[8:], 1<<63); return b }},
		"other mask":           {maskBegins, true, set(1, 'X')},
	} {
		t.Run(name, func(t *testing.T) {
			f := verbstest.New()
			near, far, err := remotetest.PairTCP()
			if err != nil {
				t.Fatal(err)
			}
			if x.server {
				far = other{far, x.begins, x.change}
			} else {
				near = other{near, x.begins, x.change}
			}
			// The client's, the server's.
			ended := [2]chan error{make(chan error, 1), make(chan error, 1)}
			up := func(base net.Conn, ports []*verbstest.Adapter, client bool, to chan error) {
				c, err := verbs.UpgradeWide(context.Background(), base, adapters(ports), "", client, 3)
				if err == nil {
					c.(*verbs.Conn).Abort()
				}
				to <- err
			}
			go up(near, ports(f, "near", 2), true, ended[0])
			go up(far, ports(f, "far", 2), false, ended[1])
			client, server := <-ended[0], <-ended[1]
			hears := server
			if x.server {
				hears = client
			}
			if !errors.Is(hears, remote.ErrProtocol) {
				t.Errorf("the client: %v, the server: %v", client, server)
			}
			until(t, "something is left", func() bool { return f.Left() == 0 })
		})
	}
}

// TestHostileRailWords: an end that gives up what there is not, or is given up already, ends the
// connection.
func TestHostileRailWords(t *testing.T) {
	word := func(n uint64) []byte { return binary.LittleEndian.AppendUint64([]byte(verbs.RailLost), n) }
	for name, x := range map[string]struct {
		server bool // who says it
		says   [][]byte
	}{
		"none such":          {true, [][]byte{word(1)}},
		"far from any":       {true, [][]byte{word(1<<64 - 1)}},
		"twice":              {true, [][]byte{word(0), word(0)}},
		"the client's":       {false, [][]byte{word(0)}},
		"the client's other": {false, [][]byte{word(9)}},
	} {
		t.Run(name, func(t *testing.T) {
			w := openWide(t, 2, nil)
			from, hears := w.nearBase, w.far
			if x.server {
				from, hears = w.farBase, w.near
			}
			for _, b := range x.says {
				if _, err := from.Write(b); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := hears.Read(make([]byte, 1)); !errors.Is(err, remote.ErrProtocol) {
				t.Error(err)
			}
			w.conn.Abort()
			w.farConn.Abort()
			if n := w.Left(); n != 0 {
				t.Errorf("%d things are left", n)
			}
		})
	}
	// Where nothing was agreed on there is none.
	e := open(t)
	_, _ = e.farBase.Write(word(0))
	if _, err := e.near.Read(make([]byte, 1)); !errors.Is(err, remote.ErrProtocol) {
		t.Error(err)
	}
	e.end(t)
}

// FuzzRails: what is taken is what can be said again.
func FuzzRails(f *testing.F) {
	frames, err := verbs.ParseOffer(verbs.Offer{Link: verbs.Ethernet, MTU: 3, Queue: 7, PSN: 9, GID: here.As16(), Window: verbs.Window{Address: 1 << 40, Key: 5, Size: verbs.MostWindow}}.Append(nil))
	if err != nil {
		f.Fatal(err)
	}
	one := verbs.RailOffer{Link: verbs.Ethernet, MTU: 5, Queue: 8, PSN: 3, GID: here.As16(), Adapter: 3}
	two, own := one, one
	two.Queue, own.Queue = 9, 7
	ib := verbs.RailOffer{Link: verbs.InfiniBand, MTU: 5, LID: 3, Queue: 1<<24 - 1}
	for _, rails := range [][]verbs.RailOffer{nil, {one}, {one, two, ib}, {one, one}, {own}, {{}}, {one, {}}, make([]verbs.RailOffer, 7), make([]verbs.RailOffer, 8)} {
		for _, answers := range []bool{false, true} {
			f.Add(verbs.AppendRails(nil, rails), len(rails), answers)
		}
	}
	f.Add([]byte(railsBegin), 7, false)
	f.Fuzz(func(t *testing.T, b []byte, most int, answers bool) {
		r := bytes.NewReader(b)
		rails, err := verbs.ReadRails(r, most, answers, frames)
		if err != nil {
			if !errors.Is(err, remote.ErrProtocol) && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
				t.Errorf("unexpected kind of error: %v", err)
			}
			return
		}
		if len(rails) > verbs.MostPairs-1 || len(rails) > most || answers && len(rails) != most {
			t.Errorf("%d queue pairs, of %d", len(rails), most)
		}
		var offers []verbs.RailOffer
		seen := map[verbs.RailOffer]bool{}
		for _, p := range rails {
			o := p.Offer()
			if o.Queue == 0 && !answers || o.Queue != 0 && seen[o] || o.Queue == 7 && o.GID == here.As16() {
				t.Errorf("%+v is taken", o)
			}
			seen[o] = true
			offers = append(offers, o)
		}
		again, err := verbs.ReadRails(bytes.NewReader(verbs.AppendRails(nil, offers)), most, answers, frames)
		if err != nil || len(again) != len(rails) {
			t.Errorf("%+v is read as %+v, %v", offers, again, err)
		}
	})
}
