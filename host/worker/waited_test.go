package worker

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"causeway/cuda/wire"
)

func TestWaited(t *testing.T) {
	var out bytes.Buffer
	log := slog.New(slog.NewTextHandler(&out, nil))
	n := newWaited(log)
	n.note(wire.OpMemAlloc)
	for range 3 {
		n.note(wire.OpStreamSynchronize)
	}
	n.note(wire.OpCount) // the last
	n.tell(log)
	if got := out.String(); !strings.Contains(got, " StreamSynchronize=3 MemAlloc=1 "+wire.OpCount.Info().Name+"=1\n") {
		t.Error(got)
	}
	out.Reset()
	newWaited(log).tell(log)
	quiet := newWaited(slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelWarn})))
	quiet.note(wire.OpMemAlloc)
	quiet.tell(log)
	if quiet != nil || out.Len() != 0 {
		t.Errorf("%q is said where nothing was counted", out.String())
	}
}
