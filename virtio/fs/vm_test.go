package fs_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"causeway/vhostuser"
	"causeway/virtio/fs"
)

// missing skips a test that needs something this machine lacks. CAUSEWAY_REQUIRE_VM=1 promises that
// it is there.
func missing(t *testing.T, why string) {
	t.Helper()
	if os.Getenv("CAUSEWAY_REQUIRE_VM") == "1" {
		t.Fatal(why)
	}
	t.Skip(why)
}

func findQEMU(t *testing.T) string {
	t.Helper()
	if testing.Short() {
		t.Skip("boots a virtual machine")
	}
	qemu, err := exec.LookPath("qemu-system-x86_64")
	if err != nil {
		missing(t, "qemu-system-x86_64 is missing: run scripts/setup.sh qemu")
	}
	return qemu
}

// findKernel returns a kernel of build/kernels and an initramfs for it.
func findKernel(t *testing.T, version, programs string) (kernel, initrd string) {
	t.Helper()
	dir := filepath.Join("..", "..", "build", "kernels", version)
	kernel = filepath.Join(dir, "vmlinuz")
	if _, err := os.Stat(kernel); err != nil {
		missing(t, kernel+" is missing: run scripts/setup.sh kernels")
	}
	return kernel, initramfs(t, filepath.Join(programs, "init"), filepath.Join(dir, "modules"))
}

// TestVM boots stock kernels twice each: checks, reboot with a READ pending, power-off with a READ
// pending. CAUSEWAY_VM_KERNELS names the kernels (folders of build/kernels), 6.12 by default;
// CAUSEWAY_REQUIRE_VM=1 wants all.
func TestVM(t *testing.T) {
	qemu := findQEMU(t)
	kernels := strings.Fields(os.Getenv("CAUSEWAY_VM_KERNELS"))
	if len(kernels) == 0 {
		kernels = []string{"6.12"}
		if os.Getenv("CAUSEWAY_REQUIRE_VM") == "1" {
			kernels = []string{"6.1", "6.12", "7.2"}
		}
	}
	programs := guestPrograms(t)
	for _, k := range kernels {
		t.Run(k, func(t *testing.T) {
			kernel, initrd := findKernel(t, k, programs)
			runVM(t, qemu, kernel, initrd, programs)
		})
	}
}

func vmTree(t *testing.T, programs string, ctl *vmControl, boot *bootFile) *fs.Dir {
	t.Helper()
	root := fs.NewDir()
	root.File("hello", fs.Bytes([]byte("served by the host\n")), 0o444)
	root.Symlink("link", "hello")
	root.Control("session", ctl)
	root.Control("boot", boot)
	many := root.Dir("many")
	for i := 0; i < 1000; i++ {
		many.File(fmt.Sprintf("file-%03d", i), fs.Bytes([]byte("x")), 0o444)
	}
	for _, p := range []string{"static", "dynamic"} {
		f, err := os.Open(filepath.Join(programs, p))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		c, err := fs.OSFile(f)
		if err != nil {
			t.Fatal(err)
		}
		root.Dir("bin").File(p, c, 0o555)
	}
	answer, err := os.ReadFile(filepath.Join(programs, "libanswer.so"))
	if err != nil {
		t.Fatal(err)
	}
	root.Dir("lib").File("libanswer.so", fs.Bytes(answer), 0o444)
	for _, l := range []string{"libc.so.6", "libdl.so.2", "ld-linux-x86-64.so.2"} {
		root.Dir("lib").File(l, fs.Bytes(hostLibrary(t, l)), 0o555)
	}
	return root
}

func runVM(t *testing.T, qemu, kernel, initrd, programs string) {
	ctl, boot := &vmControl{}, &bootFile{}
	mem := vhostuser.NewMemory()
	resets := 0
	gone := make(chan struct{}, 8)
	dev, err := fs.New(mem, vmTree(t, programs, ctl, boot), fs.Options{RequestQueues: 2,
		OnReset:      func() { resets++ },
		OnDisconnect: func() { gone <- struct{}{} }})
	if err != nil {
		t.Fatal(err)
	}
	sock := filepath.Join(t.TempDir(), "v.sock")
	ln, err := vhostuser.Listen(sock)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- vhostuser.NewServer(mem, dev, vhostuser.Options{}).Serve(ctx, ln) }()
	defer func() {
		cancel()
		if err := <-served; err != nil {
			t.Errorf("server: %v", err)
		}
	}()

	start := time.Now()
	out := runQEMU(t, qemu, kernel, initrd, sock)
	<-gone
	t.Logf("QEMU ran %v, %d resets", time.Since(start).Round(time.Millisecond), resets)
	done := 0
	for s := bufio.NewScanner(bytes.NewReader(out)); s.Scan(); {
		switch line := strings.TrimSpace(s.Text()); {
		case strings.HasPrefix(line, "FAIL "):
			t.Error(line)
		case strings.HasPrefix(line, "info "):
			t.Log(line)
		case strings.HasPrefix(line, "boot ") && strings.HasSuffix(line, " done"):
			done++
		}
	}
	if done != 2 || t.Failed() {
		t.Errorf("the guest finished %d boots of 2; its console:\n%s", done, out)
	}
	ctl.mu.Lock()
	defer ctl.mu.Unlock()
	for _, e := range ctl.errs {
		t.Error(e)
	}
	if ctl.stayed != 2 || ctl.revoked != 2 {
		t.Errorf("%d READs were left behind and %d taken back, both should be 2", ctl.stayed, ctl.revoked)
	}
	if ctl.killed.IsZero() || ctl.released <= 0 || ctl.released > 2*time.Second {
		t.Errorf("the killed process's RELEASE came %v after its READ completed", ctl.released)
	}
	if resets < 2 {
		t.Errorf("%d resets in two boots", resets)
	}
	if ctl.open != 0 {
		t.Errorf("%d sessions are still open", ctl.open)
	}
}

// runQEMU runs a guest to its power-off and returns its console.
func runQEMU(t *testing.T, qemu, kernel, initrd, sock string) []byte {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 150*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, qemu, qemuArgs(kernel, initrd, sock, "")...).CombinedOutput()
	if err != nil {
		t.Errorf("QEMU: %v", err)
	}
	return out
}

// qemuArgs is a machine with the device on a hot-pluggable port.
func qemuArgs(kernel, initrd, sock, mode string) []string {
	// Emulation works everywhere; /dev/kvm that opens may still fail (nested, restricted).
	accel := []string{"-accel", "tcg,thread=multi", "-cpu", "max"}
	if os.Getenv("CAUSEWAY_VM_ACCEL") == "kvm" {
		accel = []string{"-accel", "kvm", "-cpu", "host"}
	}
	return append(accel, "-smp", "2", "-m", "512M,slots=2,maxmem=1G",
		"-object", "memory-backend-memfd,id=m,size=512M,share=on", "-machine", "q35,memory-backend=m",
		// no_timer_check: on a loaded machine emulation misses the ticks that the kernel's check
		// wants.
		"-kernel", kernel, "-initrd", initrd, "-append", "console=ttyS0 quiet panic=-1 no_timer_check "+mode,
		"-nodefaults", "-nographic", "-serial", "stdio", "-device", "pcie-root-port,id=rp1",
		"-chardev", "socket,id=c,path="+sock,
		"-device", "vhost-user-fs-pci,id=gpu,bus=rp1,chardev=c,tag=gpu0,queue-size=1024,num-request-queues=2")
}
