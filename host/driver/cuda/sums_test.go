package cuda

import (
	"encoding/binary"
	"errors"
	"math/bits"
	"math/rand/v2"
	"runtime"
	"testing"

	"causeway/cuda"
	"causeway/host/driver"
	"causeway/host/driver/cuda/bind"
)

// sumOf is what the kernel makes of a block.
func sumOf(b []byte, key [2]uint64) (sum [2]uint64) {
	fold := func(x uint64, n int) uint64 { return x ^ x>>n }
	whole, seen := len(b)&^15, byte(0)
	for _, c := range b {
		seen |= c
	}
	if seen == 0 {
		return sum
	}
	for t := range uint64(sumsThreads) {
		x := (t + 1) * 0x9e3779b97f4a7c15
		a, c := key[0]+x, key[1]^x
		for at := int(t) * 16; at < whole; at += sumsThreads * 16 {
			x, y := binary.LittleEndian.Uint64(b[at:]), binary.LittleEndian.Uint64(b[at+8:])
			a = fold((a^x)*0x6a09e667f3bcc909, 32)
			a = fold((a^y)*0xbb67ae8584caa73b, 29)
			c = fold((c+y)*0x3c6ef372fe94f82b, 31)
			c = fold((c+x)*0xa54ff53a5f1d36f1, 30)
		}
		if t == 0 {
			for _, v := range b[whole:] {
				a = fold((a^uint64(v))*0x6a09e667f3bcc909, 32)
				c = fold((c+uint64(v))*0x3c6ef372fe94f82b, 31)
			}
		}
		sum[0] += fold(a*0xff51afd7ed558ccd, 33)
		sum[1] += fold(c*0xff51afd7ed558ccd, 33)
	}
	sum[1] |= 1
	return sum
}

// TestSums holds the kernel against the same in Go, over whole, short and odd blocks and zeros, and
// asks that each bit of a block counts.
func TestSums(t *testing.T) {
	b, err := New()
	Needed(t, err)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := b.Warm(driver.Options{Migratable: true}); err != nil {
		t.Fatal(err)
	}
	if b.warm.sums.layout == nil {
		t.Fatal("the kernel is not loaded")
	}
	d := b.drv
	defer b.warm.let(d)
	if res := d.CtxSetCurrent(b.warm.primary); res != cuda.Success {
		t.Fatal(res)
	}
	const most = 5 << 16
	r, res := d.AllocHost(most + sumsSize)
	if res != cuda.Success {
		t.Fatal(res)
	}
	defer d.FreeHost(r)
	mem := r.Host().Bytes()[:most]
	out, _ := r.Mem().Slice(most, sumsSize)
	outHost, _ := r.Host().Slice(most, sumsSize)
	s := &session{drv: d, warm: b.warm}
	key := [2]uint64{rand.Uint64(), rand.Uint64()}
	sums := func(size, block int) [][2]uint64 {
		t.Helper()
		from, _ := r.Mem().Slice(0, uint64(size))
		if err := s.launchSums(bind.StreamLegacy, from, uint64(block), key, out); err != nil {
			t.Fatal(err)
		}
		if res := d.StreamSynchronize(bind.StreamLegacy); res != cuda.Success {
			t.Fatal(res)
		}
		list := make([][2]uint64, (size+block-1)/block)
		sumsOf(outHost, list)
		return list
	}
	for _, size := range []int{1, 7, 16, 100, 4096, 1<<16 - 1, 1 << 16, 1<<16 + 1, 3<<16 + 4099, most} {
		for i := range mem {
			mem[i] = byte(rand.Uint32())
		}
		clear(mem[1<<16 : 2<<16])
		for i, got := range sums(size, 1<<16) {
			if want := sumOf(mem[i<<16:min(size, (i+1)<<16)], key); got != want {
				t.Errorf("%d bytes, block %d: %x, want %x", size, i, got, want)
			}
		}
	}
	clear(mem)
	const block = 1 << 12
	seen := map[uint64]int{}
	for bit := 0; bit < block*8; bit += 509 {
		mem[bit/8] ^= 1 << (bit % 8)
		x := sums(block, block)[0]
		mem[bit/8] = 0
		seen[x[0]]++
		if x[1]&1 == 0 || bits.OnesCount64(x[0]) < 8 {
			t.Errorf("bit %d: %x", bit, x)
		}
	}
	if want := (block*8 + 508) / 509; len(seen) != want {
		t.Errorf("%d sums of %d blocks", len(seen), want)
	}
	if err := s.launchSums(bind.StreamLegacy, r.Mem(), 1, key, out); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("more blocks than have room: %v", err)
	}
}
