package doctor

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strconv"
	"strings"

	"causeway/host/doctor/kvm"
)

// version reads the numbers at the beginning of text: 6.1.0-13-amd64 is 6, 1.
func version(text string) (major, minor int) {
	a, rest, _ := strings.Cut(text, ".")
	major, _ = strconv.Atoi(strings.TrimSpace(a))
	end := strings.IndexFunc(rest, func(r rune) bool { return r < '0' || r > '9' })
	if end < 0 {
		end = len(rest)
	}
	minor, _ = strconv.Atoi(rest[:end])
	return major, minor
}

func atLeast(major, minor, wantMajor, wantMinor int) bool {
	return major > wantMajor || major == wantMajor && minor >= wantMinor
}

func kernel(_ context.Context, m *Machine) Result {
	release, there := m.text("/proc/sys/kernel/osrelease")
	if !there {
		return failed("Mount it: `mount -t proc proc /proc`.", "/proc is not readable")
	}
	major, minor := version(release)
	switch {
	case !atLeast(major, minor, 5, 4):
		return failed("Install a newer kernel: distributions of 2020 and later have one.", "Linux %s; 5.4 or newer is needed", release)
	case !atLeast(major, minor, 5, 19):
		return warning("Install a newer kernel, such as your distribution's backport.", "Linux %s: workers lack Landlock, or part of it, before 5.19", release)
	}
	return ok("Linux %s", release)
}

// wanted of the kernel's configuration, and what is missing without.
var wanted = []struct{ option, without string }{
	{"CONFIG_MEMFD_CREATE", "no shared guest memory"},
	{"CONFIG_SECCOMP_FILTER", "workers may use every system call"},
	{"CONFIG_SECURITY_LANDLOCK", "workers see files by permission only"},
	{"CONFIG_USER_NS", "workers of users who are not root are less confined"},
	{"CONFIG_NET_NS", "workers reach the network"},
	{"CONFIG_MEMCG", "memory of VMs' workers is not bounded"},
	{"CONFIG_CGROUP_SCHED", "CPU time of VMs' workers is not shared out"},
}

func kernelConfig(_ context.Context, m *Machine) Result {
	release, _ := m.text("/proc/sys/kernel/osrelease")
	text, where := "", ""
	for _, path := range []string{"/boot/config-" + release, "/lib/modules/" + release + "/config", "/proc/config.gz"} {
		t, there := m.text(path)
		if there && strings.HasSuffix(path, ".gz") {
			t, there = unzip(t)
		}
		if there {
			text, where = "\n"+t+"\n", path
			break
		}
	}
	if where == "" {
		return ok("not readable here: what matters is tried below")
	}
	var missing []string
	for _, w := range wanted {
		if !strings.Contains(text, "\n"+w.option+"=y\n") {
			missing = append(missing, w.option+" ("+w.without+")")
		}
	}
	if len(missing) > 0 {
		return warning("Use your distribution's kernel, or build with these options.", "%s lacks %s", where, strings.Join(missing, ", "))
	}
	return ok("%s has all of %d options", where, len(wanted))
}

// mostConfig bounds what is unpacked.
const mostConfig = 4 << 20

func unzip(s string) (string, bool) {
	z, err := gzip.NewReader(bytes.NewReader([]byte(s)))
	if err != nil {
		return "", false
	}
	b, err := io.ReadAll(io.LimitReader(z, mostConfig))
	return string(b), err == nil
}

func kvmRuns(ctx context.Context, m *Machine) Result {
	switch err := m.Open("/dev/kvm"); {
	case err == nil:
		return kvmGuest(ctx, m)
	case errors.Is(err, fs.ErrNotExist):
		return warning("Load the module (`modprobe kvm_intel` or `modprobe kvm_amd`); if that fails, enable virtualization in the firmware.",
			"no /dev/kvm: VMs run by emulation, some ten times slower")
	case errors.Is(err, fs.ErrPermission):
		return warning("Put the user into the group: `usermod -aG kvm USER`; then log in anew.", "/dev/kvm may not be opened by this user")
	default:
		return failed("Look for the reason in `dmesg | grep -i kvm`.", "/dev/kvm: %v", err)
	}
}

// kvmGuest runs a guest: a device that opens says little.
func kvmGuest(ctx context.Context, m *Machine) Result {
	const emulate = "Until then have VMs run by emulation, some ten times slower: `qemu-system-x86_64 -accel tcg`, or <domain type='qemu'>."
	switch err := m.KVM(ctx); {
	case err == nil:
		return ok("/dev/kvm opens, and a guest runs")
	case errors.Is(err, kvm.ErrHost):
		return warning("Give VMs a CPU without it: `-cpu host,arch-capabilities=off`, or <feature policy='disable' name='arch-capabilities'/> in <cpu>.", "/dev/kvm opens, but %v", err)
	case errors.Is(err, kvm.ErrSlow), errors.Is(err, kvm.ErrStopped):
		return warning("If this host is a VM itself, it needs nested virtualization: ask whoever runs its host. "+emulate, "/dev/kvm opens, but no guest boots: %v", err)
	default:
		return warning("Look for the reason in `dmesg | grep -i kvm`. "+emulate, "/dev/kvm opens, but no guest can be made: %v", err)
	}
}

func sealedMemory(_ context.Context, m *Machine) Result {
	if err := m.Memfd(); err != nil {
		return failed("Use a kernel with CONFIG_MEMFD_CREATE, and a container that allows memfd_create.", "%v: guest memory cannot be shared", err)
	}
	return ok("memfd_create and seals work")
}

