package worker

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/driver"
)

// plainGPU is what a session's requests make of a GPU, kept so simply that it is right: objects,
// what belongs to what, and what was set. Requests that a driver would refuse fail.
type plainGPU struct {
	driver.Session
	things map[uint32]*thing
	memory map[uint64]*thing
	next   uint64
	clock  int
}

type thing struct {
	kind     wire.Op // that made it
	parents  []uint32
	set      map[string]uint64 // of attributes
	image    string
	retains  int
	recorded int    // events: when
	on       *thing // the context whose stream brought that
}

func newPlain(s driver.Session) *plainGPU {
	return &plainGPU{Session: s, things: map[uint32]*thing{}, memory: map[uint64]*thing{}, next: 0x10000}
}

// add makes an object that goes with its parents.
func (g *plainGPU) add(c *wire.Call, id uint32, parents ...uint32) (*thing, cuda.Result) {
	if g.things[id] != nil || id == 0 {
		return nil, cuda.ErrorInvalidValue
	}
	for _, p := range parents {
		if g.things[p] == nil {
			return nil, cuda.ErrorInvalidHandle
		}
	}
	t := &thing{kind: c.Op, parents: parents, set: map[string]uint64{}}
	g.things[id] = t
	return t, cuda.Success
}

// remove ends an object and what belongs to it.
func (g *plainGPU) remove(id uint32) cuda.Result {
	if g.things[id] == nil {
		return cuda.ErrorInvalidHandle
	}
	delete(g.things, id)
	g.removeChildren(id)
	return cuda.Success
}

func (g *plainGPU) removeChildren(id uint32) {
	for child, t := range g.things {
		if slices.Contains(t.parents, id) && g.things[child] != nil {
			g.remove(child)
		}
	}
	maps.DeleteFunc(g.memory, func(_ uint64, t *thing) bool { return slices.Contains(t.parents, id) })
}

func (g *plainGPU) setting(id uint32, kinds []wire.Op, name string, v uint64) cuda.Result {
	t := g.things[id]
	if t == nil || !slices.Contains(kinds, t.kind) {
		return cuda.ErrorInvalidHandle
	}
	t.set[name] = v
	return cuda.Success
}

var contexts = []wire.Op{wire.OpPrimaryCtxRetain, wire.OpCtxCreate}

func (g *plainGPU) PrimaryCtxRetain(c *wire.Call, a *wire.PrimaryCtxRetainArgs, _ *wire.PrimaryCtxRetainReply) cuda.Result {
	if t := g.things[a.Ctx]; t != nil && t.kind == wire.OpPrimaryCtxRetain {
		t.retains++
		return cuda.Success
	}
	t, res := g.add(c, a.Ctx)
	if t != nil {
		t.retains = 1
	}
	return res
}

func (g *plainGPU) primary(id uint32) *thing {
	if t := g.things[id]; t != nil && t.kind == wire.OpPrimaryCtxRetain {
		return t
	}
	return nil
}

func (g *plainGPU) PrimaryCtxRelease(_ *wire.Call, a *wire.PrimaryCtxReleaseArgs) cuda.Result {
	t := g.primary(a.Ctx)
	if t == nil || t.retains == 0 {
		return cuda.ErrorInvalidContext
	}
	if t.retains--; t.retains == 0 {
		return g.remove(a.Ctx)
	}
	return cuda.Success
}

func (g *plainGPU) PrimaryCtxReset(_ *wire.Call, a *wire.PrimaryCtxResetArgs) cuda.Result {
	t := g.primary(a.Ctx)
	if t == nil {
		return cuda.ErrorInvalidContext
	}
	g.removeChildren(a.Ctx)
	t.retains = 0 // to the guest library it is as if nobody had
	maps.DeleteFunc(t.set, func(name string, _ uint64) bool { return name != "flags" })
	return cuda.Success
}

func (g *plainGPU) PrimaryCtxSetFlags(_ *wire.Call, a *wire.PrimaryCtxSetFlagsArgs) cuda.Result {
	if g.primary(a.Ctx) == nil {
		return cuda.ErrorInvalidContext
	}
	return g.setting(a.Ctx, contexts, "flags", uint64(a.Flags))
}

func (g *plainGPU) CtxCreate(c *wire.Call, a *wire.CtxCreateArgs) cuda.Result {
	_, res := g.add(c, a.Ctx)
	return res
}

func (g *plainGPU) CtxDestroy(_ *wire.Call, a *wire.CtxDestroyArgs) cuda.Result {
	if t := g.things[a.Ctx]; t == nil || t.kind != wire.OpCtxCreate {
		return cuda.ErrorInvalidContext
	}
	return g.remove(a.Ctx)
}

func (g *plainGPU) CtxSetLimit(c *wire.Call, a *wire.CtxSetLimitArgs) cuda.Result {
	return g.setting(c.Ctx, contexts, fmt.Sprint("limit ", a.Limit), a.Value)
}

func (g *plainGPU) ModuleLoad(c *wire.Call, a *wire.ModuleLoadArgs, _ *wire.ModuleLoadReply) cuda.Result {
	t, res := g.add(c, a.Module, c.Ctx)
	if t != nil {
		t.image = string(a.Image)
	}
	return res
}

