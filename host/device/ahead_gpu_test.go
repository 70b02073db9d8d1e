package device_test

import (
	"encoding/binary"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"causeway/cuda/wire"
	"causeway/host/device"
	"causeway/virtio/fs/fstest"
)

// comparePTX counts pages of 4 KiB of which a word, each at another place, is not what it should
// be.
const comparePTX = `.version 7.0
.target sm_75
.address_size 64
.visible .entry compare(.param .u64 at, .param .u32 want, .param .u64 bad)
{
	.reg .pred %p<2>; .reg .b32 %r<8>; .reg .b64 %d<6>;
	ld.param.u64 %d1, [at]; ld.param.u32 %r1, [want]; ld.param.u64 %d2, [bad];
	mov.u32 %r2, %ctaid.x; mov.u32 %r3, %ntid.x; mov.u32 %r4, %tid.x;
	mad.lo.s32 %r5, %r2, %r3, %r4;
	mul.lo.s32 %r6, %r5, 52;
	and.b32 %r6, %r6, 4092;
	mul.wide.u32 %d3, %r5, 4096;
	cvt.u64.u32 %d4, %r6;
	add.s64 %d3, %d3, %d4;
	add.s64 %d3, %d3, %d1;
	ld.global.u32 %r7, [%d3];
	setp.ne.u32 %p1, %r7, %r1;
	@%p1 red.global.add.u32 [%d2], 1;
	ret;
}`

// patterned is memory of a program in parts of a word each, the first of zeros.
type patterned struct {
	*tallying
	at, part, bad uint64
}

const (
	patternParts                   = 16
	patternModule, patternFunction = 60, 61
)

func pattern(t *testing.T, h *tallying, size uint64) *patterned {
	t.Helper()
	p := &patterned{tallying: h, part: size / patternParts}
	var m, bad wire.MemAllocReply
	must(t, h.Guest, &wire.MemAllocArgs{Size: size}, &m)
	must(t, h.Guest, &wire.MemAllocArgs{Size: 512}, &bad)
	must(t, h.Guest, &wire.ModuleLoadArgs{Module: patternModule, Image: []byte(comparePTX)}, &wire.ModuleLoadReply{})
	must(t, h.Guest, &wire.ModuleGetFunctionArgs{Module: patternModule, Func: patternFunction, Name: []byte("compare")}, &wire.ModuleGetFunctionReply{})
	p.at, p.bad = m.Ptr, bad.Ptr
	for i := range uint64(patternParts) {
		p.write(t, i)
	}
	return p
}

func (p *patterned) word(i uint64) uint32 { return uint32(i * 0x01020304) }

func (p *patterned) write(t *testing.T, i uint64) {
	t.Helper()
	must(t, p.Guest, &wire.MemsetArgs{Dst: p.at + i*p.part, Element: 4, Value: p.word(i), Width: p.part / 4, Height: 1, Stream: wire.StreamLegacy}, nil)
	must(t, p.Guest, &wire.CtxSynchronizeArgs{}, nil)
}

func (p *patterned) verify(t *testing.T) {
	t.Helper()
	for i := range uint64(patternParts) {
		p.compare(t, i)
	}
}

// compare checks a part.
func (p *patterned) compare(t *testing.T, i uint64) {
	t.Helper()
	must(t, p.Guest, &wire.MemsetArgs{Dst: p.bad, Element: 4, Width: 1, Height: 1, Stream: wire.StreamLegacy}, nil)
	p.launch(t, i, 1, 1)
	if n := p.tallying.word(t, p.bad); n != 0 {
		t.Errorf("part %d: %d pages are wrong", i, n)
	}
}

// launch has a part checked so many times, by as many kernels or by one.
func (p *patterned) launch(t *testing.T, i uint64, kernels, rows int) {
	t.Helper()
	a := binary.LittleEndian.AppendUint64(nil, p.at+i*p.part)
	a = binary.LittleEndian.AppendUint32(a, p.word(i))
	a = binary.LittleEndian.AppendUint64(append(a, 0, 0, 0, 0), p.bad)
	for range kernels {
		if err := p.Guest.Send(&wire.LaunchArgs{Func: patternFunction, Stream: wire.StreamLegacy, Gx: uint32(p.part / 4096 / 256), Gy: uint32(rows), Gz: 1, Bx: 256, By: 1, Bz: 1, Params: a}); err != nil {
			t.Fatal(err)
		}
	}
}

// inRow is how often a program checks a part before it waits, where its speed is asked for: as long
// as keeps a GPU busy for some milliseconds. By many kernels these are of some 20 us each (H200),
// which are longer than their launches, so that its process, which is this and that of both
// devices, has little part in it. The software GPU's speed is nobody's question, and what its
// threads take the copy lacks.
const (
	inRow       = 1024
	inRowSoft   = 16
	manyKernels = 128
)