func hugePages(_ context.Context, m *Machine) Result {
	shmem, there := m.text("/sys/kernel/mm/transparent_hugepage/shmem_enabled")
	mode := chosen(shmem)
	var reserved string
	if info, read := m.text("/proc/meminfo"); read {
		if n := field(info, "HugePages_Total:"); n != "" && n != "0" {
			reserved = fmt.Sprintf("; %s huge pages reserved, %s free", n, field(info, "HugePages_Free:"))
		}
	}
	switch {
	case !there && reserved == "":
		return warning("Use a kernel with CONFIG_TRANSPARENT_HUGEPAGE, or reserve huge pages for <memoryBacking><hugepages/>.", "no transparent huge pages: copies of large guest memory start slower")
	case (mode == "never" || mode == "deny") && reserved == "":
		return warning("`echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled`, also at boot, has QEMU's memfd memory use them.",
			"shared memory uses no huge pages (shmem_enabled: %s): registering guest memory with the GPU takes longer", mode)
	}
	return ok("shmem_enabled: %s%s", mode, reserved)
}

// chosen is the word in brackets: always [madvise] never.
func chosen(s string) string {
	if _, rest, found := strings.Cut(s, "["); found {
		word, _, _ := strings.Cut(rest, "]")
		return word
	}
	return s
}

// field is the first word after a name at the beginning of a line.
func field(text, name string) string {
	for line := range strings.Lines(text) {
		if rest, found := strings.CutPrefix(line, name); found {
			if words := strings.Fields(rest); len(words) > 0 {
				return words[0]
			}
		}
	}
	return ""
}

// leastLocked is enough for what a device process and its workers lock by themselves.
const leastLocked = 64 << 20

// lockedMemory looks at causewayd's limit, which device processes inherit, or at this process's if
// there is no causewayd.
func lockedMemory(ctx context.Context, m *Machine) Result {
	who, path := "this shell", "/proc/self/limits"
	if v, err := m.Daemon.Version(ctx); err == nil {
		who, path = "causewayd", fmt.Sprintf("/proc/%d/limits", v.PID)
	}
	text, there := m.text(path)
	value := field(text, "Max locked memory")
	if !there || value == "" {
		return warning("Run this as root.", "%s is not readable", path)
	}
	if value == "unlimited" {
		return ok("%s may lock as much as it needs", who)
	}
	n, err := strconv.ParseUint(value, 10, 64)
	if err == nil {
		value = fmt.Sprintf("%d KiB", n>>10)
	}
	if err != nil || n < leastLocked {
		return warning("Put LimitMEMLOCK=infinity into the unit (`systemctl edit causewayd`), or `ulimit -l unlimited` before starting it by hand.",
			"%s may lock %s: guest memory may not be pinned for the GPU", who, value)
	}
	return ok("%s may lock %d MiB", who, n>>20)
}

// leastMaps is Linux's own default.
const leastMaps = 65530

func memoryMaps(_ context.Context, m *Machine) Result {
	text, _ := m.text("/proc/sys/vm/max_map_count")
	n, err := strconv.Atoi(text)
	if err != nil {
		return warning("Mount /proc.", "vm.max_map_count is not readable")
	}
	if n < leastMaps {
		return warning("`sysctl -w vm.max_map_count=1048576`, and put it into /etc/sysctl.d/causeway.conf.", "vm.max_map_count is %d: programs with many allocations fail", n)
	}
	return ok("vm.max_map_count is %d", n)
}

func controlGroups(_ context.Context, m *Machine) Result {
	text, there := m.text("/sys/fs/cgroup/cgroup.controllers")
	if !there {
		return warning("Boot with systemd.unified_cgroup_hierarchy=1.", "no control groups of version 2: CPU, memory and processes of a vGPU may not be bounded (isolation.memory, .processes)")
	}
	words := strings.Fields(text)
	for _, need := range []string{"cpu", "memory", "pids"} {
		if !contains(words, need) {
			return warning("Boot without cgroup_disable="+need+"; in a container, delegate the controller.", "control groups of version 2 without the %s controller", need)
		}
	}
	return ok("version 2 with cpu, memory and pids")
}

func contains(words []string, want string) bool {
	for _, w := range words {
		if w == want {
			return true
		}
	}
	return false
}

func seccomp(_ context.Context, m *Machine) Result {
	text, there := m.text("/proc/sys/kernel/seccomp/actions_avail")
	if !there || !contains(strings.Fields(text), "errno") {
		return warning("Use a kernel with CONFIG_SECCOMP_FILTER.", "no seccomp filters: a worker that was taken over may use every system call")
	}
	return ok("filters are available")
}

func landlockVersion(_ context.Context, m *Machine) Result {
	const do = "Boot with landlock among the modules, as in lsm=landlock,lockdown,yama,integrity,apparmor,bpf, on Linux 5.13 or newer."
	n, err := m.Landlock()
	if err != nil {
		return warning(do, "not there (%v): a worker that was taken over sees files by their permissions only", err)
	}
	if n < 4 {
		return ok("version %d; from version 4 (Linux 6.7) on it keeps workers from TCP as well, which a network namespace does too", n)
	}
	return ok("version %d", n)
}

func userNamespaces(_ context.Context, m *Machine) Result {
	if m.UID == 0 {
		return ok("not needed: root gives each worker a user of its own")
	}
	for path, bad := range map[string]string{
		"/proc/sys/user/max_user_namespaces":                     "0",
		"/proc/sys/kernel/unprivileged_userns_clone":             "0",
		"/proc/sys/kernel/apparmor_restrict_unprivileged_userns": "1",
	} {
		if text, there := m.text(path); there && text == bad {
			return warning("Run causewayd as root, or allow them: `sysctl -w "+strings.ReplaceAll(strings.TrimPrefix(path, "/proc/sys/"), "/", ".")+"=...`.",
				"users who are not root may not make them (%s is %s): workers are confined by seccomp and Landlock alone", path, text)
		}
	}
	return ok("allowed")
}
