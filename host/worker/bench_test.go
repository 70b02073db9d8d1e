package worker_test

import (
	"os"
	"os/exec"
	"testing"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/worker/workertest"
)

// BenchmarkRoundTrip puts a synchronous call without GPU work, to a worker in another process,
// beside what two processes can do at best (a word in shared memory that both poll) and what a
// socket costs.
func BenchmarkRoundTrip(b *testing.B) {
	b.Run("call", func(b *testing.B) {
		p, g, err := startProcess(b, unixConfig)
		if err != nil {
			b.Fatal(err)
		}
		if _, err := g.Init(); err != nil {
			b.Fatal(err)
		}
		a := &wire.CtxSynchronizeArgs{}
		for b.Loop() {
			if res, err := g.Call(0, a, nil); err != nil || res != cuda.Success {
				b.Fatal(res, err)
			}
		}
		_ = g.Close()
		awaitEnd(b, p)
	})
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), workerEnv+"=pong")
	p, err := workertest.StartPingPong(cmd)
	if err != nil {
		b.Fatal(err)
	}
	b.Run("socket", func(b *testing.B) {
		for b.Loop() {
			if err := p.Socket(); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("memory", func(b *testing.B) {
		p.Polling(true)
		for b.Loop() {
			p.Memory()
		}
		p.Polling(false)
	})
	if err := p.Close(); err != nil {
		b.Error(err)
	}
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

// BenchmarkConsume is the worker's share of a synchronous call: no allocation.
func BenchmarkConsume(b *testing.B) {
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
