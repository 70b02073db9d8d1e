package wire

import (
	"bytes"
	"testing"

	"causeway/cuda"
)

// TestBytesAreCopied: a bytes argument stays what it was when the guest changes its ring; data is
// where the guest put it.
func TestBytesAreCopied(t *testing.T) {
	l, d := &loader{}, &Dispatcher{}
	rec := record(t, &Encoder{}, &ModuleLoadArgs{Module: 20, Options: []byte("options"), Image: []byte("image")})
	if _, _, err := d.Dispatch(l, &Call{Op: OpModuleLoad}, rec, nil); err != nil {
		t.Fatal(err)
	}
	for i := RecordSize; i < len(rec); i++ {
		rec[i] = 'x'
	}
	if string(l.image) != "image" || string(l.options) != "options" {
		t.Errorf("the guest changed %q and %q after they were read", l.image, l.options)
	}
	a := d.Args().(*ModuleLoadArgs)
	if string(a.Image) != "image" {
		t.Errorf("what a recorder keeps is %q", a.Image)
	}
}

// liar has bytes that were sent ahead, of another length than it is asked for.
type liar struct{}

func (liar) Take(_, size uint32) ([]byte, bool) { return make([]byte, size-1), true }

// TestBytesHaveTheirLength: what was sent ahead is as long as the record says, or it is missing.
func TestBytesHaveTheirLength(t *testing.T) {
	e := &Encoder{Blob: func([]byte) (uint32, error) { return 1, nil }}
	rec := record(t, e, &ModuleLoadArgs{Module: 20, Image: make([]byte, MaxRecord+1)})
	l, d := &loader{}, &Dispatcher{}
	if _, res, err := d.Dispatch(l, &Call{Op: OpModuleLoad}, rec, liar{}); err != nil || res != cuda.ErrorInvalidValue || l.image != nil {
		t.Errorf("%v, %v, %d bytes", res, err, len(l.image))
	}
}

// TestDataStaysInTheRecord: data is never sent ahead, bytes are, the longest first and no more than
// needed.
func TestDataStaysInTheRecord(t *testing.T) {
	var sent [][]byte
	e := &Encoder{Blob: func(p []byte) (uint32, error) {
		sent = append(sent, p)
		return uint32(len(sent)), nil
	}}
	long := make([]byte, MaxRecord+1)
	if _, err := e.Record(nil, Header{}, &MemcpyHtoDArgs{Src: long}); err == nil || len(sent) != 0 {
		t.Errorf("%d bytes of data in a record: %v, %d were sent ahead", len(long), err, len(sent))
	}
	half := bytes.Repeat([]byte{1}, MaxRecord/2)
	rec, err := e.Record(nil, Header{}, &ModuleLoadArgs{Options: half, Image: append(half, 1)})
	if err != nil || len(sent) != 1 || len(sent[0]) != len(half)+1 || len(rec) > MaxRecord {
		t.Errorf("%v, %d sent ahead", err, len(sent))
	}
	sent = nil
	if _, err := e.Record(nil, Header{}, &ModuleLoadArgs{Options: long, Image: long}); err != nil || len(sent) != 2 {
		t.Errorf("%v, %d sent ahead", err, len(sent))
	}
	sent = nil
	exact := make([]byte, MaxRecord-RecordSize-OpModuleLoad.Info().Fixed)
	exact = exact[:len(exact)&^63]
	if rec, err := e.Record(nil, Header{}, &ModuleLoadArgs{Image: exact[:len(exact)-64]}); err != nil || len(sent) != 0 || len(rec) > MaxRecord {
		t.Errorf("what fits: %v, %d sent ahead", err, len(sent))
	}
	for _, id := range []uint32{0, SpanBlob} {
		bad := &Encoder{Blob: func([]byte) (uint32, error) { return id, nil }}
		if _, err := bad.Record(nil, Header{}, &ModuleLoadArgs{Image: long}); err == nil {
			t.Errorf("id %#x of bytes that were sent ahead", id)
		}
	}
}

