package drivertest

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"sync"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/driver"
)

// FirstAddress is where a Session's memory begins.
const FirstAddress = 0x7000_0000_0000

// Backend opens Sessions.
type Backend struct {
	// OnOpen is called with each session, if set.
	OnOpen func(*Session)
	// Err is what Open fails with, if set.
	Err error
}

var _ driver.Backend = (*Backend)(nil)

// Name implements driver.Backend.
func (*Backend) Name() string { return "test" }

// Devices implements driver.Backend.
func (*Backend) Devices() ([]driver.DeviceSummary, error) {
	return []driver.DeviceSummary{{Name: "Test GPU", UUID: "GPU-00000000-0000-0000-0000-000000000001", TotalMem: 1 << 30}}, nil
}

// Open implements driver.Backend.
func (b *Backend) Open(h driver.Host, o driver.Options) (driver.Session, error) {
	if b.Err != nil {
		return nil, b.Err
	}
	s := &Session{Host: h, Options: o, budget: o.Memory(), next: FirstAddress, Memory: map[uint64][]byte{}, Objects: map[uint32]wire.Op{}}
	if b.OnOpen != nil {
		b.OnOpen(s)
	}
	return s, nil
}

// Session has memory (MemAlloc, MemFree, MemcpyHtoD, MemcpyDtoH, MemcpyStaged), objects (contexts,
// streams, events, links), and waits: StreamSynchronize on stream Held is open until Finish.
type Session struct {
	wire.Unsupported
	Host    driver.Host
	Options driver.Options

	mu      sync.Mutex
	budget  driver.Budget
	next    uint64
	Memory  map[uint64][]byte
	Objects map[uint32]wire.Op // id to the operation that made it
	Log     []wire.Op          // operations that arrived
	held    []*wire.Pending
	Closed  bool
	launch  func()
}

// OnLaunch has f called with each launch, on the consumer.
func (s *Session) OnLaunch(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.launch = f
}

// Held is the stream whose synchronisation waits for Finish.
const Held wire.Stream = 77

var _ driver.Session = (*Session)(nil)

func (s *Session) log(c *wire.Call) {
	s.mu.Lock()
	s.Log = append(s.Log, c.Op)
	s.mu.Unlock()
}

// SessionInit implements wire.Driver.
func (s *Session) SessionInit(c *wire.Call, a *wire.SessionInitArgs, r *wire.SessionInitReply) cuda.Result {
	s.log(c)
	r.DriverVersion, r.DeviceCount, r.MemLimit = 12040, 1, s.Options.MemoryLimit
	if reg, ok := s.Host.Region(0); ok && reg.Mem != nil {
		r.Caps = wire.CapMap
	}
	d := wire.DeviceInfo{TotalMem: 1 << 30, Compute: 90}
	copy(d.Name[:], "Test GPU")
	r.Devices = d.Append(nil)
	return cuda.Success
}

// RegionAdd implements wire.Driver.
func (s *Session) RegionAdd(c *wire.Call, a *wire.RegionAddArgs, r *wire.RegionAddReply) cuda.Result {
	s.log(c)
	if _, ok := s.Host.Region(a.Region); !ok {
		return cuda.ErrorInvalidValue
	}
	r.Dev = a.Va
	return cuda.Success
}

// RegionDrop implements wire.Driver.
func (s *Session) RegionDrop(c *wire.Call, _ *wire.RegionDropArgs) cuda.Result {
	s.log(c)
	return cuda.Success
}

// PrimaryCtxRetain implements wire.Driver.
func (s *Session) PrimaryCtxRetain(c *wire.Call, a *wire.PrimaryCtxRetainArgs, _ *wire.PrimaryCtxRetainReply) cuda.Result {
	return s.create(c, a.Ctx)
}

// CtxCreate implements wire.Driver.
func (s *Session) CtxCreate(c *wire.Call, a *wire.CtxCreateArgs) cuda.Result {
	return s.create(c, a.Ctx)
}

// CtxDestroy implements wire.Driver.
func (s *Session) CtxDestroy(c *wire.Call, a *wire.CtxDestroyArgs) cuda.Result {
	return s.destroy(c, a.Ctx)
}

