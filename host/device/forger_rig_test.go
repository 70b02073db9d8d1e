package device_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	gocontext "context"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/api"
	"causeway/host/device"
	"causeway/host/inventory"
	"causeway/host/schedule"
	"causeway/host/worker/link"
	"causeway/host/worker/workertest"
)

// forgePTX is a kernel of a size. Each of its threads also overwrites words, in turn all of an
// array, unless there is none: half the way round ahead, so that whatever is waited for has come.
const forgePTX = `.version 7.0
.target sm_75
.address_size 64
.visible .entry work(.param .u64 out, .param .u64 words, .param .u32 turns)
{
	.reg .pred %p<4>; .reg .b32 %r<12>; .reg .b64 %d<6>;
	ld.param.u64 %d1, [out]; ld.param.u64 %d2, [words]; ld.param.u32 %r1, [turns];
	mov.u32 %r2, %tid.x; mov.u32 %r3, %ntid.x; mov.u32 %r4, 1; mov.u32 %r5, 0x40000000;
	mov.u32 %r8, %r2;
	setp.eq.u64 %p1, %d2, 0;
again:
	mad.lo.u32 %r4, %r4, 1664525, 1013904223;
	and.b32 %r6, %r1, 31;
	setp.ne.u32 %p2, %r6, 0;
	or.pred %p2, %p2, %p1;
	@%p2 bra on;
	and.b32 %r7, %r8, 4095;
	mul.wide.u32 %d3, %r7, 4;
	add.s64 %d3, %d3, %d2;
	st.volatile.global.u32 [%d3], %r5;
	add.u32 %r8, %r8, %r3;
on:
	sub.u32 %r1, %r1, 1;
	setp.ne.u32 %p3, %r1, 0;
	@%p3 bra again;
	st.global.u32 [%d1], %r4;
	ret;
}`

// forgedWords is how many words of a session count its GPU time (host/driver/cuda/gauge.go).
const forgedWords = 4096

const (
	forgeModule, forgeWork = 60, 61
	forgeEvents            = 70 // and those after it
	forgeDepth             = 8  // batches in flight
	forgeBatch             = 4
)

// contender is a virtual GPU with one program that wants all that it can get.
type contender struct {
	*vm
	guest *workertest.Guest
	pid   int
	turns uint32
	out   uint64
	words atomic.Uint64 // the kernels overwrite those there; 0: none
	done  atomic.Uint64 // kernels
	stop  atomic.Bool
	ended chan error
	each  time.Duration // of the GPU's time, for a kernel
}

// contest is one GPU with a scheduler of its time.
type contest struct {
	*testing.T
	gpu    string
	socket string
	period time.Duration // of the accounts

	mu sync.Mutex
	// nil: a driver that divides the time by the kernels that are done stands for it
	nvml    *inventory.NVML
	members []*contender
	told    time.Time // when that was asked last, of kernels
	counted [2]uint64
	worked  [2]time.Duration
}

// reading is what the driver says, or who stands for it.
func (c *contest) reading() (*inventory.Reading, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.nvml != nil {
		return c.nvml.Read()
	}
	now, worked := time.Now(), map[int]time.Duration{}
	done := c.counts(c.members)
	if all := done[0] + done[1] - c.counted[0] - c.counted[1]; all > 0 {
		for i := range c.worked {
			c.worked[i] += time.Duration(float64(now.Sub(c.told)) * float64(done[i]-c.counted[i]) / float64(all))
		}
		c.told, c.counted = now, done
	}
	for i, m := range c.members {
		worked[m.pid] = c.worked[i]
	}
	return &inventory.Reading{Worked: []map[int]time.Duration{worked}, Sampled: []bool{true}}, nil
}

// begin has the account be of these.
func (c *contest) begin(list ...*contender) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.members, c.told, c.counted, c.worked = list, time.Now(), [2]uint64{}, [2]time.Duration{}
}

// enter makes a contender, which begins with run. account: the driver's account is compared with
// what is counted. A share of 0: nobody holds it back.
func (c *contest) enter(name string, share, limit uint32, account bool) *contender {
	c.Helper()
	v := bootWith(c.T, func(o *device.Options) {
		o.Worker = link.Config{GPU: c.gpu, Devices: []int{0}}
		o.Limits = api.Limits{Share: share, Cap: limit}
		o.Machine = func(gocontext.Context) (*inventory.Reading, error) { return nil, errors.New("not told") }
		if account {
			o.Audit, o.Machine = c.period, func(gocontext.Context) (*inventory.Reading, error) { return c.reading() }
		}
		if share > 0 {
			o.Scheduler = func(l api.Limits) (*schedule.Membership, error) {
				who := schedule.Member{GPU: "GPU-1", Key: name, Weight: l.Share, Cap: l.Cap, Soft: c.nvml == nil}
				return schedule.Join(c.socket, who, slog.New(slog.DiscardHandler)), nil
			}
		}
	})
	v.whole = os.Getenv(gpuEnv) == nestedGPU
	m := &contender{vm: v, ended: make(chan error, 1)}
	_, m.guest = start(c.T, v)
	must(c.T, m.guest, &wire.PrimaryCtxRetainArgs{Ctx: 16}, &wire.PrimaryCtxRetainReply{})
	m.guest.Ctx = 16
	m.pid, m.out = v.device.Status().Sessions[0].Worker, alloc(c.T, m.guest, 512, cuda.Success)
	must(c.T, m.guest, &wire.ModuleLoadArgs{Module: forgeModule, Image: []byte(forgePTX)}, &wire.ModuleLoadReply{})
	must(c.T, m.guest, &wire.ModuleGetFunctionArgs{Module: forgeModule, Func: forgeWork, Name: []byte("work")}, &wire.ModuleGetFunctionReply{})
	for i := range wire.ID(forgeDepth) {
		must(c.T, m.guest, &wire.EventCreateArgs{Event: forgeEvents + i, Flags: 2}, nil)
	}
	return m
}

