package sandbox

import (
	"log/slog"
	"os/exec"
	"runtime"
	"syscall"
	"testing"
)

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

// forked starts a program in a space as spawn does.
func forked(s *Space, cmd *exec.Cmd) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		done <- s.Fork(cmd)
	}()
	return <-done
}

func BenchmarkNew(b *testing.B) {
	for b.Loop() {
		s, err := New(NewPolicy(On, false, nil, nil), quiet())
		if err != nil {
			b.Fatal(err)
		}
		s.Close()
	}
}

func BenchmarkFork(b *testing.B) {
	for name, mode := range map[string]Mode{"off": Off, "on": On} {
		b.Run(name, func(b *testing.B) {
			s, err := New(NewPolicy(mode, false, nil, nil), quiet())
			if err != nil {
				b.Fatal(err)
			}
			defer s.Close()
			for b.Loop() {
				cmd := exec.Command("/bin/true")
				cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
				if err := forked(s, cmd); err != nil {
					b.Fatal(err)
				}
				if err := cmd.Wait(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
