package wire

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"reflect"
	"testing"

	"causeway/cuda"
)

// TestSpansByTheByte: what a span names lies behind the fixed part and before the end, to the byte.
func TestSpansByTheByte(t *testing.T) {
	good := record(t, &Encoder{}, &MemcpyHtoDArgs{Dst: 1, Stream: 1, Src: []byte("12345678")})
	span, low := RecordSize+12, RecordSize+OpMemcpyHtoD.Info().Fixed
	for _, c := range []struct {
		n, at int
		ok    bool
	}{
		{8, low, true}, {8, low - 1, false}, {1, low - 1, false}, {8, low - 8, false}, {1, 0, false},
		{8, len(good) - 8, true}, {8, len(good) - 7, false}, {1, len(good) - 1, true}, {1, len(good), false}, {len(good) - low, low, true}, {len(good) - low + 1, low, false},
	} {
		rec := bytes.Clone(good)
		rec[span], rec[span+4] = byte(c.n), byte(c.at)
		if _, err := Decode(OpMemcpyHtoD, rec, nil); (err == nil) != c.ok || err != nil && !errors.Is(err, ErrMalformed) {
			t.Errorf("%d bytes at %d of %d, which may begin at %d: %v", c.n, c.at, len(rec), low, err)
		}
	}
}

// TestUsedBuffers: what stood in a buffer before is in no record and in no reply, also not between
// their parts: the guest reads all of it.
func TestUsedBuffers(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	used := func() []byte { return bytes.Repeat([]byte{0xa5}, 4096)[:0] }
	for op := Op(1); op <= OpCount; op++ {
		a := NewArgs(op)
		fill(reflect.ValueOf(a).Elem(), rng)
		fresh, _ := AppendRecord(nil, Header{Slot: 3}, a)
		if again, err := AppendRecord(used(), Header{Slot: 3}, a); err != nil || !bytes.Equal(again, fresh) {
			t.Errorf("%s: the record holds something else: %v", op, err)
		}
		if r := NewReply(op); r != nil {
			fill(reflect.ValueOf(r).Elem(), rng)
			if !bytes.Equal(AppendReply(used(), r), AppendReply(nil, r)) {
				t.Errorf("%s: the reply holds something else", op)
			}
		}
	}
}

// TestRefused: a request that is not wanted is read, its bytes that were sent ahead are taken, and
// the driver does not see it; one that breaks the protocol does so all the same.
func TestRefused(t *testing.T) {
	sent := blobs{}
	e := &Encoder{Blob: func(p []byte) (uint32, error) { sent[9] = p; return 9, nil }}
	rec := record(t, e, &ModuleLoadArgs{Module: 20, Image: make([]byte, MaxRecord+1)})
	l, d := &loader{}, &Dispatcher{}
	payload, res, err := d.Dispatch(l, &Call{Op: OpModuleLoad, Refuse: cuda.ErrorOutOfMemory}, rec, sent)
	if payload != nil || res != cuda.ErrorOutOfMemory || err != nil || l.image != nil || len(sent) != 0 {
		t.Errorf("%d bytes, %v, %v; the driver saw %d bytes, %d pieces are left", len(payload), res, err, len(l.image), len(sent))
	}
	rec = record(t, &Encoder{}, &ModuleLoadArgs{Module: 20, Image: []byte("image")})
	if _, res, err := d.Dispatch(l, &Call{Op: OpModuleLoad}, rec, nil); res != l.result || err != nil || string(l.image) != "image" {
		t.Errorf("the next: %v, %v, %q", res, err, l.image)
	}
	if _, _, err := d.Dispatch(l, &Call{Op: OpModuleLoad, Refuse: cuda.ErrorOutOfMemory}, rec[:RecordSize+4], nil); !errors.Is(err, ErrMalformed) {
		t.Errorf("one that is cut: %v", err)
	}
}

// TestACallBeginsAnew: what a call holds of the time before it was made again is not in its way.
func TestACallBeginsAnew(t *testing.T) {
	rec := record(t, &Encoder{}, &MemAllocArgs{Size: 64})
	l, d := &loader{}, &Dispatcher{}
	c := Call{Op: OpMemAlloc, Replay: true, Placed: []uint64{0x7000}}
	for range 2 {
		payload, res, err := d.Dispatch(l, &c, rec, nil)
		var r MemAllocReply
		if err != nil || res != cuda.Success || DecodeReply(payload, &r) != nil || r.Ptr != 0x7000 {
			t.Fatalf("%#x, %v, %v", r.Ptr, res, err)
		}
	}
}
