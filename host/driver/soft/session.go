package soft

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"log/slog"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/driver"
)

// dropWait is how long RegionDrop waits for work that may use the region.
const dropWait = 5 * time.Second

// session is one guest process on software GPUs.
type session struct {
	wire.Unsupported
	graphState
	vmmState
	arrayState
	hostState

	host  driver.Host
	opt   driver.Options
	gpus  []*gpu // in the guest's order
	space *space
	queue *queue
	busy  clock
	log   *slog.Logger

	// running is cancelled when kernels and stream waits must end.
	running context.Context
	cancel  context.CancelFunc

	ctxs      table[*gpuContext]
	primaries []primary
	orphans   []*gpuContext // destroyed, with work left
	streams   table[*stream]
	events    table[*event]
	modules   table[*module]
	libraries table[*library]
	funcs     table[*function]
	kernels   table[*kernel]
	pools     table[*pool]
	devPools  []*pool
	regions   map[uint32]*region
	grids     uint64  // launches so far
	freeing   *task   // releases memory; the last such, which follows all others
	deps      []*task // scratch
	gauge     gauge
}

// primary is the state of a device's primary context, also while there is none.
type primary struct {
	ctx   *gpuContext
	flags uint32
}

var _ driver.Session = (*session)(nil)

func newSession(h driver.Host, o driver.Options, gpus []*gpu) (driver.Session, error) {
	var physical uint64
	for _, g := range gpus {
		physical += g.size
	}
	space, err := newSpace(len(gpus), physical, o.Memory())
	if err != nil {
		return nil, err
	}
	s := &session{
		host: h, opt: o, gpus: gpus, space: space, log: slog.Default(), busy: clock{to: o.Busy},
		ctxs: table[*gpuContext]{}, primaries: make([]primary, len(gpus)),
		streams: table[*stream]{}, events: table[*event]{}, modules: table[*module]{}, libraries: table[*library]{},
		funcs: table[*function]{}, kernels: table[*kernel]{}, pools: table[*pool]{}, regions: map[uint32]*region{},
	}
	_, _ = rand.Read(s.name[:])
	for range gpus {
		s.devPools = append(s.devPools, &pool{device: len(s.devPools), attrs: map[int32]uint64{}})
	}
	s.queue = newQueue(s.failed)
	s.running, s.cancel = context.WithCancel(context.Background())
	return s, nil
}

// Close implements driver.Session. Kernels that run are cancelled.
func (s *session) Close() error {
	s.cancel()
	s.queue.close()
	return errors.Join(s.closeVMM(), s.space.close())
}

// SessionInit describes the devices. CUDA_VISIBLE_DEVICES of the guest counts within the devices
// offered to it.
func (s *session) SessionInit(c *wire.Call, a *wire.SessionInitArgs, r *wire.SessionInitReply) cuda.Result {
	if a.Version != wire.ProtocolVersion {
		return cuda.ErrorSystemDriverMismatch
	}
	s.gpus = visible(s.gpus, a.Env)
	if len(s.gpus) == 0 {
		return cuda.ErrorNoDevice
	}
	mapped := false
	if reg, ok := s.host.Region(0); ok && reg.Mem != nil {
		mapped = true
		r.Caps |= wire.CapMap
	}
	for _, g := range s.gpus {
		r.Devices = g.info(mapped).Append(r.Devices)
	}
	r.Caps |= wire.CapMemOnHost
	r.DriverVersion, r.DeviceCount, r.MemLimit = driverVersion, uint32(len(s.gpus)), s.space.budget.Limit()
	return cuda.Success
}

// visible selects GPUs as CUDA_VISIBLE_DEVICES says: numbers or UUIDs, up to the first that names
// no device.
func visible(gpus []*gpu, env []byte) []*gpu {
	for kv := range bytes.SplitSeq(env, []byte{0}) {
		list, ok := strings.CutPrefix(string(kv), "CUDA_VISIBLE_DEVICES=")
		if !ok {
			continue
		}
		var chosen []*gpu
		for f := range strings.SplitSeq(list, ",") {
			g := pick(gpus, strings.TrimSpace(f))
			if g == nil {
				break
			}
			for _, other := range chosen {
				if other == g {
					return nil // the same device twice: none at all, as the driver does
				}
			}
			chosen = append(chosen, g)
		}
		return chosen
	}
	return gpus
}

func pick(gpus []*gpu, name string) *gpu {
	if n, err := strconv.Atoi(name); err == nil {
		if n >= 0 && n < len(gpus) {
			return gpus[n]
		}
		return nil
	}
	for _, g := range gpus {
		if strings.HasPrefix(name, "GPU-") && len(name) > 4 && strings.HasPrefix(g.uuidText(), name) {
			return g
		}
	}
	return nil
}

// SessionFence answers by being consumed.
func (s *session) SessionFence(*wire.Call) cuda.Result { return cuda.Success }

// RegionAdd learns of guest memory; pinned regions become reachable for kernels.
func (s *session) RegionAdd(c *wire.Call, a *wire.RegionAddArgs, r *wire.RegionAddReply) cuda.Result {
	reg, ok := s.host.Region(a.Region)
	if !ok || reg.Kind != a.Kind {
		return cuda.ErrorInvalidValue
	}
	if _, known := s.regions[a.Region]; known || len(s.regions) >= maxObjects {
		return cuda.ErrorInvalidValue
	}
	if a.Kind == wire.RegionPinned {
		if reg.Mem == nil {
			return cuda.ErrorNotSupported
		}
		if addressOf(reg.Mem) != reg.VA || len(reg.Mem) == 0 {
			return cuda.ErrorMapFailed
		}
		if err := s.space.addRegion(a.Region, reg.Mem); err != nil {
			s.log.Warn("pinned memory cannot be reached by the software GPU", "error", err)
			return cuda.ErrorMapFailed
		}
		r.Dev = reg.VA
	}
	s.regions[a.Region] = &region{kind: a.Kind}
	return cuda.Success
}

// region is known guest memory.
type region struct {
	kind  uint32
	users atomic.Int64 // queued copies
}

// RegionDrop forgets guest memory, after the work that may use it. ErrorNotReady: that work does
// not end.
func (s *session) RegionDrop(c *wire.Call, a *wire.RegionDropArgs) cuda.Result {
	reg, ok := s.regions[a.Region]
	if !ok {
		return cuda.ErrorInvalidValue
	}
	ctx, cancel := context.WithTimeout(s.running, dropWait)
	defer cancel()
	err := s.queue.wait(ctx, func() bool {
		return reg.users.Load() == 0 && (reg.kind != wire.RegionPinned || s.queue.tasks == 0)
	})
	if errors.Is(err, context.DeadlineExceeded) {
		return cuda.ErrorNotReady
	}
	if reg.kind == wire.RegionPinned {
		s.space.dropRegion(a.Region)
	}
	delete(s.regions, a.Region)
	return cuda.Success
}