func (g *plainGPU) ModuleUnload(_ *wire.Call, a *wire.ModuleUnloadArgs) cuda.Result {
	if t := g.things[a.Module]; t == nil || t.kind != wire.OpModuleLoad {
		return cuda.ErrorInvalidHandle
	}
	return g.remove(a.Module)
}

func (g *plainGPU) ModuleGetFunction(c *wire.Call, a *wire.ModuleGetFunctionArgs, _ *wire.ModuleGetFunctionReply) cuda.Result {
	if t := g.things[a.Module]; t == nil || t.kind != wire.OpModuleLoad || g.things[c.Ctx] == nil {
		return cuda.ErrorInvalidHandle
	}
	_, res := g.add(c, a.Func, a.Module, c.Ctx)
	return res
}

func (g *plainGPU) FuncSetAttribute(_ *wire.Call, a *wire.FuncSetAttributeArgs) cuda.Result {
	return g.setting(a.Func, []wire.Op{wire.OpModuleGetFunction}, fmt.Sprint("attribute ", a.Attr, " of device ", a.Dev), uint64(a.Value))
}

func (g *plainGPU) FuncSetCacheConfig(_ *wire.Call, a *wire.FuncSetCacheConfigArgs) cuda.Result {
	return g.setting(a.Func, []wire.Op{wire.OpModuleGetFunction}, "cache", uint64(a.Config))
}

func (g *plainGPU) StreamCreate(c *wire.Call, a *wire.StreamCreateArgs) cuda.Result {
	_, res := g.add(c, a.Stream, c.Ctx)
	return res
}

func (g *plainGPU) StreamDestroy(_ *wire.Call, a *wire.StreamDestroyArgs) cuda.Result {
	if t := g.things[a.Stream]; t == nil || t.kind != wire.OpStreamCreate {
		return cuda.ErrorInvalidHandle
	}
	return g.remove(a.Stream)
}

func (g *plainGPU) EventCreate(c *wire.Call, a *wire.EventCreateArgs) cuda.Result {
	_, res := g.add(c, a.Event, c.Ctx)
	return res
}

func (g *plainGPU) event(id uint32) *thing {
	if t := g.things[id]; t != nil && t.kind == wire.OpEventCreate {
		return t
	}
	return nil
}

func (g *plainGPU) EventDestroy(_ *wire.Call, a *wire.EventDestroyArgs) cuda.Result {
	if g.event(a.Event) == nil {
		return cuda.ErrorInvalidHandle
	}
	return g.remove(a.Event)
}

func (g *plainGPU) EventRecord(c *wire.Call, a *wire.EventRecordArgs) cuda.Result {
	t := g.event(a.Event)
	if t == nil {
		return cuda.ErrorInvalidHandle
	}
	on := g.things[c.Ctx]
	if on == nil {
		return cuda.ErrorInvalidContext
	}
	g.clock++
	t.recorded, t.on = g.clock, on
	t.set["stream"] = uint64(a.Stream)
	return cuda.Success
}

func (g *plainGPU) MemAlloc(c *wire.Call, a *wire.MemAllocArgs, r *wire.MemAllocReply) cuda.Result {
	if g.things[c.Ctx] == nil {
		return cuda.ErrorInvalidContext
	}
	addr, ok := c.Place()
	if !ok {
		addr = g.next
		c.Placed = append(c.Placed, addr)
	}
	if g.memory[addr] != nil {
		return cuda.ErrorInvalidValue
	}
	g.next = max(g.next, addr+0x1000)
	g.memory[addr] = &thing{parents: []uint32{c.Ctx}, set: map[string]uint64{"size": a.Size}}
	r.Ptr = addr
	return cuda.Success
}

func (g *plainGPU) MemFree(_ *wire.Call, a *wire.MemFreeArgs) cuda.Result {
	if g.memory[a.Ptr] == nil {
		return cuda.ErrorInvalidValue
	}
	delete(g.memory, a.Ptr)
	return cuda.Success
}

// String is everything that a program could find out. Of events it matters which was recorded
// before which.
func (g *plainGPU) String() string {
	var b strings.Builder
	order := map[int]int{}
	var times []int
	for _, t := range g.things {
		if t.recorded != 0 {
			times = append(times, t.recorded)
		}
	}
	slices.Sort(times)
	for i, at := range times {
		order[at] = i + 1
	}
	for _, id := range slices.Sorted(maps.Keys(g.things)) {
		t := g.things[id]
		if t.on != nil && !slices.Contains(slices.Collect(maps.Values(g.things)), t.on) {
			// It has long passed, whatever stream it was.
			t.set["stream"], t.on = uint64(wire.StreamLegacy), nil
		}
		fmt.Fprintf(&b, "%d: %v of %v, %v, image %.20q, retained %d, recorded %d\n", id, t.kind, t.parents, t.set, t.image, t.retains, order[t.recorded])
	}
	for _, addr := range slices.Sorted(maps.Keys(g.memory)) {
		fmt.Fprintf(&b, "%#x: %v of %v\n", addr, g.memory[addr].set, g.memory[addr].parents)
	}
	return b.String()
}

// images are how many different ones are in use that do not fit a record.
func (g *plainGPU) images() int {
	seen := map[string]bool{}
	for _, t := range g.things {
		if len(t.image) > wire.MaxRecord {
			seen[t.image] = true
		}
	}
	return len(seen)
}
