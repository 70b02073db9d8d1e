package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"

	"causeway/vhostuser"
	"causeway/virtio/fs/fstest"
)

// keepers lists the processes of a program that keep.
func keepers(program string) (pids []int) {
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, d := range dirs {
		exe, _ := os.Readlink(filepath.Join(d, "exe"))
		args, _ := os.ReadFile(filepath.Join(d, "cmdline"))
		if pid, err := strconv.Atoi(filepath.Base(d)); err == nil && exe == program && bytes.HasSuffix(args, []byte("\x00keeper\x00")) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// stopped reports whether all threads of a process are.
func stopped(pid int) bool {
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", pid))
	for _, f := range tasks {
		if b, _ := os.ReadFile(f); !bytes.Contains(b, []byte("State:\tT")) {
			return false
		}
	}
	return len(tasks) > 0
}

func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !is(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within 20 s: %s", what)
		}
	}
}

// TestKeeper: a guest whose device process is killed, or ended in order, gets errors for what it
// waits for and for what it asks then, from the keeper, which ends with the front end. A guest that
// goes first leaves nothing behind.
func TestKeeper(t *testing.T) {
	program := installed(t)
	for _, how := range []syscall.Signal{syscall.SIGKILL, syscall.SIGTERM, 0} {
		t.Run(fmt.Sprintf("signal %d", how), func(t *testing.T) {
			socket := filepath.Join(shortDir(t), "vm.sock")
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			device := exec.CommandContext(ctx, program, "device", "--socket", socket, "--gpu", "soft", "--sandbox", "off", "--lib", filepath.Join(filepath.Dir(program), "..", "lib"))
			var said bytes.Buffer
			device.Stdout, device.Stderr = &said, &said
			if err := device.Start(); err != nil {
				t.Fatal(err)
			}
			var g *fstest.Guest
			eventually(t, "the device listens", func() (ok bool) {
				var err error
				g, err = fstest.Connect(socket, fstest.Options{})
				return err == nil
			})
			caller := fuse.Caller{Pid: 1}
			f, err := g.Open(syscall.O_RDWR, caller, "session")
			if err != nil {
				t.Fatal(err, said.String())
			}
			if n := len(keepers(program)); n != 1 {
				t.Errorf("%d keepers", n)
			}
			for _, pid := range keepers(program) {
				eventually(t, "the keeper has its filter", func() bool {
					b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
					return err == nil && bytes.Contains(b, []byte("\nSeccomp:\t2\n"))
				})
			}
			if how == 0 {
				if err := g.Kill(); err != nil {
					t.Error(err)
				}
				_ = device.Process.Kill()
				_ = device.Wait()
				eventually(t, "the keeper of a device without a guest ends", func() bool { return len(keepers(program)) == 0 })
				return
			}
			_ = device.Process.Signal(syscall.SIGSTOP) // what comes then waits
			eventually(t, "the device stands still", func() bool { return stopped(device.Process.Pid) })
			waits, err := f.Read(0, 0, g.Pages(1))
			if err != nil {
				t.Fatal(err)
			}
			_ = device.Process.Signal(how)
			_ = device.Process.Signal(syscall.SIGCONT)
			_ = device.Wait()
			if _, errno, err := waits.Wait(time.Minute); err != nil || how == syscall.SIGKILL && errno != syscall.ENOTCONN || errno == 0 {
				t.Errorf("what waited is answered with %v, %v", errno, err)
			}
			if _, err := g.Open(syscall.O_RDONLY, caller, "info"); !errors.Is(err, syscall.ENOTCONN) {
				t.Errorf("what comes then is answered with %v", err)
			}
			if n := len(keepers(program)); n != 1 {
				t.Errorf("%d keepers while the front end is there", n)
			}
			if how == syscall.SIGTERM { // a unit that is stopped
				began := time.Now()
				for _, pid := range keepers(program) {
					_ = syscall.Kill(pid, how)
				}
				eventually(t, "the keeper ends when it is asked to", func() bool { return len(keepers(program)) == 0 })
				if took := time.Since(began); took < 3*time.Second {
					t.Errorf("it ends after %v, and the guest's last requests wait for ever", took)
				}
			}
			if err := g.Kill(); err != nil {
				t.Error(err)
			}
			eventually(t, "the keeper ends with the front end", func() bool { return len(keepers(program)) == 0 })
		})
	}
}

// TestKeeperGivenUp: a keeper that does not read is given up. When it reads again it finds the
// link's end, but its device lives: it must not answer the front end beside it.
func TestKeeperGivenUp(t *testing.T) {
	program := installed(t)
	socket := filepath.Join(shortDir(t), "vm.sock")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	device := exec.CommandContext(ctx, program, "device", "--socket", socket, "--gpu", "soft", "--sandbox", "off", "--lib", filepath.Join(filepath.Dir(program), "..", "lib"))
	log, err := os.Create(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	device.Stdout, device.Stderr = log, log
	if err := device.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = device.Process.Kill(); _ = device.Wait() }()
	var g *fstest.Guest
	eventually(t, "the device listens", func() (ok bool) {
		var err error
		g, err = fstest.Connect(socket, fstest.Options{})
		return err == nil
	})
	pids := keepers(program)
	if len(pids) != 1 {
		t.Fatalf("%d keepers", len(pids))
	}
	_ = syscall.Kill(pids[0], syscall.SIGSTOP)
	defer func() { _ = syscall.Kill(pids[0], syscall.SIGCONT) }()
	eventually(t, "the keeper stands still", func() bool { return stopped(pids[0]) })
	const gone = "the keeper has gone"
	eventually(t, "the keeper is given up", func() bool {
		for range 100 {
			if _, err := g.Front.GetU64(vhostuser.GetFeatures, nil); err != nil {
				t.Fatal(err)
			}
		}
		said, err := os.ReadFile(log.Name())
		return err == nil && bytes.Contains(said, []byte(gone))
	})
	_ = syscall.Kill(pids[0], syscall.SIGCONT)
	for range 500 { // answers that another took would be missing here
		if _, err := g.Front.GetU64(vhostuser.GetFeatures, nil); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := g.Open(syscall.O_RDONLY, fuse.Caller{Pid: 1}, "info"); err != nil {
		t.Errorf("the device answers %v", err)
	}
	if err := g.Kill(); err != nil {
		t.Error(err)
	}
}
