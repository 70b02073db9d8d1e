package relay_test

import (
	"bytes"
	"errors"
	"io"
	"testing"
	"time"

	"causeway/remote"
	"causeway/remote/frame"
	"causeway/remote/relay"
	"causeway/remote/remotetest"
)

// broken are frames of a server that break a rule, where region 1 has 4096 bytes and nothing was
// sent.
func broken() map[string][]byte {
	reply := func(r frame.Reply, n int) []byte { return append(r.Append(nil), make([]byte, n)...) }
	extent := func(region uint32, off, size uint64, n int) []byte {
		return append(frame.Extent{Region: region, Offset: off, Size: size}.Append(nil), make([]byte, n)...)
	}
	return map[string][]byte{
		"no frame":                    encode(frame.Header{Kind: 99}, nil),
		"a guest's frame":             encode(frame.Header{Kind: frame.Ring}, make([]byte, 32)),
		"a second welcome":            encode(frame.Header{Kind: frame.Welcome}, make([]byte, remote.HelloSize)),
		"flags":                       encode(frame.Header{Kind: frame.Word, Flags: 1}, nil),
		"too long":                    frame.Header{Kind: frame.Write, Len: frame.Max + 1}.Append(nil),
		"head ahead":                  encode(frame.Header{Kind: frame.Head, Arg: 8}, nil),
		"head far ahead":              encode(frame.Header{Kind: frame.Head, Arg: 1 << 63}, nil),
		"head with bytes":             encode(frame.Header{Kind: frame.Head}, make([]byte, 8)),
		"slot that is not":            encode(frame.Header{Kind: frame.Slot, Arg: uint64(remote.SlotCount)}, reply(frame.Reply{Seq: 1}, 0)),
		"slot far away":               encode(frame.Header{Kind: frame.Slot, Arg: 1 << 32}, reply(frame.Reply{Seq: 1}, 0)),
		"slot short":                  encode(frame.Header{Kind: frame.Slot}, make([]byte, 15)),
		"slot long":                   encode(frame.Header{Kind: frame.Slot}, reply(frame.Reply{Seq: 1, Len: remote.SlotPayload + 1, Total: remote.SlotPayload + 1}, int(remote.SlotPayload)+1)),
		"reply of other length":       encode(frame.Header{Kind: frame.Slot}, reply(frame.Reply{Seq: 1, Len: 5, Total: 5}, 4)),
		"reply longer than all":       encode(frame.Header{Kind: frame.Slot}, reply(frame.Reply{Seq: 1, Len: 4, Total: 3}, 4)),
		"reply that goes on too soon": encode(frame.Header{Kind: frame.Slot}, reply(frame.Reply{Seq: 1, Len: 4, Total: 5}, 4)),
		"word that is not":            encode(frame.Header{Kind: frame.Word, Arg: uint64(remote.WordCount)}, nil),
		"word with bytes":             encode(frame.Header{Kind: frame.Word}, make([]byte, 1)),
		"control elsewhere":           encode(frame.Header{Kind: frame.Control, Arg: remote.ControlPageTailOffset}, nil),
		"control between":             encode(frame.Header{Kind: frame.Control, Arg: remote.ControlPageStickyOffset + 1}, nil),
		"control state":               encode(frame.Header{Kind: frame.Control, Arg: frame.Pair(remote.ControlPageWorkerStateOffset, remote.WorkerSleeping)}, nil),
		"read short":                  encode(frame.Header{Kind: frame.Read}, make([]byte, 23)),
		"read of nothing":             encode(frame.Header{Kind: frame.Read}, extent(1, 0, 0, 0)),
		"read of too much":            encode(frame.Header{Kind: frame.Read}, extent(1, 0, frame.MaxRead+1, 0)),
		"write short":                 encode(frame.Header{Kind: frame.Write}, make([]byte, 23)),
		"write of other length":       encode(frame.Header{Kind: frame.Write}, extent(1, 0, 9, 8)),
		"write beyond":                encode(frame.Header{Kind: frame.Write}, extent(1, 4090, 8, 8)),
		"write around":                encode(frame.Header{Kind: frame.Write}, extent(1, ^uint64(0)-3, 8, 8)),
		"write to region 0":           encode(frame.Header{Kind: frame.Write}, extent(0, 0, 8, 8)),
		"recalled unasked":            encode(frame.Header{Kind: frame.Recalled}, nil),
		"a grant":                     encode(frame.Header{Kind: frame.Grant, Arg: 1}, make([]byte, frame.GrantSize)),
		"write to no region":          encode(frame.Header{Kind: frame.Write}, extent(2, 0, 8, 8)),
	}
}

