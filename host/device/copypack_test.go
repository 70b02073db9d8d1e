package device

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"testing"
	"time"
)

// TestPacking: more goes through by packing, or as much: a link that is faster than packing is left
// alone.
func TestPacking(t *testing.T) {
	const mb = 1e6
	for name, c := range map[string]struct {
		link, pack, source float64 // bytes a second
		ratio              float64
		packs              bool
		gains              float64 // at least, of what goes through without
	}{
		"slow link":                    {100 * mb, 450 * mb, 3000 * mb, 0.2, true, 2},
		"slow link, saves little":      {100 * mb, 450 * mb, 3000 * mb, 0.95, false, 0.97},
		"slow link, saves nothing":     {100 * mb, 4000 * mb, 3000 * mb, 1, false, 0.97},
		"link as fast as packing":      {450 * mb, 450 * mb, 3000 * mb, 0.5, false, 0.97},
		"fast link":                    {4000 * mb, 450 * mb, 8000 * mb, 0.1, false, 0.97},
		"link faster than the source":  {1000 * mb, 900 * mb, 300 * mb, 0.1, false, 0.99},
		"link slower than the source":  {100 * mb, 2000 * mb, 300 * mb, 0.1, true, 2.5},
		"very slow link, slow packing": {10 * mb, 30 * mb, 3000 * mb, 0.3, true, 1.4},
	} {
		t.Run(name, func(t *testing.T) {
			took := func(n, rate float64) time.Duration { return time.Duration(n / rate * float64(time.Second)) }
			var p packing
			var all time.Duration
			packs, frames := 0, 4000
			for range frames {
				n := packed{body: mostCopyData, wire: mostCopyData}
				if p.wants() {
					packs++
					n.pack, n.wire = took(mostCopyData, c.pack), uint64(mostCopyData*c.ratio)
				}
				n.write = took(float64(n.wire), c.link)
				n.idle = max(0, took(mostCopyData, c.source)-n.pack-n.write)
				all += n.idle + n.pack + n.write
				p.note(n)
			}
			plain := took(mostCopyData*float64(frames), min(c.link, c.source))
			if (packs > frames/2) != c.packs {
				t.Errorf("%d of %d frames are packed", packs, frames)
			}
			if gains := plain.Seconds() / all.Seconds(); gains < c.gains {
				t.Errorf("%.3f of what goes through without", gains)
			}
		})
	}
}

// TestTrialsInVain: each trial that was for nothing puts the next one off for twice as long, up to
// a bound: a link may become slow.
func TestTrialsInVain(t *testing.T) {
	var p packing
	for want := packTrial; want <= 4*packRare; want *= 2 {
		if p.later(); p.rest != min(want, packRare) {
			t.Errorf("the next trial comes in %d groups, not %d", p.rest, min(want, packRare))
		}
	}
}

// FuzzUnpack: what was packed is what it was; other bytes become no more than their frame says, or
// are refused.
func FuzzUnpack(f *testing.F) {
	f.Add(bytes.Repeat([]byte("causeway"), 1000), uint32(8000), uint8(0))
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 0x0f, 1}, uint32(mostCopyData), uint8(1))
	f.Add([]byte{5, 0, 'x'}, uint32(5), uint8(1))
	room, out := packRoom(), make([]byte, mostCopyData)
	f.Fuzz(func(t *testing.T, b []byte, plain uint32, as uint8) {
		b = b[:min(len(b), mostCopyData)]
		if as%2 == 0 {
			p := packFrame(frameOf(copyData, 3, 9, b), room)
			if p == nil {
				return
			}
			got, err := readCopyFrame(bytes.NewReader(p), make([]byte, mostCopyData))
			if err == nil {
				err = got.unpack(out)
			}
			if err != nil || !bytes.Equal(got.body, b) || got.seq != 9 || got.stream != 3 || got.wire != uint64(len(p)) {
				t.Errorf("%d bytes packed in %d: %+v, %v", len(b), len(p), got.seq, err)
			}
			return
		}
		frame := frameOf(copyData, 3, 9, b)
		sizeFrame(frame, plain)
		got, err := readCopyFrame(bytes.NewReader(frame), make([]byte, mostCopyData))
		if err != nil {
			return
		}
		if err := got.unpack(out); err == nil && plain != 0 && len(got.body) != int(plain) || err != nil && !errors.Is(err, errPacked) {
			t.Errorf("%d bytes of %d: %v", len(got.body), plain, err)
		}
	})
}

// TestPackFrame: what gains nothing is sent as it is.
func TestPackFrame(t *testing.T) {
	b := make([]byte, mostCopyData)
	rng := rand.NewChaCha8([32]byte{})
	_, _ = rng.Read(b)
	if packFrame(frameOf(copyData, 1, 1, b), packRoom()) != nil {
		t.Error("random bytes are packed")
	}
	if p := packFrame(frameOf(copyData, 1, 1, make([]byte, mostCopyData)), packRoom()); len(p) == 0 || len(p) > 1000 {
		t.Errorf("zeros take %d bytes", len(p))
	}
}
