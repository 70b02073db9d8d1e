package soft

import (
	"testing"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/driver"
)

// TestAwaitedByForeignWords: what a state says of memory that others share is within this session's
// window and devices, or is refused before anything of it is taken; and what is awaited is no
// memory that a state could fill.
func TestAwaitedByForeignWords(t *testing.T) {
	r := newRig(t, driver.Options{})
	s := r.s
	token := make([]byte, wire.ShareTokenSize)
	const at = windowBase + 16*vmmUnit
	good := []uint64{at, vmmUnit, at + 512, 4096, 0}
	open := func(token []byte, placed []uint64) cuda.Result {
		c := r.call(wire.OpIpcOpenMemHandle)
		c.Replay, c.Placed = true, placed
		return s.IpcOpenMemHandle(c, &wire.IpcOpenMemHandleArgs{Token: token}, &wire.IpcOpenMemHandleReply{})
	}
	for what, placed := range map[string][]uint64{
		"nothing":               nil,
		"less":                  good[:4],
		"no length":             {at, 0, at, 4096, 0},
		"odd length":            {at, vmmUnit + 4096, at, 4096, 0},
		"all addresses":         {at, 1 << 63, at, 4096, 0},
		"odd base":              {at + 4096, vmmUnit, at + 4096, 4096, 0},
		"below the window":      {windowBase - vmmUnit, vmmUnit, windowBase - vmmUnit, 4096, 0},
		"beyond the window":     {arenaBase, vmmUnit, arenaBase, 4096, 0},
		"before its addresses":  {at, vmmUnit, at - 1, 4096, 0},
		"far behind their base": {at, vmmUnit, at + pageSize, 4096, 0},
		"longer than they":      {at, vmmUnit, at + 512, vmmUnit, 0},
		"of no size":            {at, vmmUnit, at, 0, 0},
		"longer than numbers":   {at, vmmUnit, at + 512, 1<<64 - 1, 0},
		"another device":        {at, vmmUnit, at, 4096, 99},
	} {
		if res := open(token, placed); res == cuda.Success || len(s.opened) != 0 {
			t.Errorf("%s: %v, %d opened", what, res, len(s.opened))
		}
	}
	if res := open(token[1:], good); res == cuda.Success {
		t.Error("a short token was taken")
	}
	r.ok(open(token, good))
	if res := open(token, good); res == cuda.Success {
		t.Error("addresses were taken twice")
	}
	for _, w := range []struct{ size, dev uint64 }{{0, 0}, {4096, 0}, {vmmUnit, 99}} {
		c := r.call(wire.OpMemImport)
		c.Replay, c.Placed = true, []uint64{w.size, w.dev}
		if res := s.MemImport(c, &wire.MemImportArgs{Memhandle: 77, Token: token}, &wire.MemImportReply{}); res == cuda.Success {
			t.Errorf("memory of %d bytes on device %d was taken", w.size, w.dev)
		}
	}
	if err := s.ImportMemory(at+512, 4096, zeros{}); err == nil {
		t.Error("memory that is awaited was filled")
	}
	if err := s.Rejoin(); err == nil {
		t.Error("what nobody shares was had")
	}
}
