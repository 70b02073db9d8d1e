package takeover

import (
	"fmt"
	"os"
	"os/exec"

	"golang.org/x/sys/unix"
)

func (t *Target) processes() []Attempt {
	var all []Attempt
	for _, p := range []struct {
		name string
		pid  int
	}{{"parent", t.Parent}, {"another VM's worker", t.Worker}, {"process with another VM's memory", t.Memory}} {
		pid := p.pid
		all = append(all,
			Attempt{Name: "signal: " + p.name, Do: func() error { return unix.Kill(pid, 0) }},
			Attempt{Name: "descriptors: " + p.name, Do: func() error {
				_, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
				return err
			}},
			Attempt{Name: "maps: " + p.name, Do: func() error {
				_, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
				return err
			}},
			Attempt{Name: "command line: " + p.name, Do: func() error {
				_, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
				return err
			}},
			Attempt{Name: "pidfd: " + p.name, Do: func() error {
				fd, err := unix.PidfdOpen(pid, 0)
				return closed(fd, err)
			}},
		)
	}
	return append(all,
		// As libcuda 580 does in cuInit, which fails with 304 if it cannot.
		Attempt{Name: "name a thread", Needed: true, Do: func() error {
			fd, err := unix.Open(fmt.Sprintf("/proc/self/task/%d/comm", unix.Gettid()), unix.O_WRONLY|unix.O_CREAT|unix.O_TRUNC, 0o666)
			if err != nil {
				return err
			}
			_, err = unix.Write(fd, []byte("named"))
			return closed(fd, err)
		}},
		Attempt{Name: "another VM's memory: /proc/PID/mem", Do: func() error {
			f, err := os.OpenFile(fmt.Sprintf("/proc/%d/mem", t.Memory), os.O_RDWR, 0)
			if err != nil {
				return err
			}
			defer f.Close()
			_, err = f.ReadAt(make([]byte, 8), int64(t.Address))
			return err
		}},
		Attempt{Name: "another VM's memory: process_vm_readv", Do: func() error {
			b := make([]byte, 8)
			_, err := unix.ProcessVMReadv(t.Memory, []unix.Iovec{iovec(b)}, []unix.RemoteIovec{{Base: t.Address, Len: len(b)}}, 0)
			return err
		}},
		Attempt{Name: "ptrace: another VM's worker", Do: func() error { return seize(t.Worker) }},
		Attempt{Name: "signal: everybody", Do: func() error { return unix.Kill(-1, 0) }},
		Attempt{Name: "program: a shell", Do: func() error { return exec.Command("/bin/sh", "-c", "true").Run() }},
		Attempt{Name: "process: a child", Do: fork},
		Attempt{Name: "namespace: the host's", Do: func() error {
			fd, err := unix.Open(t.Namespace, unix.O_RDONLY|unix.O_CLOEXEC, 0)
			if err != nil {
				return err
			}
			defer unix.Close(fd)
			return unix.Setns(fd, 0)
		}},
		Attempt{Name: "priority: raised", Do: func() error {
			old, err := unix.Getpriority(unix.PRIO_PROCESS, 0) // 20 - nice
			if err != nil {
				return err
			}
			err = unix.Setpriority(unix.PRIO_PROCESS, 0, -19)
			if err == nil {
				_ = unix.Setpriority(unix.PRIO_PROCESS, 0, 20-old)
			}
			return err
		}},
	)
}
