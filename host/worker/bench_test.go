package worker_test

import (
	"testing"

	"causeway/cuda"
	"causeway/cuda/wire"
)

// BenchmarkSync is a synchronous call without GPU work, guest and worker in one process on two threads.
func BenchmarkSync(b *testing.B) {
	s := start(b)
	a := &wire.CtxSynchronizeArgs{}
	b.ReportAllocs()
	for b.Loop() {
		if res, err := s.Call(0, a, nil); err != nil || res != cuda.Success {
			b.Fatal(res, err)
		}
	}
	_ = s.finish(b)
}

// BenchmarkAsync is an asynchronous call, the worker keeping up.
func BenchmarkAsync(b *testing.B) {
	s := start(b)
	a := &wire.EventRecordArgs{Event: 5}
	for b.Loop() {
		if err := s.Send(a); err != nil {
			b.Fatal(err)
		}
	}
	_ = s.finish(b)
}
