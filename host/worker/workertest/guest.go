package workertest

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/remote"
)

// Limit bounds every wait.
const Limit = 10 * time.Second

// Errors of a guest.
var (
	ErrGone    = errors.New("host ended the session")
	ErrSilent  = errors.New("no reply in time")
	ErrRefused = errors.New("host refused the session")
)

// Guest is the guest end of one session.
type Guest struct {
	Mem     []byte // region 0
	carrier Carrier

	mu     sync.Mutex // ring
	tail   uint64
	seq    [remote.SlotCount]uint32
	enc    wire.Encoder
	blob   uint32
	region uint32

	// Ctx and Thread go into every record.
	Ctx, Thread uint32
}

// Carrier is how a Guest reaches its host.
type Carrier interface {
	// Ring rings the doorbell.
	Ring()
	// Sleep returns when the host woke slot, when word is no longer 1, or after a short time.
	Sleep(slot uint32, word *atomic.Uint32)
	// Gone is closed when the host ended the session.
	Gone() <-chan struct{}
	// AddRegion declares new memory. va is its address as the guest process knows it.
	AddRegion(id uint32, size int) (mem []byte, va uint64, err error)
	// EndRegion ends it.
	EndRegion(id uint32) error
	Close() error
}

// New makes a guest on region 0 that is initialised by Prepare and known to the host.
func New(mem []byte, c Carrier) *Guest {
	g := &Guest{Mem: mem, carrier: c, Thread: 1}
	g.enc.Blob = g.sendBlob
	return g
}

// Init is the first call of a session.
func (g *Guest) Init() (*wire.SessionInitReply, error) {
	var r wire.SessionInitReply
	a := &wire.SessionInitArgs{Version: remote.ProtocolVersion, Pid: uint32(os.Getpid()), Exe: []byte("test")}
	if res, err := g.Call(0, a, &r); err != nil || res != cuda.Success {
		return nil, fmt.Errorf("SessionInit: %v, %w", res, err)
	}
	return &r, nil
}

// Send appends an asynchronous request.
func (g *Guest) Send(a wire.Args) error {
	rec, err := g.encode(a, wire.Header{Ctx: g.Ctx, Thread: g.Thread})
	if err != nil {
		return err
	}
	return g.Append(rec)
}

// Call makes a request in a slot and waits for its reply, which it decodes into r unless that is nil.
func (g *Guest) Call(slot uint32, a wire.Args, r wire.Reply) (cuda.Result, error) {
	seq, err := g.Begin(slot, a)
	if err != nil {
		return 0, err
	}
	return g.Finish(slot, seq, r)
}

// Begin makes a request in a slot.
func (g *Guest) Begin(slot uint32, a wire.Args) (seq uint32, err error) {
	g.mu.Lock()
	g.seq[slot]++
	seq = g.seq[slot]
	g.mu.Unlock()
	rec, err := g.encode(a, wire.Header{Flags: remote.RecordReply, Slot: slot, Seq: seq, Ctx: g.Ctx, Thread: g.Thread})
	if err != nil {
		return 0, err
	}
	return seq, g.Append(rec)
}

func (g *Guest) encode(a wire.Args, h wire.Header) ([]byte, error) {
	return g.enc.Record(nil, h, a)
}

// Finish waits for the reply to Begin.
func (g *Guest) Finish(slot, seq uint32, r wire.Reply) (cuda.Result, error) {
	if err := g.await(slot, seq); err != nil {
		return 0, err
	}
	res, payload, total := g.reply(slot)
	for uint32(len(payload)) < total {
		a := &wire.ReplyMoreArgs{Offset: uint32(len(payload))}
		seq, err := g.Begin(slot, a)
		if err != nil {
			return 0, err
		}
		if err := g.await(slot, seq); err != nil {
			return 0, err
		}
		moreRes, part, _ := g.reply(slot)
		var more wire.ReplyMoreReply
		if err := wire.DecodeReply(part, &more); err != nil || moreRes != cuda.Success || len(more.Part) == 0 {
			return 0, fmt.Errorf("rest of a reply: %v, %w", moreRes, err)
		}
		payload = append(payload, more.Part...)
	}
	if r == nil || res != cuda.Success {
		return res, nil
	}
	return res, wire.DecodeReply(payload, r)
}

// Append puts a record into the ring as it is, and rings the doorbell if the worker sleeps. The record's size must be a
// multiple of 8.
func (g *Guest) Append(rec []byte) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	size := uint64(len(rec))
	if size > remote.RingSize {
		return fmt.Errorf("record of %d bytes", size)
	}
	pad := uint64(0)
	if left := remote.RingSize - g.tail%remote.RingSize; left < size {
		pad = left
	}
	if err := g.awaitSpace(pad + size); err != nil {
		return err
	}
	if pad > 0 {
		g.putSkip(pad)
		g.tail += pad
	}
	copy(g.Mem[remote.RingOffset+g.tail%remote.RingSize:], rec)
	g.Publish(g.tail + size)
	return nil
}

// sendBlob sends bytes ahead.
func (g *Guest) sendBlob(p []byte) (uint32, error) {
	g.blob++
	id, total := g.blob, uint64(len(p))
	for len(p) > 0 {
		part := p[:min(len(p), 60<<10)]
		p = p[len(part):]
		rec, err := wire.AppendRecord(nil, wire.Header{Thread: g.Thread}, &wire.BlobAppendArgs{Blob: id, Total: total, Part: part})
		if err != nil {
			return 0, err
		}
		if err := g.Append(rec); err != nil {
			return 0, err
		}
	}
	return id, nil
}

// AddRegion declares and adds a region.
func (g *Guest) AddRegion(slot, kind uint32, size int) (id uint32, mem []byte, res cuda.Result, err error) {
	g.region++
	id = g.region
	mem, va, err := g.carrier.AddRegion(id, size)
	if err != nil {
		return 0, nil, 0, err
	}
	var r wire.RegionAddReply
	res, err = g.Call(slot, &wire.RegionAddArgs{Region: id, Kind: kind, Va: va, Size: uint64(size)}, &r)
	return id, mem, res, err
}

// DropRegion undoes AddRegion.
func (g *Guest) DropRegion(slot, id uint32) (cuda.Result, error) {
	res, err := g.Call(slot, &wire.RegionDropArgs{Region: id}, nil)
	if err != nil || res != cuda.Success {
		return res, err
	}
	return res, g.carrier.EndRegion(id)
}

// EndRegion ends a region without a word to the host's session.
func (g *Guest) EndRegion(id uint32) error { return g.carrier.EndRegion(id) }

// Gone is closed when the host ended the session.
func (g *Guest) Gone() <-chan struct{} { return g.carrier.Gone() }

// Ring rings the doorbell.
func (g *Guest) Ring() { g.carrier.Ring() }

// Close ends the session.
func (g *Guest) Close() error { return g.carrier.Close() }