// launch has kernels of so many turns run.
func (m *contender) launch(turns uint32, kernels int) error {
	p := binary.LittleEndian.AppendUint64(nil, m.out)
	p = binary.LittleEndian.AppendUint64(p, m.words.Load())
	p = binary.LittleEndian.AppendUint32(p, turns)
	for range kernels {
		if err := m.guest.Send(&wire.LaunchArgs{Func: forgeWork, Stream: wire.StreamLegacy, Gx: 1, Gy: 1, Gz: 1, Bx: 32, By: 1, Bz: 1, Params: p}); err != nil {
			return err
		}
	}
	return nil
}

// calibrate finds how many turns a kernel of about that length has, while nobody else runs.
func (c *contest) calibrate(m *contender, want time.Duration) {
	c.Helper()
	timed := func(turns uint32, kernels int) time.Duration {
		best := time.Hour
		for range 5 {
			begin := time.Now()
			if err := m.launch(turns, kernels); err != nil {
				c.Fatal(err)
			}
			must(c.T, m.guest, &wire.CtxSynchronizeArgs{}, nil)
			best = min(best, time.Since(begin))
		}
		return best
	}
	turns, none := uint32(256), timed(1, 1)
	for timed(turns, 1) < none+want && turns < 1<<28 {
		turns += turns / 2
	}
	m.turns = turns
	m.each = max((timed(turns, 5)-timed(turns, 1))/4, want/4)
}

// run keeps the GPU busy until stop.
func (m *contender) run() {
	m.ended <- func() error {
		for n := uint64(0); !m.stop.Load(); n++ {
			event := forgeEvents + wire.ID(n%forgeDepth)
			if n >= forgeDepth {
				if res, err := m.guest.Call(0, &wire.EventSynchronizeArgs{Event: event}, nil); err != nil || res != cuda.Success {
					return fmt.Errorf("batch %d: %v, %w", n, res, err)
				}
				m.done.Add(forgeBatch)
			}
			if err := m.launch(m.turns, forgeBatch); err != nil {
				return err
			}
			if err := m.guest.Send(&wire.EventRecordArgs{Event: event, Stream: wire.StreamLegacy}); err != nil {
				return err
			}
		}
		_, err := m.guest.Call(0, &wire.CtxSynchronizeArgs{}, nil)
		return err
	}()
}

// findWords is where a worker keeps the words by which its GPU time is counted: memory of its own
// of their size, of which some have been counted with. The forger would have to find it from within
// a kernel: that it can is assumed.
func findWords(pid int) (found []uint64, err error) {
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		return nil, err
	}
	mem, err := os.Open(fmt.Sprintf("/proc/%d/mem", pid))
	if err != nil {
		return nil, err
	}
	defer mem.Close()
	for line := range strings.Lines(string(maps)) {
		var from, to uint64
		var mode string
		if _, err := fmt.Sscanf(line, "%x-%x %s", &from, &to, &mode); err != nil || mode != "rw-s" || to-from != 4*forgedWords || !strings.Contains(line, "/dev/zero (deleted)") {
			continue
		}
		b := make([]byte, to-from)
		if _, err := mem.ReadAt(b, int64(from)); err != nil && !errors.Is(err, io.EOF) {
			return nil, err
		}
		if binary.LittleEndian.Uint32(b[len(b)-4:]) != 0 { // it is used first
			found = append(found, from)
		}
	}
	return found, nil
}

// forge has a program that runs overwrite its words from now on.
func (c *contest) forge(m *contender) {
	c.Helper()
	var found []uint64
	eventually(c.T, "no words that count GPU time", func() bool {
		var err error
		if found, err = findWords(m.pid); err != nil {
			c.Fatal(err)
		}
		return len(found) > 0
	})
	if len(found) != 1 {
		c.Fatalf("which of %x are the words?", found)
	}
	m.words.Store(found[0])
}

func (c *contest) counts(list []*contender) (n [2]uint64) {
	for i, m := range list {
		n[i] = m.done.Load()
	}
	return n
}

// share is what the scheduler says of one.
func (c *contest) share(name string) (s schedule.ShareStatus) {
	st, err := schedule.ReadStatus(context(), c.socket)
	if err != nil {
		c.Fatal(err)
	}
	for _, g := range st.GPUs {
		for _, x := range g.Shares {
			if x.Key == name {
				return x
			}
		}
	}
	return s
}

// cards is what the driver says that it has worked for each member so far.
func (c *contest) cards() (of [2]time.Duration, known bool) {
	r, err := c.reading()
	if err != nil {
		c.Fatal(err)
	}
	if len(r.Sampled) == 0 || !r.Sampled[0] {
		return of, false
	}
	for i, m := range c.members {
		of[i] = r.Worked[0][m.pid]
	}
	return of, true
}

// serve runs a scheduler until the test ends.
func (c *contest) serve() {
	ln, err := schedule.Listen(c.socket)
	if err != nil {
		c.Fatal(err)
	}
	ctx, cancel := cancellable()
	served := make(chan error, 1)
	go func() { served <- (&schedule.Server{Log: slog.New(slog.DiscardHandler)}).Serve(ctx, ln) }()
	c.Cleanup(func() {
		cancel()
		if err := <-served; err != nil {
			c.Error(err)
		}
	})
}
