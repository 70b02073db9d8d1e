package daemon

import (
	"context"
	"net/http"
	"strings"
	"sync"
	"time"

	"causeway/host/api"
	"causeway/host/daemon/process"
	"causeway/host/daemon/swap"
)

/*
Where placement.overcommit promises more memory than there is, device processes are started without
room on the GPU. They say when a session lacks some; package swap decides who gets it, and who makes
it. Nothing of that is kept here: a causewayd that starts anew finds room and needs with the device
processes.
*/

// Times of the swapper.
const (
	swapAgain = 200 * time.Millisecond // between two looks while somebody waits for room
	roomTime  = 30 * time.Second       // what a device process may take to suspend a session
	// What it may take to say that nobody needs anything: it waits for needs.
	needTime  = 20 * time.Second
	mostSteps = 64 // of one look
)

// swaps says whether a vGPU's device process has its sessions wait for room.
func (d *Daemon) swaps(gpu string) bool {
	return d.config().Placement.Overcommit > 1 && gpu != "" && !strings.Contains(gpu, ",")
}

// routineRoom waits for needs of a vGPU's sessions, as long as its device process lives.
func (d *Daemon) routineRoom(v *vgpu, p *process.Process) {
	d.whileItLives(v, p, swapAgain, func(ctx context.Context, c *api.Client) error {
		var st api.RoomStatus
		ctx, cancel := context.WithTimeout(ctx, needTime)
		err := c.Do(ctx, http.MethodGet, "/v1/room?wait=1", nil, &st)
		cancel()
		if err != nil || len(st.Needs) == 0 {
			return err
		}
		d.swapping.Lock()
		defer d.swapping.Unlock()
		d.makeRoom(v)
		return errLater
	})
}

// makeRoom does what can be done on a vGPU's GPU for those that need room. One goroutine at a time.
func (d *Daemon) makeRoom(v *vgpu) {
	rec, _ := d.copyOf(v)
	for range mostSteps {
		g, ok := d.roomsOf(rec.GPU)
		if !ok {
			return
		}
		step := swap.Next(&g)
		if step.Kind == swap.None || step.Kind == swap.Wait {
			return
		}
		if err := d.step(&step); err != nil {
			d.log.Warn("no room was made", "vgpu", step.Key, "session", step.Session, "error", err)
			if step.Kind != swap.Suspend { // such a session is left alone for a while
				return
			}
		}
	}
}

// step has a device process do something.
func (d *Daemon) step(s *swap.Step) error {
	of := d.find(s.Key)
	if of == nil {
		return unknown(s.Key)
	}
	rec, _ := d.copyOf(of)
	c := api.NewClient(rec.Spec.ControlPath(d.run))
	defer c.Close()
	ctx, cancel := context.WithTimeout(d.ctx, roomTime)
	defer cancel()
	switch s.Kind {
	case swap.Suspend:
		d.log.Debug("a session makes room", "vgpu", s.Key, "session", s.Session)
		return c.Do(ctx, http.MethodPost, "/v1/suspend", map[string]any{"session": s.Session, "away": true}, nil)
	case swap.Deny:
		d.log.Warn("no room for an allocation", "vgpu", s.Key, "session", s.Session, "why", s.Why)
		return c.Do(ctx, http.MethodPut, "/v1/room", api.RoomChange{Deny: []uint64{s.Session}, Why: s.Why}, nil)
	}
	return c.Do(ctx, http.MethodPut, "/v1/room", api.RoomChange{Room: &s.Room}, nil)
}

// roomsOf reads who has room on a GPU, and who needs it.
func (d *Daemon) roomsOf(gpu string) (swap.GPU, bool) {
	r, err := d.gpus.read(d.ctx)
	if err != nil {
		return swap.GPU{}, false
	}
	d.mu.Lock()
	out := swap.GPU{Overcommit: d.cfg.Placement.Overcommit}
	found := false
	for _, g := range d.tallyLocked(r) {
		if g.ID == gpu {
			found = true
			out.Memory = g.Memory - min(g.Memory, g.Others)
		}
	}
	var all []*vgpu
	for _, v := range d.vgpus {
		if !v.rec.Lost && v.rec.GPU == gpu {
			all = append(all, v)
		}
	}
	d.mu.Unlock()
	out.VGPUs = make([]swap.VGPU, len(all))
	var wg sync.WaitGroup
	for i, v := range all {
		wg.Go(func() { out.VGPUs[i] = d.roomOf(v) })
	}
	wg.Wait()
	return out, found
}

// roomOf is what a vGPU says. One that does not answer has what it was promised, and makes no room.
func (d *Daemon) roomOf(v *vgpu) swap.VGPU {
	rec, _ := d.copyOf(v)
	out := swap.VGPU{Key: rec.Spec.Key(), Fixed: true, RoomStatus: api.RoomStatus{Limit: rec.Spec.Memory}}
	c := api.NewClient(rec.Spec.ControlPath(d.run))
	defer c.Close()
	ctx, cancel := context.WithTimeout(d.ctx, askTimeout)
	defer cancel()
	var st api.RoomStatus
	if err := c.Do(ctx, http.MethodGet, "/v1/room", nil, &st); err == nil {
		out.RoomStatus, out.Fixed = st, st.Room == 0
	}
	return out
}
