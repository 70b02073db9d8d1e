package daemon

import (
	"context"
	"errors"
	"time"

	"causeway/host/api"
	"causeway/host/daemon/process"
)

// What is asked of a device process need not be asked at once again, or at all.
var (
	errLater = errors.New("not now")
	errNever = errors.New("not of this one")
)

// whileItLives asks a vGPU's device process something again and again, after an error that is not
// errNever with a pause, until it ends or we do.
func (d *Daemon) whileItLives(v *vgpu, p *process.Process, pause time.Duration, ask func(context.Context, *api.Client) error) {
	rec, _ := d.copyOf(v)
	c := api.NewClient(rec.Spec.ControlPath(d.run))
	defer c.Close()
	ctx, cancel := context.WithCancel(d.closing)
	defer cancel()
	go func() {
		defer cancel()
		select {
		case <-p.Done():
		case <-ctx.Done():
		}
	}()
	for ctx.Err() == nil {
		err := ask(ctx, c)
		if errors.Is(err, errNever) {
			return
		}
		if err != nil {
			select {
			case <-time.After(pause):
			case <-ctx.Done():
			}
		}
	}
}

// pause waits for a time, and reports whether a device process, and we, are still there then.
func (d *Daemon) pause(p *process.Process, wait time.Duration) bool {
	select {
	case <-time.After(wait):
		return true
	case <-p.Done():
	case <-d.ctx.Done():
	}
	return false
}
