package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// limitedBuffer keeps the first bytes of an output; a program that prints without end costs no
// memory.
type limitedBuffer struct{ bytes.Buffer }

func (b *limitedBuffer) Write(p []byte) (int, error) {
	if room := 1<<20 - b.Len(); room > 0 {
		b.Buffer.Write(p[:min(room, len(p))])
	}
	return len(p), nil
}

// command is a row's command line, without the runner.
func command(r *row) []string {
	switch filepath.Ext(r.program) {
	case ".py":
		return append([]string{"python3", r.program}, r.args...)
	case ".sh":
		return append([]string{"bash", r.program}, r.args...)
	}
	return append([]string{r.program}, r.args...)
}

// execute runs one side of a row in a folder of its own, so that compiler caches start empty, and
// ends its whole process group at the limit.
func execute(ctx context.Context, r *row, prefix []string, libDir, dir string, limit time.Duration) outcome {
	cache, err := os.MkdirTemp(dir, "side")
	if err != nil {
		return outcome{Status: 125, Err: err.Error()}
	}
	defer os.RemoveAll(cache)
	argv := append(append([]string{}, prefix...), command(r)...)
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Dir = cache
	path := libDir
	if own := os.Getenv("PYTHONPATH"); own != "" {
		path += ":" + own // packages that were brought along
	}
	cmd.Env = append(os.Environ(), "PYTHONPATH="+path, "PYTHONDONTWRITEBYTECODE=1", "PYTHONUNBUFFERED=1", "TORCHINDUCTOR_CACHE_DIR="+cache+"/inductor",
		"TRITON_CACHE_DIR="+cache+"/triton", "CUPY_CACHE_DIR="+cache+"/cupy", "CUDA_CACHE_PATH="+cache+"/cuda", "TMPDIR="+cache,
		"NCCL_NVLS_ENABLE=0", "TORCH_SYMM_MEM_DISABLE_MULTICAST=1", "NVSHMEM_DISABLE_NVLS=1", "HF_HUB_OFFLINE=1", "OMP_NUM_THREADS=2")
	cmd.Env = append(cmd.Env, r.env...)
	if os.Getenv("CAUSEWAY_LOG") == "" {
		// Stderr is not compared, and says what was refused.
		cmd.Env = append(cmd.Env, "CAUSEWAY_LOG=info")
	}
	var out, errs limitedBuffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.WaitDelay = 2 * time.Second
	start := time.Now()
	if err := cmd.Start(); err != nil {
		return outcome{Ran: true, Status: 127, Err: err.Error()}
	}
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	late := false
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case err = <-done:
	case <-ctx.Done():
		err = end(cmd.Process.Pid, done)
	case <-timer.C:
		late = true
		err = end(cmd.Process.Pid, done)
	}
	o := outcome{Ran: true, Seconds: time.Since(start).Seconds(), Out: out.String(), Err: strings.ToValidUTF8(errs.String(), "?")}
	o.Status = status(err)
	if late {
		o.Status = 124
		o.Err += "\nended at the time limit of " + limit.String()
	}
	_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // children that outlived it
	return o
}

// end asks a process group to stop, then makes it.
func end(pid int, done <-chan error) error {
	_ = syscall.Kill(-pid, syscall.SIGTERM)
	select {
	case err := <-done:
		return err
	case <-time.After(3 * time.Second):
	}
	_ = syscall.Kill(-pid, syscall.SIGKILL)
	return <-done
}

func status(err error) int {
	var exit *exec.ExitError
	switch {
	case err == nil || errors.Is(err, exec.ErrWaitDelay):
		return 0
	case errors.As(err, &exit):
		if ws, ok := exit.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
			return 128 + int(ws.Signal())
		}
		return exit.ExitCode()
	}
	return 126
}