// replies collects what Pendings answer.
type collected struct {
	slot, seq uint32
	results   []cuda.Result
	payloads  [][]byte
	woken     int
}

func (c *collected) Reply(slot, seq uint32, res cuda.Result, payload []byte) {
	c.slot, c.seq = slot, seq
	c.results, c.payloads = append(c.results, res), append(c.payloads, payload)
}
func (c *collected) GPUDone(slot uint32) (uintptr, bool) { return 4096 + uintptr(slot), slot != 0 }
func (c *collected) WakeSlot(slot, seq uint32)           { c.slot, c.seq, c.woken = slot, seq, c.woken+1 }

// TestPendings: an open reply is answered once, a payload travels only where its operation says so,
// and of the two ends one counts.
func TestPendings(t *testing.T) {
	open := func(op Op, slot uint32) (*Pending, *collected) {
		to := &collected{}
		c := &Call{Op: op, Slot: slot, Seq: 9, Replier: to}
		p := c.Later()
		if p != c.Later() || !c.Taken() || p.Op() != op {
			t.Error("another pending for the same call")
		}
		return p, to
	}
	p, to := open(OpMemcpyDtoH, 5)
	p.Done(cuda.ErrorIllegalAddress, &MemcpyDtoHReply{Dst: []byte("secret")})
	p.Done(cuda.Success, &MemcpyDtoHReply{Dst: []byte("again")})
	p.Wake()
	if len(to.results) != 1 || to.results[0] != cuda.ErrorIllegalAddress || to.payloads[0] != nil || to.woken != 0 || to.slot != 5 || to.seq != 9 {
		t.Errorf("%+v", to)
	}
	p, to = open(OpMemcpyDtoH, 5)
	p.Done(cuda.Success, &MemcpyDtoHReply{Dst: []byte("bytes")})
	var r MemcpyDtoHReply
	if len(to.payloads) != 1 || DecodeReply(to.payloads[0], &r) != nil || string(r.Dst) != "bytes" {
		t.Errorf("%+v", to)
	}
	p, to = open(OpModuleLoad, 5) // logs travel with an error
	p.Done(cuda.ErrorInvalidPTX, &ModuleLoadReply{Logs: []byte("why"), ErrLen: 3})
	var m ModuleLoadReply
	if len(to.payloads) != 1 || DecodeReply(to.payloads[0], &m) != nil || string(m.Logs) != "why" {
		t.Errorf("%+v", to)
	}
	p, to = open(OpCtxSynchronize, 5)
	if addr, seq, ok := p.GPUDone(); addr != 4101 || seq != 9 || !ok {
		t.Errorf("GPUDone: %d, %d, %v", addr, seq, ok)
	}
	p.Wake()
	p.Wake()
	p.Done(cuda.Success, nil)
	if to.woken != 1 || len(to.results) != 0 {
		t.Errorf("%+v", to)
	}
	p, _ = open(OpCtxSynchronize, 0)
	if _, _, ok := p.GPUDone(); ok {
		t.Error("a slot that the GPU cannot reach")
	}
	var c Call // replayed: nobody waits
	p = c.Later()
	if _, _, ok := p.GPUDone(); ok {
		t.Error("the GPU is to answer nobody")
	}
	p.Done(cuda.Success, nil)
	p.Wake()
}

// TestPlacesAreHandedOutOnce: a replayed operation gets its addresses in order, and no more.
func TestPlacesAreHandedOutOnce(t *testing.T) {
	c := &Call{Placed: []uint64{7, 8}}
	if _, ok := c.Place(); ok {
		t.Error("a place without a replay")
	}
	c.Replay = true
	for _, want := range []uint64{7, 8} {
		if got, ok := c.Place(); got != want || !ok {
			t.Errorf("place %d, %v, want %d", got, ok, want)
		}
	}
	if _, ok := c.Place(); ok {
		t.Error("a place beyond the last")
	}
}
