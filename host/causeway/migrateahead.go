package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"golang.org/x/term"

	"causeway/host/api"
	"causeway/host/report"
	"causeway/remote/mtls"
)

// ahead sends the GPU memory of a VM's vGPUs to another host: it connects device processes here
// with those there.
type ahead struct {
	gpus []*aheadOf
	// Of vGPUs on GPU servers, whose leases the other host may take over.
	node   *api.Client
	handed []api.VGPU
	left   bool // the VM has left, and the leases with it
}

// aheadOf is one vGPU.
type aheadOf struct {
	vgpu api.VGPU
	near *api.Client
	far  *api.Client // causewayd there
	way  *api.Crossing
	last api.Copy
}

// sendAhead connects each vGPU. With an error nothing is left.
func sendAhead(ctx context.Context, node *api.Client, host string, files mtls.Files, vgpus []api.VGPU, how api.Copying) (a *ahead, err error) {
	a = &ahead{node: node}
	defer func() {
		if err != nil {
			a.close()
		}
	}()
	vgpus = slices.DeleteFunc(vgpus, func(v api.VGPU) bool { return v.State == api.Waiting })
	if len(vgpus) == 0 {
		return a, errNotConnected
	}
	for i := range vgpus {
		if err := movable(&vgpus[i]); err != nil {
			return a, err
		}
	}
	far, err := api.NewHostClient(host, func(name string) (*tls.Config, error) { return files.Client(api.HostProtocol, name) })
	if err != nil {
		return a, err
	}
	if err := a.handOver(ctx, host, vgpus); err != nil {
		return a, err
	}
	for i := range vgpus {
		g := &aheadOf{vgpu: vgpus[i], near: api.NewDeviceClient(vgpus[i].Control), far: far}
		if g.way, err = api.Cross(ctx, g.near, far, g.vgpu.Spec.Wish(), false, how); err != nil {
			g.near.Close()
			return a, fmt.Errorf("%s: %w", g.vgpu.Spec.Key(), err)
		}
		a.gpus = append(a.gpus, g)
	}
	return a, nil
}

// errNotConnected says that there is no VM to move.
var errNotConnected = errors.New("no VM has a vGPU of that name")

// movable says what keeps a vGPU's programs here.
func movable(v *api.VGPU) error {
	if v.State == api.Lost || v.Status == nil {
		return fmt.Errorf("%s: its device process does not answer", v.Spec.Key())
	}
	for _, s := range v.Status.Sessions {
		if s.Unmovable != "" {
			return fmt.Errorf("%s: process %d keeps the VM from being moved: %s", v.Spec.Key(), s.GuestPID, s.Unmovable)
		}
	}
	return nil
}

func (a *ahead) close() {
	for _, g := range a.gpus {
		g.way.Close()
		g.near.Close()
	}
	a.keep()
	a.node.Close()
}

// handOver has the other host be able to go on with vGPUs that are on GPU servers.
func (a *ahead) handOver(ctx context.Context, host string, vgpus []api.VGPU) error {
	for _, v := range vgpus {
		if v.Spec.Remote == "" {
			continue
		}
		if err := a.node.HandOver(ctx, &v.Spec, api.Handover{Host: host}); err != nil {
			return fmt.Errorf("%s: %w", v.Spec.Key(), err)
		}
		a.handed = append(a.handed, v)
	}
	return nil
}

// handAgain is how often causewayd is told that leases may still be taken over: it takes them back
// from who has gone.
const handAgain = 2 * time.Minute

// routineHanded says so until ctx ends.
func (a *ahead) routineHanded(ctx context.Context, host string) {
	t := time.NewTicker(handAgain)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		for _, v := range a.handed {
			// Else the migration says what is wrong.
			_ = a.node.HandOver(ctx, &v.Spec, api.Handover{Host: host})
		}
	}
}

// keepLimit bounds what causewayd may take to keep a lease.
const keepLimit = 10 * time.Second

