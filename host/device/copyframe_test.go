package device

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"io"
	"log/slog"
	"testing"
	"time"

	"causeway/host/worker/link"
)

// source is what a source says, in one piece, and where answers go.
type source struct {
	io.Reader
	io.Writer
}

func (source) Close() error { return nil }

// said is what a source says, in order.
func said(frames ...func(seq uint64) []byte) (b []byte) {
	seq := uint64(1)
	for _, f := range frames {
		p := f(seq)
		if b = append(b, p...); ofStreams(binary.LittleEndian.Uint32(p)) {
			seq++
		}
	}
	return b
}

func copyFrameBytes(kind, stream uint32, body ...byte) func(seq uint64) []byte {
	return func(seq uint64) []byte {
		if !ofStreams(kind) {
			seq = 0
		}
		return frameOf(kind, stream, seq, body)
	}
}

// FuzzCopyFrom: whatever a source says, the destination ends with it, answers in frames, and keeps
// nothing that was not sealed.
func FuzzCopyFrom(f *testing.F) {
	d, err := New(Options{Tree: Tree{Lib: library(f), GPU: "a GPU"}, Worker: link.Config{GPU: "soft"}, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		f.Fatal(err)
	}
	d.workers = &fakeWorkers{lent: func(uint64) bool { return true }, fail: f.Errorf}
	hello, _ := json.Marshal(d.copyHello())
	open := copyFrameBytes(copyOpen, 1, make([]byte, openSize)...)
	whole := said(copyFrameBytes(copyHello, 0, hello...), open, copyFrameBytes(copyData, 1, 'x'), copyFrameBytes(copyPing, 0),
		copyFrameBytes(copySeal, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0), copyFrameBytes(copyData, 1, 'y'), copyFrameBytes(copyDrop, 1))
	f.Add(whole)
	f.Add(said(copyFrameBytes(copyHello, 0, hello...), open, open))
	f.Add(said(copyFrameBytes(copyHello, 0, hello...), func(uint64) []byte { return open(7) }))
	f.Add(said(copyFrameBytes(copyHello, 0, '{', '}')))
	f.Add(said(copyFrameBytes(copyJoin, 0, make([]byte, tokenSize)...)))
	f.Add(said(copyFrameBytes(copyWelcome, 0)))
	f.Add(whole[:len(whole)/2])
	f.Fuzz(func(t *testing.T, b []byte) {
		var answers bytes.Buffer
		if err := d.CopyFrom(context.Background(), source{bytes.NewReader(b), &answers}); err == nil {
			t.Error("it ended without a reason")
		}
		if _, ok := d.in.status(); ok {
			t.Error("something is kept that no VM is awaited for")
		}
		for late := time.Now().Add(10 * time.Second); len(d.all()) > 0; time.Sleep(time.Millisecond) {
			if time.Now().After(late) {
				t.Fatal("sessions are left")
			}
		}
		buf := make([]byte, mostCopyData)
		for answers.Len() > 0 {
			if f, err := readCopyFrame(&answers, buf); err != nil || f.kind < copyWelcome {
				t.Fatalf("answered by %+v, %v", f, err)
			}
		}
	})
}
