package daemon

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"causeway/host/api"
	"causeway/host/daemon/place"
)

// moveLimit bounds a vGPU's move: its device process bounds each of its sessions.
const moveLimit = 15 * time.Minute

// Move has a vGPU move to another GPU of this host, or its programs to another GPU server. Its
// memory is promised there before anything is copied, and no longer here once it is done.
func (d *Daemon) Move(ctx context.Context, key string, c api.Relocation) (api.Relocated, error) {
	leave, err := d.locks.enter(ctx, key)
	if err != nil {
		return api.Relocated{}, err
	}
	defer leave()
	v := d.find(key)
	if v == nil {
		return api.Relocated{}, unknown(key)
	}
	rec, proc := d.copyOf(v)
	switch {
	case rec.Lost || proc == nil || !proc.Alive():
		return api.Relocated{}, refuse(http.StatusConflict, "attach it again", "%s is lost: %s", key, rec.Why)
	case c.Remote != "" && (c.GPU != "" || c.OtherModel):
		return api.Relocated{}, refuse(http.StatusBadRequest, "name one of the two", "%s cannot go to a GPU of this host and to a GPU server", key)
	case rec.Spec.Lease != "":
		return api.Relocated{}, refuse(http.StatusConflict, "move it there, with `causeway move --remote`", "%s is leased to the host %s: its programs go by that host's relays", key, rec.Spec.Lease)
	case c.Remote != "":
		return d.moveServer(ctx, v, c)
	case c.Throttle:
		return api.Relocated{}, refuse(http.StatusBadRequest, "leave --throttle out", "programs are held back on their way to another GPU server alone, not to a GPU of this host")
	case rec.Spec.Remote != "":
		return api.Relocated{}, refuse(http.StatusConflict, "`causeway move --remote NAME` moves its programs to another GPU server", "%s is on the GPU server %s, not on a GPU of this host", key, rec.Spec.Remote)
	case rec.Spec.Programs:
		return api.Relocated{}, refuse(http.StatusConflict, "end its programs, and make it anew", "%s is for programs of this host: such vGPUs do not move", key)
	case rec.Spec.MIG != "" || strings.Contains(rec.GPU, ","):
		return api.Relocated{}, refuse(http.StatusConflict, "end its programs, and attach it anew", "%s is not on one whole GPU (%s): only such vGPUs move", key, describe(&rec.Spec))
	}
	if c.GPU, err = d.findGPU(ctx, c.GPU); err != nil {
		return api.Relocated{}, err
	}
	if c.GPU == rec.GPU {
		return api.Relocated{}, refuse(http.StatusConflict, "`causeway gpus` lists the others", "%s is on GPU %s already", key, rec.GPU)
	}
	if err := d.promiseThere(ctx, v, c.GPU); err != nil {
		return api.Relocated{}, err
	}
	did, err := d.relocateDevice(ctx, &rec, c)
	return did, errors.Join(err, d.moved(v, err == nil))
}

// promiseThere has a vGPU's memory promised on another GPU besides its own.
func (d *Daemon) promiseThere(ctx context.Context, v *vgpu, id string) error {
	r, err := d.gpus.read(ctx)
	if err != nil {
		return fmt.Errorf("read the host's GPUs: %w", err)
	}
	d.refresh(ctx)
	d.mu.Lock()
	defer d.mu.Unlock()
	all := d.tallyLocked(r)
	at := slices.IndexFunc(all, func(g place.GPU) bool { return g.ID == id })
	switch {
	case at < 0:
		return refuse(http.StatusNotFound, "see `causeway gpus`", "GPU %s is not shown any more", id)
	case all[at].Drained:
		return refuse(http.StatusConflict, "when it is well again, `causeway gpus resume GPU`", "GPU %s is drained: %s", id, all[at].Why)
	}
	need := v.rec.Spec.Memory
	if need == 0 && v.last != nil {
		need = v.last.Memory
	}
	if err := place.Fits(all, at, need, place.Rules{Overcommit: d.cfg.Placement.Overcommit}); err != nil {
		return err
	}
	v.to = id
	return nil
}

// relocateDevice has the device process do it.
func (d *Daemon) relocateDevice(ctx context.Context, rec *record, c api.Relocation) (did api.Relocated, err error) {
	ctx, cancel := context.WithTimeout(ctx, moveLimit)
	defer cancel()
	defer context.AfterFunc(d.closing, cancel)()
	device := api.NewClient(rec.Spec.ControlPath(d.run))
	defer device.Close()
	d.log.Info("vGPU is to move", "vgpu", rec.Spec.Key(), "from", rec.GPU, "to", c.GPU)
	err = device.Do(ctx, http.MethodPost, "/v1/move", c, &did)
	return did, err
}

// moved ends a move: the vGPU is there, or where it was.
func (d *Daemon) moved(v *vgpu, there bool) error {
	d.mu.Lock()
	if there {
		v.rec.GPU = v.to
	}
	v.to = ""
	rec := v.rec
	d.mu.Unlock()
	if !there {
		return nil
	}
	if err := writeJSON(recordPath(d.run, &rec.Spec), &rec); err != nil {
		return fmt.Errorf("%s has moved, which is not written down: %w", rec.Spec.Key(), err)
	}
	return nil
}

// movedMeanwhile takes up where a vGPU is that moved while no causewayd ran, or whose causewayd
// ended in the middle of it.
func (rec *record) movedMeanwhile(st *api.Status) {
	if st.UUID != "" && !strings.Contains(rec.GPU, ",") && rec.Spec.MIG == "" {
		rec.GPU = st.UUID
	}
}

func (d *Daemon) postMove(w http.ResponseWriter, req *http.Request) error {
	var c api.Relocation
	if err := body(req, &c); err != nil {
		return err
	}
	// The bound of reading a request would end it as well.
	_ = http.NewResponseController(w).SetReadDeadline(time.Time{})
	did, err := d.Move(req.Context(), key(req), c)
	if err != nil {
		return err
	}
	return reply(w, did)
}
