package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"causeway/host/api"
)

// host is a causewayd of our own, below a folder of its own.
type host struct {
	dir, program string
	daemon       *exec.Cmd
	client       *api.Client
	log          *os.File
}

const configuration = `[devices]
socket_owner = "root"
log = "file"
sessions = %d
[placement]
overcommit = 100.0
`

// startHost copies the program, so that its processes can be told from others', and starts
// causewayd.
func startHost(ctx context.Context, o *options) (h *host, err error) {
	// Not the usual TMPDIR: paths of sockets are short.
	dir, err := os.MkdirTemp("/tmp", "cwd")
	if err != nil {
		return nil, err
	}
	h = &host{dir: dir, program: filepath.Join(dir, "bin", "causeway"), client: api.NewClient(api.Socket(filepath.Join(dir, "run")))}
	started := h
	defer func() {
		if err != nil {
			_, _ = os.Stderr.WriteString(tail(filepath.Join(dir, "causewayd.log")))
			_ = started.close()
		}
	}()
	if err := copyProgram(o.causeway, h.program); err != nil {
		return nil, err
	}
	lib, err := filepath.Abs(o.lib)
	if err != nil {
		return nil, err
	}
	if err := os.Symlink(lib, filepath.Join(dir, "lib")); err != nil {
		return nil, err
	}
	config := filepath.Join(dir, "causewayd.toml")
	if err := os.WriteFile(config, fmt.Appendf(nil, configuration, o.perVM), 0o600); err != nil {
		return nil, err
	}
	if h.log, err = os.Create(filepath.Join(dir, "causewayd.log")); err != nil {
		return nil, err
	}
	h.daemon = exec.CommandContext(ctx, h.program, "daemon", "--config", config, "--run-dir", filepath.Join(dir, "run"))
	h.daemon.Stdout, h.daemon.Stderr = h.log, h.log
	h.daemon.Cancel = func() error { return h.daemon.Process.Signal(syscall.SIGTERM) }
	if err := h.daemon.Start(); err != nil {
		return nil, fmt.Errorf("causewayd: %w", err)
	}
	for range 1200 {
		if err = h.client.Do(ctx, "GET", "/v1/version", nil, nil); err == nil {
			return h, nil
		}
		time.Sleep(50 * time.Millisecond)
	}
	return nil, fmt.Errorf("causewayd does not answer: %w", err)
}

func copyProgram(from, to string) error {
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY, 0o755)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}

// attach is libvirt's hook and QEMU: a vGPU whose socket is ready, then a VM that is connected to
// it.
func (h *host) attach(ctx context.Context, name string, sessions int) (v *vm, ready, connected time.Duration, err error) {
	begin := time.Now()
	got, err := h.client.Ensure(ctx, api.Spec{VM: name, Name: "gpu0", GPU: "soft", Limits: api.Limits{Memory: 64 << 20}}.Wish())
	if err != nil {
		return nil, 0, 0, fmt.Errorf("vGPU of %s: %w", name, err)
	}
	ready = time.Since(begin)
	if v, err = connect(got.Socket, sessions); err != nil {
		return nil, 0, 0, fmt.Errorf("connect %s: %w", name, err)
	}
	return v, ready, time.Since(begin), nil
}

func (h *host) detach(ctx context.Context, name string, v *vm) error {
	err := v.close()
	return errors.Join(err, h.client.Release(ctx, name, "gpu0", false))
}

// close ends everything that was started, devices that were forgotten too.
func (h *host) close() error {
	if h.daemon != nil && h.daemon.Process != nil {
		_ = h.daemon.Process.Signal(syscall.SIGTERM)
		_ = h.daemon.Wait()
	}
	list, err := ours(h.program)
	for _, p := range list {
		_ = syscall.Kill(p.pid, syscall.SIGKILL)
	}
	if h.log != nil {
		_ = h.log.Close()
	}
	h.client.Close()
	return errors.Join(err, os.RemoveAll(h.dir))
}

// roles sums what processes cost by their role.
type roles map[string]*sum

type sum struct {
	n       int
	process // sums
	most    int64
}

// measure looks at all processes of ours.
func (h *host) measure() (roles, error) {
	list, err := ours(h.program)
	if err != nil {
		return nil, err
	}
	r := roles{}
	for i := range list {
		p := &list[i]
		p.measureMemory()
		p.measureWork()
		s := r.of(p.role)
		s.n++
		s.pss += p.pss
		s.anon += p.anon
		s.file += p.file
		s.shmem += p.shmem
		s.private += p.private
		s.kernel += p.kernel
		s.threads += p.threads
		s.fds += p.fds
		s.cpu += p.cpu
		s.wakeups += p.wakeups
		s.most = max(s.most, p.pss)
	}
	return r, nil
}

func (r roles) of(role string) *sum {
	if r[role] == nil {
		r[role] = &sum{}
	}
	return r[role]
}

// settle waits until there are n processes of a role.
func (h *host) settle(role string, n int, limit time.Duration) error {
	for end := time.Now().Add(limit); ; time.Sleep(20 * time.Millisecond) {
		list, err := ours(h.program)
		if err != nil {
			return err
		}
		got := 0
		for _, p := range list {
			if p.role == role {
				got++
			}
		}
		if got == n {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("%d processes of role %s after %v, not %d", got, role, limit, n)
		}
	}
}