// keep has leases stay here, unless the VM has left.
func (a *ahead) keep() {
	if a.left {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), keepLimit)
	defer cancel()
	for _, v := range a.handed {
		// The other host ends what it has readied, and cannot take the lease: no program of the VM
		// runs there.
		_ = a.node.HandOver(ctx, &v.Spec, api.Handover{})
	}
}

// lookEvery is how often progress is asked for.
const lookEvery = 200 * time.Millisecond

// ready waits until what is left of each vGPU's memory is little, or as little as it becomes.
func (a *ahead) ready(ctx context.Context, out *progress) error {
	t := time.NewTicker(lookEvery)
	defer t.Stop()
	for {
		ready := 0
		for _, g := range a.gpus {
			if err := g.look(ctx, out); err != nil {
				return err
			}
			if g.last.Ready {
				ready++
			}
		}
		if ready == len(a.gpus) {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.New("called off")
		case <-t.C:
		}
	}
}

// look asks for one vGPU's progress, and shows it.
func (g *aheadOf) look(ctx context.Context, out *progress) error {
	st, err := g.near.Status(ctx)
	switch {
	case ctx.Err() != nil:
		return errors.New("called off")
	case err != nil:
		return fmt.Errorf("%s: %w", g.vgpu.Spec.Key(), err)
	}
	select {
	case <-g.way.Done():
		return fmt.Errorf("GPU memory of %s does not go ahead: %w", g.vgpu.Spec.Key(), g.ended(ctx, &st))
	default:
	}
	if st.Copy == nil {
		return nil // it begins
	}
	c, before := *st.Copy, g.last
	g.last = c
	key := g.vgpu.Spec.Key()
	for n := max(before.Rounds, c.Rounds-len(c.Past)) + 1; n <= c.Rounds; n++ {
		r := c.Past[len(c.Past)-1-(c.Rounds-n)]
		out.line(fmt.Sprintf("%s: round %d: %s changed of %s, in %.2f s", key, n, size(r.Sent), size(r.Looked), r.Took.Seconds()))
	}
	if c.Unmovable != "" {
		return fmt.Errorf("%s: %s", key, c.Unmovable)
	}
	out.now(fmt.Sprintf("%s: %s sent", key, size(c.Total)))
	if c.Why != "" && before.Why == "" {
		out.line(fmt.Sprintf("%s: memory of a program travels while the VM stands: %s", key, c.Why))
	}
	if c.Throttled != before.Throttled {
		out.line(fmt.Sprintf("%s: its memory changes as fast as it is sent: its programs' GPU work is held back for %d %% of the time", key, c.Throttled))
	}
	if c.Stuck && !before.Stuck {
		out.line(fmt.Sprintf("%s: its memory changes as fast as it is sent: %s travel while the VM stands", key, size(c.Sent)))
	}
	return nil
}

// warn says that memory goes ahead no longer, while the VM moves.
func (a *ahead) warn(out *progress) {
	for _, g := range a.gpus {
		<-g.way.Done()
		out.now(g.vgpu.Spec.Key() + ": no more GPU memory goes ahead")
	}
}

// saved is what compression saved, in words.
func (a *ahead) saved() string {
	n := uint64(0)
	for _, g := range a.gpus {
		n += g.last.Saved
	}
	if n == 0 {
		return ""
	}
	return ", " + size(n) + " saved by compression"
}

func (a *ahead) total() (n uint64) {
	for _, g := range a.gpus {
		n += g.last.Total
	}
	return n
}

func size(n uint64) string { return strings.TrimSpace(report.Bytes(n)) }

// progress is shown on one line of a terminal; elsewhere only what is worth keeping.
type progress struct {
	w    io.Writer
	live bool
}

func newProgress(w io.Writer) *progress {
	f, ok := w.(interface{ Fd() uintptr })
	return &progress{w, ok && term.IsTerminal(int(f.Fd()))}
}

// now shows what holds at the moment.
func (p *progress) now(text string) {
	if p.live {
		fmt.Fprintf(p.w, "\r\033[K%s", text)
	}
}

// line keeps a line.
func (p *progress) line(text string) {
	if p.live {
		fmt.Fprint(p.w, "\r\033[K")
	}
	fmt.Fprintln(p.w, text)
}
