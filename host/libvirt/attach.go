package libvirt

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"causeway/host/api"
)

// Daemon is what attaching needs of causewayd; *api.Client is one.
type Daemon interface {
	Ensure(ctx context.Context, s api.Wish) (api.VGPU, error)
	VGPU(ctx context.Context, vm, name string) (api.VGPU, error)
	Release(ctx context.Context, vm, name string, unused bool) error
}

var _ Daemon = (*api.Client)(nil)

// Errors of Attach and Detach.
var (
	ErrExists     = errors.New("the domain has such a vGPU already")
	ErrNoVGPU     = errors.New("the domain has no such vGPU")
	ErrNotRunning = errors.New("the domain does not run")
	ErrTransient  = errors.New("the domain has no definition: it ends with its VM")
	ErrGuest      = errors.New("the guest has not let go of the vGPU")
)

// Attacher changes one domain.
type Attacher struct {
	Domain Domain
	Daemon Daemon
	Run    string // causewayd's run directory
	// Hook says whether libvirt has Causeway's hook: it readies the sockets of a domain that
	// starts.
	Hook bool
	// Timeout bounds how long a guest may take to let go of a vGPU.
	Timeout time.Duration
}

// Result is what Attach or Detach did.
type Result struct {
	VM         string     `json:"vm"`
	Name       string     `json:"name"`
	Live       bool       `json:"live"`
	Config     bool       `json:"config"`
	Socket     string     `json:"socket"`
	Filesystem string     `json:"filesystem"`         // XML
	Metadata   string     `json:"metadata,omitempty"` // XML, of all vGPUs of the domain from now on
	GPU        string     `json:"gpu,omitempty"`      // UUID of the GPU
	Limits     api.Limits `json:"limits,omitzero"`
	Notes      []string   `json:"notes,omitempty"`
	Done       bool       `json:"-"` // not only planned
}

// undo is what would take back what was done, newest last.
type undo []func(context.Context) error

