package soft

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/driver/soft/exec"
)

// attributeSize is the size of a CUlaunchAttribute: id at 0, value at 8.
const attributeSize = 72

// launch is a kernel launch before it is queued.
type launch struct {
	grid, block [3]uint32
	cluster     [3]uint32 // zero: what the kernel says, or none
	dynamic     uint32
	cooperative bool
	params      []byte
	events      []*event // recorded behind the kernel
}

func (l *launch) threads() uint64 {
	return uint64(l.block[0]) * uint64(l.block[1]) * uint64(l.block[2])
}

// Launch queues a kernel.
func (s *session) Launch(c *wire.Call, a *wire.LaunchArgs) cuda.Result {
	f, res := s.function(c, a.Func)
	if res != cuda.Success {
		return res
	}
	st, res := s.stream(c, a.Stream)
	if res != cuda.Success {
		return res
	}
	if st.ctx != f.mod.ctx {
		return cuda.ErrorInvalidContext
	}
	l := launch{
		grid: [3]uint32{a.Gx, a.Gy, a.Gz}, block: [3]uint32{a.Bx, a.By, a.Bz}, dynamic: a.Shared,
		cooperative: a.Flags&wire.LaunchCooperative != 0, params: a.Params,
	}
	if res := s.attributes(&l, a.Attrs); res != cuda.Success {
		return res
	}
	if res := l.check(f.entry); res != cuda.Success {
		return res
	}
	if l.cooperative && !l.fits(f.entry, s.gpus[f.mod.device].cores) {
		return cuda.ErrorCooperativeLaunchTooLarge
	}
	if f.entry.lacks != nil {
		s.complain(f.entry)
		return cuda.ErrorNotSupported
	}
	l.params = bytes.Clone(a.Params)
	if f.entry.code.UsesHeap() {
		if _, res := s.heapFor(st.ctx); res != cuda.Success {
			return res
		}
	}
	if s.recording == nil {
		if res := s.takeLocal(st.ctx, f.entry.code.Attributes().LocalBytes); res != cuda.Success {
			return res
		}
	}
	s.enqueue(st, s.kernelTask(st.ctx, f.entry.code, &l), s.before(st))
	for _, e := range l.events {
		s.record(st, e)
	}
	return cuda.Success
}

// complain tells the guest once why a kernel does not run.
func (s *session) complain(e *entry) {
	if e.complained {
		return
	}
	e.complained = true
	s.log.Warn("kernel cannot run on the software GPU", "kernel", e.code.Name(), "why", e.lacks)
	s.host.ConsoleError(fmt.Appendf(nil, "causeway: kernel %s cannot run on the software GPU: %v\n", e.code.Name(), e.lacks))
}

// check judges a launch as a driver does.
func (l *launch) check(e *entry) cuda.Result {
	attrs := e.code.Attributes()
	for i := range 3 {
		if l.grid[i] == 0 || l.block[i] == 0 {
			return cuda.ErrorInvalidValue
		}
	}
	switch {
	case l.grid[0] > maxGridX || l.grid[1] > maxGridYZ || l.grid[2] > maxGridYZ,
		l.block[0] > maxBlockThreads || l.block[1] > maxBlockThreads || l.block[2] > maxBlockZ,
		l.threads() > maxBlockThreads,
		l.dynamic > e.dynamic(),
		uint64(len(l.params)) < e.code.ParamBytes() || len(l.params) > maxParamBytes,
		attrs.RequiredBlock != [3]uint32{} && attrs.RequiredBlock != l.block:
		return cuda.ErrorInvalidValue
	case l.threads() > uint64(attrs.MaxThreadsPerBlock):
		return cuda.ErrorLaunchOutOfResources
	}
	return l.checkCluster(e)
}

// fits reports whether all blocks can be resident at once.
func (l *launch) fits(e *entry, cores int) bool {
	blocks := uint64(l.grid[0]) * uint64(l.grid[1]) // below 2^47
	if blocks > 1<<31 {
		return false
	}
	return blocks*uint64(l.grid[2]) <= uint64(e.active(int32(l.threads()), uint64(l.dynamic)))*uint64(cores)
}

