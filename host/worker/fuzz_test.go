package worker_test

import (
	"errors"
	"testing"
	"time"

	"causeway/cuda/wire"
	"causeway/remote"
)

// FuzzRecords: a guest appends whatever it likes to its ring. The worker answers what can be
// answered and ends the session at the first record that breaks a rule; it neither hangs nor
// crashes, and all that it ends with names a violation.
func FuzzRecords(f *testing.F) {
	for _, a := range []wire.Args{
		&wire.MemAllocArgs{Size: 4096}, &wire.MemcpyHtoDArgs{Dst: 0x700000000000, Src: []byte("bytes")},
		&wire.ModuleLoadArgs{Module: 17, Image: []byte("image")}, &wire.RegionAddArgs{Region: 1, Kind: 1, Size: 4096},
		&wire.BlobAppendArgs{Blob: 1, Total: 5, Part: []byte("part")}, &wire.ReplyMoreArgs{Offset: 1}, &wire.ConsoleReadArgs{},
		&wire.StreamSynchronizeArgs{Stream: 77}, &wire.PrimaryCtxRetainArgs{Ctx: 16}, &wire.PrimaryCtxReleaseArgs{Ctx: 16},
		&wire.FuncSetAttributeArgs{Func: 16}, &wire.LaunchArgs{Func: 1, Params: []byte("params")},
	} {
		rec, err := wire.AppendRecord(nil, wire.Header{Flags: remote.RecordReply, Slot: 3, Seq: 9, Ctx: 16, Thread: 1}, a)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(append(rec, rec...))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) > 4096 {
			return
		}
		s := start(t)
		for len(b)%8 != 0 {
			b = append(b, 0)
		}
		if err := s.Append(b); err != nil {
			t.Fatal(err)
		}
		// A record that waits for a region's declaration may take longer; the end of the guest ends
		// that, too.
		for range 200 {
			if s.Idle() || len(s.done) > 0 {
				break
			}
			time.Sleep(100 * time.Microsecond)
		}
		_ = s.Close()
		select {
		case end := <-s.done:
			if end != nil && !errors.Is(end, remote.ErrProtocol) && !errors.Is(end, wire.ErrMalformed) {
				t.Errorf("session ended with %v", end)
			}
		case <-time.After(time.Minute):
			t.Fatal("worker hangs")
		}
	})
}
