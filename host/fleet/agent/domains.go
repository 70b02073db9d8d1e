package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"time"
)

// Domains is the host's libvirt.
type Domains interface {
	// Plug gives a domain the device of a vGPU that causewayd has, where it has not got it: as
	// mount tag the first free of gpu0, gpu1...
	Plug(ctx context.Context, domain, vgpu string) error
	// Unplug takes it out. That it has none is fine; ErrNoDomain says that there is no such domain.
	Unplug(ctx context.Context, domain, vgpu string) error
}

// Command is libvirt by the program causeway, which has the binding that this one is built without.
type Command struct {
	Program string // causeway
	Connect string // libvirt's address; "": its default
	RunDir  string
	Timeout time.Duration // how long a guest may take to let go of a device
}

// exitUnknown is causeway's status for "nothing of that name" (`causeway exit-status`).
const exitUnknown = 4

// Plug implements Domains.
func (c *Command) Plug(ctx context.Context, domain, vgpu string) error {
	return c.run(ctx, "attach", domain, vgpu)
}

// Unplug implements Domains.
func (c *Command) Unplug(ctx context.Context, domain, vgpu string) error {
	return c.run(ctx, "detach", domain, vgpu)
}

func (c *Command) run(ctx context.Context, verb, domain, vgpu string) error {
	ctx, cancel := context.WithTimeout(ctx, c.Timeout+30*time.Second)
	defer cancel()
	args := []string{verb, "--run-dir", c.RunDir, "--timeout", c.Timeout.String(), "--served", vgpu}
	if c.Connect != "" {
		args = append(args, "--connect", c.Connect)
	}
	cmd := exec.CommandContext(ctx, c.Program, append(args, "--", domain)...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	err := cmd.Run()
	if err == nil {
		return nil
	}
	text := strings.TrimSpace(strings.TrimPrefix(strings.TrimSpace(stderr.String()), "causeway: "))
	if text == "" {
		return fmt.Errorf("%s %s: %w", c.Program, verb, err)
	}
	if len(text) > mostText {
		text = text[:mostText]
	}
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() == exitUnknown && strings.HasPrefix(text, ErrNoDomain.Error()) {
		// And not: no such vGPU.
		return fmt.Errorf("%w: %s", ErrNoDomain, strings.TrimPrefix(text, ErrNoDomain.Error()+": "))
	}
	return errors.New(text)
}

// mostText bounds what another program says, for an event has at most 1 KiB.
const mostText = 700