// speeds are how many parts a second the program checks, by turns by many kernels and by few, in
// turn from a part on, until something is so: what work that never rests gets done. n is how often
// it was asked, of each: few say little.
func (p *patterned) speeds(t *testing.T, from uint64, until func() bool) (many, few float64, n uint64) {
	t.Helper()
	row := uint64(inRow)
	if os.Getenv(gpuEnv) == "" || os.Getenv(gpuEnv) == "soft" {
		row = inRowSoft
	}
	var took [2]time.Duration
	for ; n < 2 || n%2 == 1 || !until(); n++ {
		kernels := []int{int(min(manyKernels, row)), 1}[n%2]
		begin := time.Now()
		p.launch(t, from+n/2%(patternParts-from), kernels, int(row)/kernels)
		must(t, p.Guest, &wire.CtxSynchronizeArgs{}, nil)
		took[n%2] += time.Since(begin)
	}
	each := float64(n / 2 * row)
	return each / took[0].Seconds(), each / took[1].Seconds(), n / 2
}

// mostUsed is the most memory of the host that a process has had in use, in bytes.
func mostUsed(t *testing.T, pid int) uint64 {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(b), "VmHWM:")
	var kib uint64
	if _, err := fmt.Sscan(rest, &kib); err != nil {
		t.Fatal(err)
	}
	return kib << 10
}

// TestAheadOnGPU moves a program with much memory that goes ahead of it, and writes a part of it
// between two rounds: the memory waits at the destination on the GPU, not in the worker. How long
// the program stands still is what it is for, on a machine with a GPU (CAUSEWAY_TEST_GPU=cuda
// CAUSEWAY_TEST_BYTES=34359738368).
func TestAheadOnGPU(t *testing.T) {
	gpu, size := os.Getenv(gpuEnv), uint64(96*mib)
	if text := os.Getenv(bytesEnv); text != "" {
		var err error
		if size, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	var here, there []int
	if text := os.Getenv(thereEnv); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil {
			t.Fatal(err)
		}
		here, there = []int{0}, []int{n}
	}
	from, to := movingVM(t, here...), movingVM(t, there...)
	if err := to.Kill(); err != nil {
		t.Fatal(err)
	}
	to.Guest = nil
	p := pattern(t, tally(t, from, 1), size)
	p.verify(t)
	begin := time.Now()
	alone, aloneFew, _ := p.speeds(t, 4, func() bool { return time.Since(begin) > 300*time.Millisecond })

	begin = time.Now()
	c := precopy(t, from, to, device.CopyOptions{Connections: 4, Attempt: 1})
	eventually(t, "no session is awaited", func() bool { return len(to.device.Status().Sessions) > 0 })
	worker := to.device.Status().Sessions[0].Worker
	unready := func() bool {
		if time.Since(begin) > 3*time.Minute {
			t.Fatalf("the pre-copy is not ready: %+v", c.status())
		}
		return false
	}
	// The first round sends all of it. The program asks for some seconds of it: its waits keep the
	// scheduler of this process busy, which sends slower meanwhile.
	beside, besideFew, asked := p.speeds(t, 4, func() bool { return time.Since(begin) > 3*time.Second || c.status().Rounds > 0 })
	eventually(t, "no round has ended", func() bool { return unready() || c.status().Rounds > 0 })
	p.write(t, 3) // the same again: nothing of it has to go
	must(t, p.Guest, &wire.MemsetArgs{Dst: p.at, Element: 4, Value: 7, Width: p.part / 4, Height: 1, Stream: wire.StreamLegacy}, nil)
	p.write(t, 0)
	p.speeds(t, 4, func() bool { return unready() || c.status().Ready })
	ahead := time.Since(begin)
	front, err := fstest.Await(to.socket)
	if err != nil {
		t.Fatal(err)
	}
	logs(t, from)
	st := c.status()

	begin = time.Now()
	state := save(t, from)
	saved := time.Since(begin)
	left, err := from.MoveTo(front, state)
	if err != nil {
		t.Fatal(err)
	}
	left.Close()
	if err := from.StartRings(); err != nil {
		t.Fatal(err)
	}
	must(t, p.Guest, &wire.CtxSynchronizeArgs{}, nil)
	pause := time.Since(begin)
	c.cut(t)
	most := mostUsed(t, worker)
	t.Logf("%.1f GB: %d rounds in %.1f s (%.1f GB on the wire), stood still for %.0f ms (saved in %.0f), a state of %.2f MB, the worker there had at most %d MiB of the host's memory; meanwhile the program ran at %.3f of its speed by many kernels, %.3f by few (asked %d times)",
		float64(size)/1e9, st.Rounds, ahead.Seconds(), float64(st.Total)/1e9, pause.Seconds()*1e3, saved.Seconds()*1e3, float64(len(state))/1e6, most>>20, beside/alone, besideFew/aloneFew, asked)
	if len(state) > largeSize {
		t.Errorf("the state has %d bytes, although %d went ahead", len(state), st.Total)
	}
	if (gpu == nestedGPU || gpu == "cuda" && size >= 8<<30) && most > size/2 {
		t.Errorf("the worker there had %d bytes of the host's memory", most)
	}
	p.verify(t)
	p.check(t)
	if err := p.Close(); err != nil {
		t.Error(err)
	}
}
