package worker

import (
	"fmt"
	"sync"

	"causeway/cuda"
	"causeway/cuda/wire"
)

// userObjects are a session's user objects that have not ended. Any goroutine: destructors run when
// they will.
type userObjects struct {
	mu   sync.Mutex
	byID map[wire.ID]*userObject
	of   map[uint64]wire.ID // by destructor
}

// userObject is counted by references of the guest's own, of graphs and of executable graphs.
type userObject struct {
	destructor uint64
	flags      uint32
	guest      uint64 // references
	cost       uint64 // what is booked for it
}

// ended hears that a host function is to run: the destructor of an object that is no more, or
// another. It says what was booked for that object.
func (o *userObjects) ended(function uint64) (cost uint64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if id, ok := o.of[function]; ok {
		cost = o.byID[id].cost
		delete(o.of, function)
		delete(o.byID, id)
	}
	return cost
}

func (o *userObjects) put(id wire.ID, u *userObject) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.byID == nil {
		o.byID, o.of = map[wire.ID]*userObject{}, map[uint64]wire.ID{}
	}
	// What had either before is not found any more, and stays in the driver, and in the books.
	if old := o.byID[id]; old != nil {
		delete(o.of, old.destructor)
	}
	if old, ok := o.of[u.destructor]; ok {
		delete(o.byID, old)
	}
	o.byID[id] = u
	o.of[u.destructor] = id
}

func (o *userObjects) count(id wire.ID, change func(*userObject)) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if u := o.byID[id]; u != nil {
		change(u)
	}
}

// list copies the objects.
func (o *userObjects) list() map[wire.ID]userObject {
	o.mu.Lock()
	defer o.mu.Unlock()
	out := make(map[wire.ID]userObject, len(o.byID))
	for id, u := range o.byID {
		out[id] = *u
	}
	return out
}

// UserObjectCreate implements wire.Driver.
func (f *front) UserObjectCreate(c *wire.Call, a *wire.UserObjectCreateArgs) cuda.Result {
	g := &f.w.graphs
	if g.keeper == nil {
		return f.Session.UserObjectCreate(c, a)
	}
	res := f.within(userBytes, func() cuda.Result { return f.Session.UserObjectCreate(c, a) })
	if res == cuda.Success {
		g.objects.put(a.Object, &userObject{a.ID, a.Flags, uint64(a.Count), userBytes})
	}
	return res
}

// UserObjectCount implements wire.Driver.
func (f *front) UserObjectCount(c *wire.Call, a *wire.UserObjectCountArgs) cuda.Result {
	res := f.Session.UserObjectCount(c, a)
	if res == cuda.Success {
		f.w.graphs.objects.count(a.Object, func(u *userObject) { u.change(a.Count, a.Release != 0) })
	}
	return res
}

func (u *userObject) change(n uint32, release bool) {
	if release {
		u.guest -= min(u.guest, uint64(n))
	} else {
		u.guest += uint64(n)
	}
}

// GraphUserObject implements wire.Driver.
func (f *front) GraphUserObject(c *wire.Call, a *wire.GraphUserObjectArgs) cuda.Result {
	const move = 1 // CU_GRAPH_USER_OBJECT_MOVE
	g := &f.w.graphs
	if g.keeper == nil {
		return f.Session.GraphUserObject(c, a)
	}
	fee := uint64(0)
	if l := g.live[a.Graph]; l != nil && a.Release == 0 && l.users[a.Object] == 0 {
		fee = refBytes
	}
	res := f.within(fee, func() cuda.Result { return f.Session.GraphUserObject(c, a) })
	if res != cuda.Success {
		return res
	}
	if a.Release == 0 && a.Flags&move != 0 {
		g.objects.count(a.Object, func(u *userObject) { u.change(a.Count, true) })
	}
	switch l := g.root(a.Graph); {
	case l == nil:
	case l.id != a.Graph:
		l.nested = true
	case a.Release == 0:
		if l.users == nil {
			l.users = map[wire.ID]uint32{}
		}
		l.users[a.Object] += a.Count
		l.cost += fee
	case l.users[a.Object] != 0:
		if l.users[a.Object] -= min(a.Count, l.users[a.Object]); l.users[a.Object] == 0 {
			delete(l.users, a.Object)
			l.cost -= refBytes
			f.w.host.release(refBytes)
		}
	}
	return res
}

// retain changes a graph's references to an object for the worker's own purposes.
func (g *graphs) retain(graph, object wire.ID, n uint32, release bool) cuda.Result {
	a := wire.GraphUserObjectArgs{Graph: graph, Object: object, Count: n}
	if release {
		a.Release = 1
	}
	return g.w.session.GraphUserObject(g.call(wire.OpGraphUserObject, 0), &a)
}

// makeObjects makes objects again, with a reference more than they have, which yield gives up when
// graphs have theirs.
func (g *graphs) makeObjects(list []objectState) error {
	for _, o := range list {
		u := &userObject{o.destructor, o.flags, o.guest, userBytes}
		g.w.host.book(u.cost)
		a := wire.UserObjectCreateArgs{Object: o.id, ID: o.destructor, Count: 1, Flags: o.flags}
		if res := g.w.session.UserObjectCreate(g.call(wire.OpUserObjectCreate, 0), &a); res != cuda.Success {
			return fmt.Errorf("user object %d: %w", o.id, res)
		}
		for left := o.guest; left > 0; {
			n := uint32(min(left, 1<<30))
			if err := g.countObject(o.id, n, 0); err != nil {
				return err
			}
			left -= uint64(n)
		}
		g.objects.put(o.id, u)
	}
	return nil
}

func (g *graphs) yieldObjects(list []objectState) error {
	for _, o := range list {
		if err := g.countObject(o.id, 1, 1); err != nil {
			return err
		}
	}
	return nil
}

func (g *graphs) countObject(id wire.ID, n, release uint32) error {
	a := wire.UserObjectCountArgs{Object: id, Release: release, Count: n}
	if res := g.w.session.UserObjectCount(g.call(wire.OpUserObjectCount, 0), &a); res != cuda.Success {
		return fmt.Errorf("references of user object %d: %w", id, res)
	}
	return nil
}
