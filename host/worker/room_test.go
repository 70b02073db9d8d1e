package worker

import (
	"bytes"
	"context"
	"testing"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/driver"
	"causeway/host/worker/link"
)

// tight is a driver that has no room for module images until somebody makes some.
type tight struct {
	driver.Session
	short uint64 // bytes that are missing
	lacks uint64 // what was refused since it was asked
	tries int
	image []byte
}

func (g *tight) ModuleLoad(_ *wire.Call, a *wire.ModuleLoadArgs, _ *wire.ModuleLoadReply) cuda.Result {
	g.tries++
	if g.image = a.Image; g.short > 0 {
		g.lacks = g.short
		return cuda.ErrorOutOfMemory
	}
	return cuda.Success
}

// TestStalledRecord: a record that lacks room is not answered, keeps what was sent ahead of it, and
// is executed again when the parent has answered; tasks run meanwhile.
func TestStalledRecord(t *testing.T) {
	for what, granted := range map[string]bool{"granted": true, "denied": false} {
		t.Run(what, func(t *testing.T) {
			lacks := map[bool]uint64{true: 4096, false: 1}[granted]
			g := &tight{short: lacks}
			w, c := newFake(t, func(d driver.Session) driver.Session { g.Session = d; return g })
			asked := make(chan link.Want, 4)
			w.room = room{
				asks:    func(m link.ToParent) error { asked <- m.(link.Want); return nil },
				short:   func() uint64 { n := g.lacks; g.lacks = 0; return n },
				answers: make(chan link.Room, 1),
			}
			long := bytes.Repeat([]byte("image"), wire.MaxRecord)
			if res := w.blobs.append(7, uint64(len(long)), long); res != cuda.Success {
				t.Fatal(res)
			}
			booked := w.host.used
			enc := wire.Encoder{Blob: func([]byte) (uint32, error) { return 7, nil }}
			rec, err := enc.Record(nil, wire.Header{Flags: 1, Slot: 3, Seq: 9, Ctx: 1}, &wire.ModuleLoadArgs{Module: 10, Image: long})
			if err != nil {
				t.Fatal(err)
			}
			c.fakeRing.mu.Lock()
			c.records = append(c.records, rec)
			c.fakeRing.mu.Unlock()
			c.onWait = func() error { return context.Canceled }
			ended := make(chan error, 1)
			go func() { ended <- w.loop(context.Background()) }()
			m := <-asked
			if m.Bytes != lacks {
				t.Errorf("asked for %d", m.Bytes)
			}
			if err := w.onLoop(func() error {
				if len(c.replies) != 0 || g.tries != 1 || w.host.used != booked {
					t.Errorf("%d replies, %d tries, %d bytes booked of %d", len(c.replies), g.tries, w.host.used, booked)
				}
				if op, open := w.unanswered(); open {
					t.Errorf("%s is unanswered: it was not begun", op)
				}
				if granted {
					g.short = 0
				}
				return nil
			}); err != nil {
				t.Fatal(err)
			}
			w.room.answered(link.Room{Number: m.Number + 5, Granted: true}) // to another question
			w.room.answered(link.Room{Number: m.Number, Granted: granted})
			if err := <-ended; err != nil { // it had nothing more to do
				t.Error(err)
			}
			want := cuda.Success
			if !granted {
				want = cuda.ErrorOutOfMemory
			}
			if len(c.replies) != 1 || cuda.Result(c.replies[0].Result) != want || g.tries != 2 || !bytes.Equal(g.image, long) || len(asked) != 0 {
				t.Errorf("%+v, %d tries, image of %d bytes", c.replies, g.tries, len(g.image))
			}
		})
	}
}
