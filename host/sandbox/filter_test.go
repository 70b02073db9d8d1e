package sandbox

import (
	"encoding/binary"
	"os"
	"slices"
	"testing"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// machine runs a filter. The kernel reads its struct in native order, the machine in network order:
// so data is written.
func machine(t *testing.T, p *program) func(arch, nr uint32, args ...uint32) uint32 {
	t.Helper()
	raw, err := p.assemble()
	if err != nil {
		t.Fatal(err)
	}
	if len(raw) > 4096 {
		t.Fatalf("%d instructions, the kernel takes 4096", len(raw))
	}
	code, ok := bpf.Disassemble(raw)
	if !ok {
		t.Fatal("filter does not disassemble")
	}
	vm, err := bpf.NewVM(code)
	if err != nil {
		t.Fatal(err)
	}
	return func(arch, nr uint32, args ...uint32) uint32 {
		b := make([]byte, 64)
		binary.BigEndian.PutUint32(b[offNumber:], nr)
		binary.BigEndian.PutUint32(b[offArch:], arch)
		for i, a := range args {
			binary.BigEndian.PutUint32(b[offArgs+8*i:], a)
		}
		v, err := vm.Run(b)
		if err != nil {
			t.Fatal(err)
		}
		return uint32(v)
	}
}

func TestFilterArguments(t *testing.T) {
	self := uint32(os.Getpid())
	run := map[string]func(uint32, uint32, ...uint32) uint32{
		"soft":   machine(t, base(&Policy{Mode: On})),
		"real":   machine(t, base(&Policy{Mode: On, Real: true})),
		"strict": machine(t, base(&Policy{Mode: Strict, Real: true})),
		"sealed": machine(t, sealed()),
		"keeper": machine(t, descriptors(os.Getpid())),
		"watch":  machine(t, (&Policy{Mode: On, Real: true, Driver: "580", Ioctls: IoctlsAudit}).watch()),
		"guess":  machine(t, (&Policy{Mode: On, Real: true, Driver: "999", Ioctls: IoctlsAudit}).watch()),
	}
	const thread = unix.CLONE_VM | unix.CLONE_THREAD | unix.CLONE_SIGHAND
	for _, c := range []struct {
		filter string
		nr     uint32
		args   []uint32
		want   uint32
	}{
		{"soft", unix.SYS_READ, nil, verdictAllow},
		{"soft", unix.SYS_FUTEX, nil, verdictAllow},
		{"soft", unix.SYS_PTRACE, nil, verdictDeny},
		{"soft", unix.SYS_CLONE3, nil, verdictAbsent},
		{"soft", lastKnown + 1, nil, verdictAbsent},
		{"real", lastKnown + 1, nil, verdictAbsent},
		{"soft", x32Bit, nil, verdictKill},
		{"soft", x32Bit + unix.SYS_READ, nil, verdictKill},
		{"soft", 0xffffffff, nil, verdictKill},
		{"sealed", x32Bit, nil, verdictKill},
		{"keeper", unix.SYS_RECVMSG, nil, verdictAllow},
		{"keeper", unix.SYS_SENDMSG, nil, verdictAllow},
		{"keeper", unix.SYS_OPENAT, nil, verdictDeny},
		{"keeper", unix.SYS_SOCKET, []uint32{unix.AF_UNIX}, verdictDeny},
		{"keeper", unix.SYS_CONNECT, nil, verdictDeny},
		{"keeper", unix.SYS_EXECVE, nil, verdictDeny},
		{"keeper", unix.SYS_PTRACE, nil, verdictDeny},
		{"keeper", unix.SYS_PIDFD_GETFD, nil, verdictDeny},
		{"keeper", unix.SYS_IOCTL, nil, verdictDeny},
		{"keeper", unix.SYS_CLONE, []uint32{thread}, verdictAllow},
		{"keeper", unix.SYS_CLONE, []uint32{uint32(unix.SIGCHLD)}, verdictDeny},
		{"keeper", unix.SYS_CLONE3, nil, verdictAbsent},
		{"keeper", unix.SYS_TGKILL, []uint32{self, 1, 9}, verdictAllow},
		{"keeper", unix.SYS_TGKILL, []uint32{self + 1, 1, 9}, verdictDeny},
		{"keeper", unix.SYS_MMAP, []uint32{0, 4096, unix.PROT_READ | unix.PROT_WRITE}, verdictAllow},
		{"keeper", unix.SYS_MMAP, []uint32{0, 4096, unix.PROT_READ | unix.PROT_EXEC}, verdictDeny},
		{"keeper", unix.SYS_MPROTECT, []uint32{0, 4096, unix.PROT_EXEC}, verdictDeny},
		{"keeper", x32Bit + unix.SYS_READ, nil, verdictKill},
		{"keeper", lastKnown + 1, nil, verdictAbsent},
		{"soft", unix.SYS_KILL, []uint32{self, 9}, verdictAllow},
		{"soft", unix.SYS_KILL, []uint32{0, 9}, verdictDeny},
		{"soft", unix.SYS_KILL, []uint32{0xffffffff, 9}, verdictDeny},
		{"soft", unix.SYS_TGKILL, []uint32{self, 1, 9}, verdictAllow},
		{"soft", unix.SYS_TGKILL, []uint32{self + 1, 1, 9}, verdictDeny},
		{"soft", unix.SYS_CLONE, []uint32{thread}, verdictAllow},
		{"soft", unix.SYS_CLONE, []uint32{thread | unix.CLONE_NEWUSER}, verdictDeny},
		{"soft", unix.SYS_CLONE, []uint32{unix.CLONE_NEWNS}, verdictDeny},
		{"sealed", unix.SYS_CLONE, []uint32{thread}, verdictAllow},
		{"sealed", unix.SYS_CLONE, []uint32{uint32(unix.SIGCHLD)}, verdictDeny},
		{"soft", unix.SYS_EXECVE, nil, verdictAllow},
		{"sealed", unix.SYS_EXECVE, nil, verdictDeny},
		{"sealed", unix.SYS_VFORK, nil, verdictDeny},
		{"sealed", unix.SYS_READ, nil, verdictAllow},
		{"soft", unix.SYS_SOCKET, []uint32{unix.AF_UNIX}, verdictDeny},
		{"real", unix.SYS_SOCKET, []uint32{unix.AF_UNIX}, verdictAllow},
		{"real", unix.SYS_SOCKET, []uint32{unix.AF_INET}, verdictDeny},
		{"real", unix.SYS_SOCKET, []uint32{unix.AF_VSOCK}, verdictDeny},
		{"soft", unix.SYS_IOCTL, []uint32{3, unix.TIOCSTI}, verdictDeny},
		{"soft", unix.SYS_IOCTL, []uint32{3, unix.TIOCSETD}, verdictDeny},
		{"soft", unix.SYS_IOCTL, []uint32{3, unix.TIOCINQ}, verdictAllow},
		{"watch", unix.SYS_IOCTL, []uint32{3, 'F'<<8 | 42}, verdictAllow},
		{"watch", unix.SYS_IOCTL, []uint32{3, 62}, verdictNotify},
		{"watch", unix.SYS_IOCTL, []uint32{3, unix.TCGETS}, verdictAllow},
		{"watch", unix.SYS_PTRACE, nil, verdictAllow},
		{"guess", unix.SYS_IOCTL, []uint32{3, 'F'<<8 | 42}, verdictNotify},
		{"guess", unix.SYS_IOCTL, []uint32{3, unix.TCGETS}, verdictAllow},
		{"soft", unix.SYS_PRCTL, []uint32{unix.PR_SET_NAME}, verdictAllow},
		{"soft", unix.SYS_PRCTL, []uint32{unix.PR_SET_PTRACER}, verdictDeny},
		{"soft", unix.SYS_PRCTL, []uint32{unix.PR_SET_MM}, verdictDeny},
		{"soft", unix.SYS_PERSONALITY, []uint32{0xffffffff}, verdictAllow},
		{"soft", unix.SYS_PERSONALITY, []uint32{0}, verdictDeny},
		{"soft", unix.SYS_PRLIMIT64, []uint32{1}, verdictDeny},
		{"soft", unix.SYS_PRLIMIT64, []uint32{0}, verdictAllow},
		{"real", unix.SYS_INOTIFY_INIT1, nil, verdictAllow}, // in no list
		{"strict", unix.SYS_INOTIFY_INIT1, nil, verdictDeny},
		{"real", unix.SYS_BPF, nil, verdictDeny},
	} {
		if got := run[c.filter](nativeArch, c.nr, c.args...); got != c.want {
			t.Errorf("%s: call %d%v: %#x, want %#x", c.filter, c.nr, c.args, got, c.want)
		}
	}
	for name, f := range run {
		for _, arch := range []uint32{unix.AUDIT_ARCH_I386, unix.AUDIT_ARCH_AARCH64, 0} {
			if got := f(arch, unix.SYS_READ); got != verdictKill {
				t.Errorf("%s: read on architecture %#x: %#x", name, arch, got)
			}
		}
	}
}

// TestFilterNumbers compares bisection with the lists, for every number.
func TestFilterNumbers(t *testing.T) {
	for _, p := range []*Policy{{Mode: On}, {Mode: On, Real: true}, {Mode: Audit}} {
		f := base(p)
		if p.Mode == Audit {
			f.notifying()
		}
		run := machine(t, f)
		for nr := uint32(0); nr <= lastKnown+10; nr++ {
			if _, ok := f.checks[nr]; ok && f.verdicts[nr] == 0 {
				continue
			}
			want, ok := f.verdicts[nr]
			switch {
			case nr > lastKnown:
				want = f.beyond
			case !ok:
				want = f.rest
			}
			if got := run(nativeArch, nr); got != want && f.checks[nr] == nil {
				t.Errorf("%+v: %d: %#x, want %#x", p, nr, got, want)
			}
		}
	}
}

// TestLists: no call is in two of them, and each is known.
func TestLists(t *testing.T) {
	all := slices.Concat(allowed, denied, programs)
	for nr := range judged(&Policy{Real: true}, 1) {
		all = append(all, nr)
	}
	slices.Sort(all)
	for i, nr := range all {
		if i > 0 && all[i-1] == nr {
			t.Errorf("call %d is in two lists", nr)
		}
		if nr > lastKnown {
			t.Errorf("call %d is above lastKnown", nr)
		}
	}
}