// StreamCreate implements wire.Driver.
func (s *Session) StreamCreate(c *wire.Call, a *wire.StreamCreateArgs) cuda.Result {
	return s.create(c, a.Stream)
}

// StreamDestroy implements wire.Driver.
func (s *Session) StreamDestroy(c *wire.Call, a *wire.StreamDestroyArgs) cuda.Result {
	return s.destroy(c, a.Stream)
}

// EventCreate implements wire.Driver.
func (s *Session) EventCreate(c *wire.Call, a *wire.EventCreateArgs) cuda.Result {
	return s.create(c, a.Event)
}

// EventDestroy implements wire.Driver.
func (s *Session) EventDestroy(c *wire.Call, a *wire.EventDestroyArgs) cuda.Result {
	return s.destroy(c, a.Event)
}

// ModuleLoad implements wire.Driver. The image's bytes become a global of the module.
func (s *Session) ModuleLoad(c *wire.Call, a *wire.ModuleLoadArgs, _ *wire.ModuleLoadReply) cuda.Result {
	s.place(c, uint64(len(a.Image)))
	return s.create(c, a.Module)
}

// LinkCreate implements wire.Driver.
func (s *Session) LinkCreate(c *wire.Call, a *wire.LinkCreateArgs) cuda.Result {
	return s.create(c, a.Link)
}

// LinkAdd implements wire.Driver. The input is not kept.
func (s *Session) LinkAdd(c *wire.Call, _ *wire.LinkAddArgs, _ *wire.LinkAddReply) cuda.Result {
	s.log(c)
	return cuda.Success
}

// LinkDestroy implements wire.Driver.
func (s *Session) LinkDestroy(c *wire.Call, a *wire.LinkDestroyArgs) cuda.Result {
	return s.destroy(c, a.Link)
}

func (s *Session) create(c *wire.Call, id uint32) cuda.Result {
	s.log(c)
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.Objects[id]; ok || id == 0 {
		return cuda.ErrorInvalidValue
	}
	s.Objects[id] = c.Op
	return cuda.Success
}

func (s *Session) destroy(c *wire.Call, id uint32) cuda.Result {
	s.log(c)
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.Objects[id]; !ok {
		return cuda.ErrorInvalidHandle
	}
	delete(s.Objects, id)
	return cuda.Success
}

// MemAlloc implements wire.Driver.
func (s *Session) MemAlloc(c *wire.Call, a *wire.MemAllocArgs, r *wire.MemAllocReply) cuda.Result {
	s.log(c)
	if a.Size == 0 || a.Size > 1<<30 {
		return cuda.ErrorInvalidValue
	}
	if !s.budget.Reserve(a.Size) {
		return cuda.ErrorOutOfMemory
	}
	r.Ptr = s.place(c, a.Size)
	return cuda.Success
}

// MemGetInfo implements wire.Driver: of a device with 1 GiB.
func (s *Session) MemGetInfo(c *wire.Call, r *wire.MemGetInfoReply) cuda.Result {
	s.log(c)
	r.Total = 1 << 30
	if l := s.budget.Limit(); l != 0 {
		r.Total = min(r.Total, l)
	}
	r.Free = r.Total - min(r.Total, s.budget.Used())
	return cuda.Success
}

// place allocates memory, at the address of the first time when replaying.
func (s *Session) place(c *wire.Call, size uint64) uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	addr, ok := c.Place()
	if !ok {
		addr = s.next
		c.Placed = append(c.Placed, addr)
	}
	s.next = max(s.next, addr+(size+4095)&^4095)
	s.Memory[addr] = make([]byte, size)
	return addr
}

// Size is the length of the allocation at addr, 0 if there is none.
func (s *Session) Size(addr uint64) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.Memory[addr])
}

// MemFree implements wire.Driver.
func (s *Session) MemFree(c *wire.Call, a *wire.MemFreeArgs) cuda.Result {
	s.log(c)
	s.mu.Lock()
	defer s.mu.Unlock()
	m, ok := s.Memory[a.Ptr]
	if !ok {
		return cuda.ErrorInvalidValue
	}
	delete(s.Memory, a.Ptr)
	s.budget.Release(uint64(len(m)))
	return cuda.Success
}

