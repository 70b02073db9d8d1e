package workertest

import (
	"fmt"
	"net"
	"os"
	"sync"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/remote"
	"causeway/remote/remotetest"
)

// Limit bounds every wait.
const Limit = remotetest.Limit

// Errors of a guest.
var (
	ErrGone    = remotetest.ErrGone
	ErrSilent  = remotetest.ErrSilent
	ErrRefused = remotetest.ErrRefused
)

// Guest is the guest end of one session, which makes calls.
type Guest struct {
	*remotetest.Guest

	mu     sync.Mutex // seq
	seq    [remote.SlotCount]uint32
	enc    wire.Encoder
	blob   uint32
	region uint32

	// Ctx and Thread go into every record.
	Ctx, Thread uint32
}

// New makes calls of a guest.
func New(r *remotetest.Guest) *Guest {
	g := &Guest{Guest: r, Thread: 1}
	g.enc.Blob = g.sendBlob
	return g
}

// Connect shakes hands on a session socket's connection, which it takes over.
func Connect(conn *net.UnixConn) (*Guest, error) { return made(remotetest.ConnectUnix(conn, 0)) }

// ConnectEnv is Connect of a guest that says remote.Env... of its environment.
func ConnectEnv(conn *net.UnixConn, env uint32) (*Guest, error) {
	return made(remotetest.ConnectUnix(conn, env))
}

// ConnectTCP shakes hands on a connection to a worker, which it takes over.
func ConnectTCP(conn net.Conn) (*Guest, error) { return made(remotetest.ConnectTCP(conn)) }

// Dial connects to a session socket and shakes hands.
func Dial(path string) (*Guest, error) { return made(remotetest.DialUnix(path)) }

func made(r *remotetest.Guest, err error) (*Guest, error) {
	if err != nil {
		return nil, err
	}
	return New(r), nil
}

// Sticky is the result that every further call returns.
func (g *Guest) Sticky() cuda.Result { return cuda.Result(g.Guest.Sticky()) }

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

// Call makes a request in a slot and waits for its reply, which it decodes into r unless that is
// nil.
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
	if err := g.Await(slot, seq); err != nil {
		return 0, err
	}
	if r == nil && g.ByGPU(slot, seq) {
		return cuda.Success, nil
	}
	code, payload, total := g.Reply(slot)
	res := cuda.Result(code)
	for uint32(len(payload)) < total {
		a := &wire.ReplyMoreArgs{Offset: uint32(len(payload))}
		seq, err := g.Begin(slot, a)
		if err != nil {
			return 0, err
		}
		if err := g.Await(slot, seq); err != nil {
			return 0, err
		}
		moreCode, part, _ := g.Reply(slot)
		moreRes := cuda.Result(moreCode)
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
	mem, va, err := g.Guest.AddRegion(id, size)
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
	return res, g.EndRegion(id)
}