// attributes reads launch attributes. Those that only allow or prefer something need nothing done.
func (s *session) attributes(l *launch, list []byte) cuda.Result {
	if len(list)%attributeSize != 0 {
		return cuda.ErrorInvalidValue
	}
	for ; len(list) > 0; list = list[attributeSize:] {
		id, value := binary.LittleEndian.Uint32(list), list[8:attributeSize]
		word := func(i int) uint32 { return binary.LittleEndian.Uint32(value[4*i:]) }
		switch id {
		case cuda.LaunchAttrIgnore, cuda.LaunchAttrAccessPolicyWindow, cuda.LaunchAttrSynchronizationPolicy,
			cuda.LaunchAttrClusterSchedulingPolicyPreference, cuda.LaunchAttrProgrammaticStreamSerialization,
			cuda.LaunchAttrPriority, cuda.LaunchAttrMemSyncDomainMap, cuda.LaunchAttrMemSyncDomain,
			cuda.LaunchAttrPreferredClusterDimension, cuda.LaunchAttrPreferredSharedMemoryCarveout,
			cuda.LaunchAttrNvlinkUtilCentricScheduling:
		case cuda.LaunchAttrCooperative:
			l.cooperative = l.cooperative || word(0) != 0
		case cuda.LaunchAttrClusterDimension:
			l.cluster = [3]uint32{word(0), word(1), word(2)}
		case cuda.LaunchAttrProgrammaticEvent, cuda.LaunchAttrLaunchCompletionEvent:
			e, ok := s.events[word(0)]
			if !ok || word(1) != 0 {
				return cuda.ErrorInvalidHandle
			}
			l.events = append(l.events, e)
		case cuda.LaunchAttrDeviceUpdatableKernelNode:
			if word(0) != 0 {
				return cuda.ErrorNotSupported
			}
		default:
			return cuda.ErrorInvalidValue
		}
	}
	return cuda.Success
}

// kernelTask is the queued launch.
func (s *session) kernelTask(g *gpuContext, k *exec.Kernel, l *launch) *task {
	s.grids++
	cores := s.gpus[g.device].cores
	config := exec.Config{
		Grid: l.grid, Block: l.block, Cluster: l.cluster, DynShared: l.dynamic, Params: l.params, Space: s.space, Printf: s.host.Console, SetConditional: s.setConditional,
		Cores: cores, SMs: uint32(cores), StackBytes: g.limits[cuda.LimitStackSize], Cooperative: l.cooperative, GridID: s.grids,
	}
	if g.heap != nil {
		config.Heap = g.heap
	}
	if s.texSet != nil {
		config.Textures = s.texSet
	}
	return &task{bytes: int64(len(l.params)) + 512, run: func() cuda.Result {
		if err := s.busy.run(func() error { return k.Launch(s.running, config) }); err != nil {
			return s.fault(k, err)
		}
		return cuda.Success
	}}
}

var faultResults = map[exec.FaultKind]cuda.Result{
	exec.IllegalAddress:     cuda.ErrorIllegalAddress,
	exec.MisalignedAddress:  cuda.ErrorMisalignedAddress,
	exec.IllegalInstruction: cuda.ErrorIllegalInstruction,
	exec.Assert:             cuda.ErrorAssert,
	exec.Trap:               cuda.ErrorLaunchFailed,
	// As GPUs of today see it: the stack is memory.
	exec.StackOverflow: cuda.ErrorIllegalAddress,
	exec.InvalidPC:     cuda.ErrorInvalidPc,
	exec.Deadlock:      cuda.ErrorLaunchTimeout,
}

// fault is the CUDA error for what stopped a kernel.
func (s *session) fault(k *exec.Kernel, err error) cuda.Result {
	var f *exec.Fault
	var u *exec.UnsupportedError
	switch {
	case errors.As(err, &f):
		if f.Kind == exec.Cancelled {
			return cuda.Success // the session ends: nobody asks
		}
		if f.Kind == exec.Assert {
			s.host.ConsoleError([]byte(f.Msg + "\n"))
		}
		s.log.Debug("kernel failed", "kernel", k.Name(), "why", err)
		if res, ok := faultResults[f.Kind]; ok {
			return res
		}
		return cuda.ErrorLaunchFailed
	case errors.As(err, &u):
		s.host.ConsoleError(fmt.Appendf(nil, "causeway: kernel %s cannot go on: %v\n", k.Name(), err))
		s.log.Warn("kernel failed", "kernel", k.Name(), "why", err)
		return cuda.ErrorLaunchFailed
	}
	s.log.Warn("kernel failed", "kernel", k.Name(), "why", err)
	return cuda.ErrorInvalidValue
}
