package daemon

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"os/exec"
	"strings"
	"time"

	"causeway/host/api"
	"causeway/host/daemon/process"
)

/*
A migration of a VM with CUDA programs that cannot move fails at its very end. The VM's device
process sees it begin, and says so to whoever waits; libvirt is then asked to call it off, by a
child that is built with libvirt, before much memory was sent.
*/

// Times.
const (
	staysAgain   = time.Second      // a device process that does not answer is asked again
	callOffLimit = 15 * time.Second // libvirt may be busy with the job that is to end
)

// routineStays waits for migrations of a vGPU's VM that will fail, until its process or we end.
func (d *Daemon) routineStays(v *vgpu, p *process.Process) {
	rec, _ := d.copyOf(v)
	after := uint64(0)
	d.whileItLives(v, p, staysAgain, func(ctx context.Context, c *api.Client) error {
		s, err := c.Stays(ctx, after)
		var answer *api.Error
		switch {
		case err == nil:
			after = s.Number
			d.callOff(ctx, &rec.Spec, shortened(s.Why))
		case errors.As(err, &answer) && answer.Status == http.StatusNotFound:
			return errNever // a device process of an earlier version
		}
		return err
	})
}

// callOff ends the migration of a VM.
func (d *Daemon) callOff(ctx context.Context, s *api.Spec, why string) {
	log := d.log.With("vm", s.VM, "vgpu", s.Key(), "why", why)
	ctx, cancel := context.WithTimeout(ctx, callOffLimit)
	defer cancel()
	var said bytes.Buffer
	cmd := exec.CommandContext(ctx, d.opt.Program, "hook", "call-off", s.VM)
	cmd.Stdout, cmd.Stderr = &limitedWriter{&said, mostCrash}, &limitedWriter{&said, mostCrash}
	err := cmd.Run()
	if err != nil {
		log.Warn("a migration that will fail goes on: libvirt does not call it off", "error", err, "said", shortened(strings.TrimSpace(said.String())))
		return
	}
	log.Warn("a migration that would have failed was called off")
}