// TestRules: a server that breaks a rule ends the session, which says so by name; the guest sees a
// dead worker, and nothing of its memory is touched.
func TestRules(t *testing.T) {
	for name, b := range broken() {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			mem := r.declare(t, 1, 4096)
			before := bytes.Clone(r.Mem)
			go func() { _, _ = io.Copy(io.Discard, r.in) }()
			_, _ = r.server.Write(b)
			if err := r.end(t); !errors.Is(err, remote.ErrProtocol) || !bytes.Contains([]byte(err.Error()), []byte("gpu server gpu1: ")) {
				t.Errorf("ended with %v", err)
			}
			if r.State() != remote.WorkerDead {
				t.Errorf("the guest sees state %d", r.State())
			}
			copy(before[remote.ControlPageWorkerStateOffset:], r.Mem[remote.ControlPageWorkerStateOffset:][:4])
			if !bytes.Equal(r.Mem, before) || !bytes.Equal(mem, make([]byte, 4096)) {
				t.Error("the guest's memory has changed")
			}
			_ = r.Close()
			_ = r.server.Close()
		})
	}
}

// FuzzServer: a server says whatever it likes. The session ends, with an error that says why, and
// what no frame may write is as it was.
func FuzzServer(f *testing.F) {
	for _, b := range broken() {
		f.Add(b)
	}
	f.Add(encode(frame.Header{Kind: frame.Slot, Arg: 3}, append(frame.Reply{Seq: 1, Len: 8, Total: 8}.Append(nil), make([]byte, 8)...)))
	f.Add(encode(frame.Header{Kind: frame.Write}, append(frame.Extent{Region: 1, Offset: 4088, Size: 8}.Append(nil), make([]byte, 8)...)))
	f.Add(append(encode(frame.Header{Kind: frame.Read, Arg: 5}, frame.Extent{Region: 1, Size: 4096}.Append(nil)), encode(frame.Header{Kind: frame.Head, Arg: 64}, nil)...))
	f.Add(encode(frame.Header{Kind: frame.Control, Arg: frame.Pair(remote.ControlPageStickyOffset, 700)}, nil))
	f.Add(encode(frame.Header{Kind: frame.Behind, Arg: frame.Pair(0, 1)}, nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		r := newRig(t)
		r.declare(t, 1, 4096)
		if err := r.Append(record(64, 1)); err != nil {
			t.Fatal(err)
		}
		r.frame(t)
		before := bytes.Clone(r.Mem)
		go func() { _, _ = io.Copy(io.Discard, r.in) }()
		_ = r.server.SetWriteDeadline(time.Now().Add(remotetest.Limit))
		_, _ = r.server.Write(b)
		_ = r.server.Close()
		if err := r.end(t); !errors.Is(err, remote.ErrProtocol) && !errors.Is(err, relay.ErrServer) {
			t.Errorf("ended with %v", err)
		}
		for _, part := range [][2]uint64{
			{0, remote.ControlPageHeadOffset}, {remote.ControlPageStickyOffset + 8, uint64(remote.WordsOffset)},
			{uint64(remote.WordsOffset) + 4*uint64(remote.WordCount), remote.SlotsOffset}, {remote.SlotsOffset + uint64(remote.SlotCount)*uint64(remote.SlotSize), remote.Region0Size},
		} {
			if !bytes.Equal(r.Mem[part[0]:part[1]], before[part[0]:part[1]]) {
				t.Errorf("something between %#x and %#x was written", part[0], part[1])
			}
		}
		_ = r.Close()
	})
}