// find returns size bytes of device memory.
func (s *Session) find(addr, size uint64) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	for base, m := range s.Memory {
		if addr >= base && addr-base < uint64(len(m)) && size <= uint64(len(m))-(addr-base) {
			return m[addr-base:][:size]
		}
	}
	return nil
}

// MemcpyHtoD implements wire.Driver.
func (s *Session) MemcpyHtoD(c *wire.Call, a *wire.MemcpyHtoDArgs) cuda.Result {
	s.log(c)
	m := s.find(a.Dst, uint64(len(a.Src)))
	if m == nil {
		return cuda.ErrorInvalidValue
	}
	copy(m, a.Src)
	return cuda.Success
}

// MemcpyDtoH implements wire.Driver.
func (s *Session) MemcpyDtoH(c *wire.Call, a *wire.MemcpyDtoHArgs, r *wire.MemcpyDtoHReply) cuda.Result {
	s.log(c)
	m := s.find(a.Src, uint64(a.Size))
	if m == nil {
		return cuda.ErrorInvalidValue
	}
	r.Dst = m
	return cuda.Success
}

// MemcpyStaged implements wire.Driver.
func (s *Session) MemcpyStaged(c *wire.Call, a *wire.MemcpyStagedArgs) cuda.Result {
	s.log(c)
	reg, ok := s.Host.Region(a.Region)
	m := s.find(a.Device, a.Size)
	if !ok || m == nil {
		return cuda.ErrorInvalidValue
	}
	var err error
	if a.Direction == 0 {
		err = reg.ReadStaged(m, a)
	} else {
		_, err = reg.IO.WriteAt(m, int64(a.Offset))
	}
	if err != nil {
		return cuda.ErrorInvalidValue
	}
	s.Host.CompleteWord(a.Word, a.Value)
	return cuda.Success
}

// CtxSynchronize implements wire.Driver: nothing ever runs.
func (s *Session) CtxSynchronize(*wire.Call) cuda.Result { return cuda.Success }

// StreamSynchronize implements wire.Driver.
func (s *Session) StreamSynchronize(c *wire.Call, a *wire.StreamSynchronizeArgs) cuda.Result {
	s.log(c)
	if a.Stream != Held {
		return cuda.Success
	}
	s.mu.Lock()
	s.held = append(s.held, c.Later())
	s.mu.Unlock()
	return cuda.Success
}

// Finish answers all open waits.
func (s *Session) Finish(res cuda.Result) {
	s.mu.Lock()
	held := s.held
	s.held = nil
	s.mu.Unlock()
	for _, p := range held {
		p.Done(res, nil)
	}
}

// Launch implements wire.Driver: the parameters come out as console text.
func (s *Session) Launch(c *wire.Call, a *wire.LaunchArgs) cuda.Result {
	s.log(c)
	s.mu.Lock()
	launch := s.launch
	s.mu.Unlock()
	if launch != nil {
		launch()
	}
	if a.Func == 0 {
		return cuda.ErrorInvalidHandle
	}
	s.Host.Console(bytes.Clone(a.Params))
	return cuda.Success
}

// Quiesce implements driver.Snapshotter.
func (s *Session) Quiesce(ctx context.Context) error {
	s.Finish(cuda.Success)
	return ctx.Err()
}

// ExportMemory implements driver.Snapshotter.
func (s *Session) ExportMemory(fn func(addr, size uint64, r io.Reader) error) error {
	for addr, m := range s.Memory {
		if err := fn(addr, uint64(len(m)), bytes.NewReader(m)); err != nil {
			return err
		}
	}
	return nil
}

// ImportMemory implements driver.Snapshotter.
func (s *Session) ImportMemory(addr, size uint64, r io.Reader) error {
	m, ok := s.Memory[addr]
	if !ok || uint64(len(m)) != size {
		return fmt.Errorf("no allocation of %d bytes at %#x", size, addr)
	}
	_, err := io.ReadFull(r, m)
	return err
}

// Close implements driver.Session.
func (s *Session) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.Closed = true
	return nil
}
