package worker_test

import (
	"fmt"
	"io"
	"testing"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/remote/remotetest"
)

// pingPong is what one round trip over loopback takes at best: a byte each way, with blocking
// reads.
func pingPong(b *testing.B) {
	near, far, err := remotetest.PairTCP()
	if err != nil {
		b.Fatal(err)
	}
	go func() { _, _ = io.Copy(struct{ io.Writer }{far}, struct{ io.Reader }{far}) }()
	p := make([]byte, 64)
	for b.Loop() {
		if _, err := near.Write(p); err != nil {
			b.Fatal(err)
		}
		if _, err := io.ReadFull(near, p); err != nil {
			b.Fatal(err)
		}
	}
	_, _ = near.Close(), far.Close()
}

// streamed is what so many bytes over loopback take at best: they one way, a byte back.
func streamed(b *testing.B, size int) {
	near, far, err := remotetest.PairTCP()
	if err != nil {
		b.Fatal(err)
	}
	go func() {
		p := make([]byte, 256<<10)
		for left := size; ; {
			n, err := far.Read(p[:min(left, len(p))])
			if err != nil {
				return
			}
			if left -= n; left == 0 {
				if _, err := far.Write(p[:1]); err != nil {
					return
				}
				left = size
			}
		}
	}()
	p := make([]byte, size)
	b.SetBytes(int64(size))
	for b.Loop() {
		if _, err := near.Write(p); err != nil {
			b.Fatal(err)
		}
		if _, err := io.ReadFull(near, p[:1]); err != nil {
			b.Fatal(err)
		}
	}
	_, _ = near.Close(), far.Close()
}

// BenchmarkRelay puts calls and copies over each carrier beside what TCP over loopback alone takes,
// in one run: the ratio to that is a metric of its own. All parts are goroutines of one process.
func BenchmarkRelay(b *testing.B) {
	floor := map[string]float64{}
	against := func(b *testing.B, name string) {
		per := float64(b.Elapsed().Nanoseconds()) / float64(b.N)
		if f := floor[name]; f > 0 {
			b.ReportMetric(per/f, "x")
		}
	}
	keep := func(name string, f func(*testing.B)) func(*testing.B) {
		return func(b *testing.B) {
			f(b)
			floor[name] = float64(b.Elapsed().Nanoseconds()) / float64(b.N)
		}
	}
	b.Run("call/ping-pong", keep("call", pingPong))
	for _, name := range carrierNames {
		b.Run("call/"+name, func(b *testing.B) {
			s := startOver(b, remotetest.Carriers()[name])
			a := &wire.CtxSynchronizeArgs{}
			for b.Loop() {
				if res, err := s.Call(0, a, nil); err != nil || res != cuda.Success {
					b.Fatal(res, err)
				}
			}
			against(b, "call")
			_ = s.finish(b)
		})
	}
	for _, size := range []int{4 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20} {
		label := fmt.Sprintf("copy/%dK", size>>10)
		b.Run(label+"/stream", keep(label, func(b *testing.B) { streamed(b, size) }))
		for _, name := range carrierNames {
			for direction, to := range []string{"up", "down"} {
				b.Run(fmt.Sprintf("%s/%s/%s", label, name, to), func(b *testing.B) {
					copies(b, startOver(b, remotetest.Carriers()[name]), size, uint32(direction))
					against(b, label)
				})
			}
		}
	}
}

var carrierNames = []string{"unix", "tcp", "relay", "relay+tls"}

// copies copies between staging memory and the device, and waits for each: up to the device, or
// down.
func copies(b *testing.B, s *session, size int, direction uint32) {
	var m wire.MemAllocReply
	s.must(b, cuda.Success, &wire.MemAllocArgs{Size: uint64(size)}, &m)
	id, _, res, err := s.AddRegion(0, wire.RegionStaging, size)
	if err != nil || res != cuda.Success {
		b.Fatal(res, err)
	}
	b.SetBytes(int64(size))
	value := uint32(0)
	for b.Loop() {
		value++
		if err := s.Send(&wire.MemcpyStagedArgs{Direction: direction, Region: id, Size: uint64(size), Device: m.Ptr, Word: 3, Value: value}); err != nil {
			b.Fatal(err)
		}
		s.must(b, cuda.Success, &wire.SessionFenceArgs{}, nil)
		if s.Word(3) != value {
			b.Fatal("the copy is not done")
		}
	}
	_ = s.finish(b)
}