// rollBack takes everything back and adds to err what could not be.
func (u undo) rollBack(ctx context.Context, err error) error {
	if len(u) == 0 {
		return err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
	defer cancel()
	var bad error
	for _, f := range slices.Backward(u) {
		bad = errors.Join(bad, f(ctx))
	}
	if bad != nil {
		return fmt.Errorf("%w; taking back what was done failed too: %w", err, bad)
	}
	return fmt.Errorf("%w (what was done before is taken back)", err)
}

// settle says where a change applies; 0: wherever the domain is.
func (a *Attacher) settle(w Where) (Where, error) {
	is, err := a.Domain.Places()
	switch {
	case err != nil:
		return 0, err
	case w == 0:
		return is, nil
	case w&Live != 0 && is&Live == 0:
		return 0, fmt.Errorf("%w: start it, or use --config", ErrNotRunning)
	case w&Config != 0 && is&Config == 0:
		return 0, fmt.Errorf("%w: use --live, or define it", ErrTransient)
	}
	return w, nil
}

// each yields the places of w one by one, with the domain's XML there.
func (a *Attacher) each(w Where) (map[Where]*DomainXML, error) {
	m := map[Where]*DomainXML{}
	for _, p := range places {
		if w&p == 0 {
			continue
		}
		text, err := a.Domain.XML(p)
		if err != nil {
			return nil, err
		}
		if m[p], err = Parse([]byte(text)); err != nil {
			return nil, fmt.Errorf("domain %s: %w", a.Domain.Name(), err)
		}
	}
	return m, nil
}

// plan is what Attach would do.
type plan struct {
	spec   api.Wish
	where  Where
	xml    map[Where]*DomainXML
	device string
	socket string
}

func (a *Attacher) plan(spec api.Wish, w Where) (*plan, error) {
	w, err := a.settle(w)
	if err != nil {
		return nil, err
	}
	p := &plan{spec: spec, where: w}
	if p.xml, err = a.each(w); err != nil {
		return nil, err
	}
	p.spec.VM = a.Domain.Name()
	if p.spec.Name == "" {
		p.spec.Name = p.freeName()
	}
	if err := p.spec.Check(); err != nil {
		return nil, err
	}
	p.socket = p.spec.SocketPath(a.Run)
	for _, place := range places {
		if d := p.xml[place]; d != nil {
			if p.spec.NUMA == nil {
				p.spec.NUMA = d.Node("/sys")
			}
			if err := p.fits(place, d); err != nil {
				return nil, err
			}
		}
	}
	p.device, err = FilesystemXML(p.socket, p.spec.Name)
	return p, err
}

// freeName is one that is free in all places.
func (p *plan) freeName() string {
	for i := 0; ; i++ {
		name := fmt.Sprintf("gpu%d", i)
		if !slices.ContainsFunc(places[:], func(w Where) bool { return p.xml[w] != nil && p.xml[w].uses(name) }) {
			return name
		}
	}
}

func (p *plan) fits(w Where, d *DomainXML) error {
	if _, ok := d.VGPU(p.spec.Name); ok {
		return fmt.Errorf("%w: %s: `causeway detach` takes it out, --name names another", ErrExists, p.spec.Name)
	}
	if f, ok := d.Filesystem(p.socket); ok {
		return fmt.Errorf("%w: a <filesystem> (target %s) has the socket %s", ErrExists, f.Target, p.socket)
	}
	if d.uses(p.spec.Name) {
		return fmt.Errorf("%w: the mount tag %s is taken: --name names another", ErrExists, p.spec.Name)
	}
	return d.Check(w == Live)
}

func (p *plan) result() *Result {
	r := &Result{VM: p.spec.VM, Name: p.spec.Name, Live: p.where&Live != 0, Config: p.where&Config != 0, Socket: p.socket, Filesystem: p.device}
	for _, w := range places {
		if d := p.xml[w]; d != nil {
			r.Metadata = MetadataXML(append(slices.Clone(d.VGPUs), p.spec))
			if n := d.silentBalloon(); n != "" && !slices.Contains(r.Notes, n) {
				r.Notes = append(r.Notes, n)
			}
		}
	}
	return r
}

// Plan says what Attach would do, and does nothing.
func (a *Attacher) Plan(spec api.Wish, w Where) (*Result, error) {
	p, err := a.plan(spec, w)
	if err != nil {
		return nil, err
	}
	return p.result(), nil
}

// Attach gives the domain a vGPU: causewayd has it ready, then it is written to the metadata, then
// plugged in. An error means that nothing has changed, unless it says otherwise. An empty name
// takes the first free one; places of 0 are all where the domain is.
func (a *Attacher) Attach(ctx context.Context, spec api.Wish, w Where) (*Result, error) {
	p, err := a.plan(spec, w)
	if err != nil {
		return nil, err
	}
	if err := a.keep(ctx, p); err != nil {
		return nil, err
	}
	r := p.result()
	vm, name := p.spec.VM, p.spec.Name
	v, err := a.Daemon.Ensure(ctx, p.spec)
	if err != nil {
		return nil, fmt.Errorf("causewayd does not give the vGPU: %w", err)
	}
	r.GPU, r.Limits = v.GPU, v.Spec.Limits
	var u undo
	release := func(ctx context.Context) error { return a.release(ctx, vm, name) }
	u = append(u, release)
	if v.Socket != "" && v.Socket != p.socket {
		return nil, u.rollBack(ctx, fmt.Errorf("causewayd serves %s, not %s: give it and this command the same --run-dir", v.Socket, p.socket))
	}
	for _, place := range places {
		d := p.xml[place]
		if d == nil {
			continue
		}
		if err := a.Domain.SetMetadata(bareMetadata(append(slices.Clone(d.VGPUs), p.spec)), place); err != nil {
			return nil, u.rollBack(ctx, err)
		}
		u = append(u, func(context.Context) error { return a.Domain.SetMetadata(bareMetadata(d.VGPUs), place) })
	}
	if err := a.Domain.Attach(p.device, p.where); err != nil {
		return nil, u.rollBack(ctx, err)
	}
	if p.where&Live != 0 {
		return r, nil
	}
	return r, a.untilStart(ctx, r, release)
}

// keep has the metadata name the limits of a vGPU that is there already (`causeway create`): the
// domain's next start would not know them.
func (a *Attacher) keep(ctx context.Context, p *plan) error {
	v, err := a.Daemon.VGPU(ctx, p.spec.VM, p.spec.Name)
	var gone *api.Error
	switch {
	case errors.As(err, &gone) && gone.Status == http.StatusNotFound:
		return nil
	case err != nil:
		return fmt.Errorf("causewayd does not give the vGPU: %w", err)
	case p.spec.Profile != "":
		return nil // which names what matters
	}
	p.spec.Change = p.spec.Over(v.Spec.Limits)
	p.spec.GPU = cmp.Or(p.spec.GPU, v.Spec.GPU)
	return nil
}

// untilStart gives the vGPU of a domain that does not run back, if the hook will ask for it again.
func (a *Attacher) untilStart(ctx context.Context, r *Result, release func(context.Context) error) error {
	if is, err := a.Domain.Places(); err != nil || is&Live != 0 {
		return err // it runs; this was for its next start
	}
	if !a.Hook {
		r.Notes = append(r.Notes, "libvirt has no hook of Causeway: the vGPU waits for the domain's start, and has to be readied by hand after the domain ends")
		return nil
	}
	r.Notes = append(r.Notes, "the domain does not run: libvirt's hook readies the vGPU when it starts")
	return release(ctx)
}

// release ends a vGPU that no VM uses; one that is not there is fine.
func (a *Attacher) release(ctx context.Context, vm, name string) error {
	return ReleaseUnused(ctx, a.Daemon, vm, name)
}

// ReleaseUnused has causewayd end a vGPU that no VM uses, and is content if there is none. It waits
// up to two seconds for the device process to see that QEMU has closed the socket.
func ReleaseUnused(ctx context.Context, d Daemon, vm, name string) error {
	for try := 0; ; try++ {
		err := d.Release(ctx, vm, name, true)
		var e *api.Error
		if !errors.As(err, &e) {
			return err
		}
		if e.Status == http.StatusNotFound {
			return nil
		}
		if e.Status != http.StatusConflict || try == 20 {
			return fmt.Errorf("release vGPU %s/%s: %w", vm, name, err)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("release vGPU %s/%s: %w", vm, name, err)
		case <-time.After(100 * time.Millisecond):
		}
	}
}
