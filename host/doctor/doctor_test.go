package doctor

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"causeway/host/api"
	"causeway/host/api/apitest"
	"causeway/host/doctor/kvm"
	"causeway/host/schedule"
)

// good are the files of a host on which everything is well, without a GPU of NVIDIA's.
var good = map[string]string{
	"proc/sys/kernel/osrelease":                           "6.12.9-amd64\n",
	"boot/config-6.12.9-amd64":                            "CONFIG_MEMFD_CREATE=y\nCONFIG_SECCOMP_FILTER=y\nCONFIG_SECURITY_LANDLOCK=y\nCONFIG_USER_NS=y\nCONFIG_NET_NS=y\nCONFIG_MEMCG=y\nCONFIG_CGROUP_SCHED=y\n",
	"proc/sys/vm/max_map_count":                           "1048576\n",
	"proc/sys/kernel/seccomp/actions_avail":               "kill_process kill_thread trap errno user_notif trace log allow\n",
	"proc/self/limits":                                    "Limit                     Soft Limit           Hard Limit           Units\nMax locked memory         unlimited            unlimited            bytes\n",
	"proc/meminfo":                                        "MemTotal: 5 kB\nHugePages_Total:       0\n",
	"sys/kernel/mm/transparent_hugepage/shmem_enabled":    "always within_size [advise] never deny force\n",
	"sys/fs/cgroup/cgroup.controllers":                    "cpuset cpu io memory hugetlb pids\n",
	"sys/module/apparmor/parameters/enabled":              "Y\n",
	"etc/apparmor.d/abstractions/libvirt-qemu":            "include if exists <abstractions/libvirt-qemu.d>\n",
	"etc/apparmor.d/abstractions/libvirt-qemu.d/causeway": "rw,\n",
	"usr/sbin/libvirtd":                                   "x",
	"proc/net/unix":                                       "Num RefCount Protocol Flags Type St Inode Path\n0000: 00000002 00000000 00010000 0005 01 99 RUN/scheduler.sock\n",
}

// said is what programs print on it.
var said = map[string]string{
	"qemu-system-x86_64 --version":    "QEMU emulator version 10.0.2 (Debian 1:10.0.2)\n",
	"qemu-system-x86_64 -device help": "name \"vhost-user-fs-pci\", bus PCI\n",
	"virsh -c qemu:///system version": "Compiled against library: libvirt 11.3.0\nUsing library: libvirt 11.3.0\n",
	"causeway gpus --local --json":    `[{"backend":"soft","index":0,"name":"Causeway Software GPU"}]`,
}

// host makes a machine of files and programs; an empty text takes one away.
func host(t *testing.T, files, programs map[string]string) *Machine {
	t.Helper()
	run := runDir(t)
	root := fstest.MapFS{
		hookFile[1:]: {Data: []byte("#!/bin/sh\n"), Mode: 0o755},
		run[1:]:      {Mode: fs.ModeDir | 0o755},
	}
	for _, set := range []map[string]string{good, files} {
		for path, text := range set {
			path = strings.Replace(path, "RUN", run[1:], 1)
			if root[path] = (&fstest.MapFile{Data: []byte(strings.ReplaceAll(text, "RUN", run))}); text == "" {
				delete(root, path)
			}
		}
	}
	commands := map[string]string{}
	for _, set := range []map[string]string{said, programs} {
		for c, text := range set {
			if commands[c] = text; text == "" {
				delete(commands, c)
			}
		}
	}
	f := &apitest.Fake{Version: api.Version{Version: "1.0", PID: 77}}
	f.Serve(t, run)
	root["proc/77/limits"] = root["proc/self/limits"]
	c := api.NewClient(api.Socket(run))
	t.Cleanup(c.Close)
	return &Machine{
		FS: root,
		Run: func(_ context.Context, name string, args ...string) (string, error) {
			text, known := commands[strings.Join(append([]string{name}, args...), " ")]
			switch {
			case !known:
				return "", exec.ErrNotFound
			case strings.HasPrefix(text, "FAIL "):
				return text[5:], errors.New("exit status 1")
			}
			return text, nil
		},
		Open: func(string) error { return nil }, KVM: func(context.Context) error { return nil }, Memfd: func() error { return nil }, Landlock: func() (int, error) { return 6, nil },
		Space:  func(string) (Space, error) { return Space{10 << 30, 20 << 30, 1 << 20, 1 << 20}, nil },
		Config: func() error { return nil }, Scheduler: func(context.Context, string) error { return nil },
		Daemon: c, Program: []string{"causeway"}, Version: "1.0", RunDir: run, StateDir: "/var/lib/causeway", LogDir: "/var/log/causeway",
	}
}

// schedules has the scheduler answer so.
func schedules(err error) func(*Machine) {
	return func(m *Machine) { m.Scheduler = func(context.Context, string) error { return err } }
}

// kvmFails has KVM's guest end so.
func kvmFails(err error) func(*Machine) {
	return func(m *Machine) { m.KVM = func(context.Context) error { return fmt.Errorf("%w: as it did", err) } }
}

func runDir(t *testing.T) string {
	t.Helper()
	run, err := os.MkdirTemp("", "cw")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(run) })
	return run
}

func find(t *testing.T, results []Result, name string) Result {
	t.Helper()
	for _, r := range results {
		if r.Check == name {
			return r
		}
	}
	t.Fatalf("no check %q", name)
	return Result{}
}

func TestGoodHost(t *testing.T) {
	for _, r := range Examine(t.Context(), host(t, nil, nil)) {
		want := OK
		if r.Check == "NVIDIA driver" {
			want = Warning // it has none
		}
		if r.State != want || r.Found == "" || (r.Do != "") != (want != OK) {
			t.Errorf("%+v, want %s", r, want)
		}
	}
}

// Each row spoils one thing of a good host.
func TestChecks(t *testing.T) {
	const nv = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  %  Release Build  (dvs-builder@x)\nGCC version: 12\n"
	driverOf := func(v string) map[string]string {
		return map[string]string{"proc/driver/nvidia/version": strings.Replace(nv, "%", v, 1), "dev/nvidiactl": "x", "dev/nvidia-uvm": "x", "dev/nvidia0": "x"}
	}
	card := map[string]string{"sys/bus/pci/devices/0000:01:00.0/vendor": "0x10de", "sys/bus/pci/devices/0000:01:00.0/class": "0x030200"}
	type files = map[string]string
	cuda := files{"causeway gpus --local --json": `[{"backend":"cuda","name":"NVIDIA H200","driver":"580.1","mig":"off"}]`}
	reaching := func(how string) files {
		return files{"causeway gpus --local --json": `[{"backend":"cuda","name":"NVIDIA GH200","driver":"580.1","reach":"` + how + `"}]`}
	}
	const showUnit = "systemctl show causewayd.service --property=LoadState,UnitFileState,ActiveState,NeedDaemonReload"
	systemd := files{"run/systemd/system/x": "x"}
	unitIs := func(states string) files {
		s := strings.Split(states, " ")
		return files{showUnit: fmt.Sprintf("LoadState=%s\nUnitFileState=%s\nActiveState=%s\nNeedDaemonReload=%s\n", s[0], s[1], s[2], s[3])}
	}
	for _, c := range []struct {
		check    string
		state    State
		files    files
		programs files
		change   func(*Machine)
		want     string // in what was found or is to be done
	}{
		{"kernel", Failed, files{"proc/sys/kernel/osrelease": "4.19.0"}, nil, nil, "4.19.0"},
		{"kernel", Warning, files{"proc/sys/kernel/osrelease": "5.10.0-30-amd64"}, nil, nil, "Landlock"},
		{"kernel", Failed, files{"proc/sys/kernel/osrelease": ""}, nil, nil, "mount"},
		{"kernel config", Warning, files{"boot/config-6.12.9-amd64": "# CONFIG_MEMCG is not set\n"}, nil, nil, "CONFIG_MEMCG"},
		{"kernel config", OK, files{"boot/config-6.12.9-amd64": ""}, nil, nil, "not readable"},
		{"kernel config", OK, files{"boot/config-6.12.9-amd64": "", "proc/config.gz": zipped(t, good["boot/config-6.12.9-amd64"])}, nil, nil, "config.gz"},
		{"KVM", Warning, nil, nil, func(m *Machine) { m.Open = func(string) error { return fs.ErrNotExist } }, "modprobe"},
		{"KVM", Warning, nil, nil, func(m *Machine) { m.Open = func(string) error { return fs.ErrPermission } }, "usermod"},
		{"KVM", Warning, nil, nil, kvmFails(kvm.ErrSlow), "nested virtualization"},
		{"KVM", Warning, nil, nil, kvmFails(kvm.ErrStopped), "-accel tcg"},
		{"KVM", Warning, nil, nil, kvmFails(kvm.ErrHost), "arch-capabilities"},
		{"KVM", Warning, nil, nil, kvmFails(errors.New("KVM_CREATE_VM: busy")), "KVM_CREATE_VM"},
		{"KVM", Failed, nil, nil, func(m *Machine) { m.Open = func(string) error { return errors.New("no such device") } }, "dmesg"},
		{"memfd", Failed, nil, nil, func(m *Machine) { m.Memfd = func() error { return errors.New("not implemented") } }, "not implemented"},
		{"shared huge pages", Warning, files{"sys/kernel/mm/transparent_hugepage/shmem_enabled": "always advise [never]"}, nil, nil, "shmem_enabled"},
		{"shared huge pages", OK, files{"sys/kernel/mm/transparent_hugepage/shmem_enabled": "[never]", "proc/meminfo": "HugePages_Total: 8\nHugePages_Free: 3\n"}, nil, nil, "8 huge pages"},
		{"shared huge pages", Warning, files{"sys/kernel/mm/transparent_hugepage/shmem_enabled": ""}, nil, nil, "TRANSPARENT"},
		{"locked memory", Warning, files{"proc/self/limits": "Max locked memory         8388608              8388608              bytes\n"}, nil, nil, "LimitMEMLOCK"},
		{"locked memory", OK, files{"proc/self/limits": "Max locked memory         1073741824  1073741824 bytes\n"}, nil, nil, "1024 MiB"},
		{"memory maps", Warning, files{"proc/sys/vm/max_map_count": "1000"}, nil, nil, "sysctl"},
		{"control groups", Warning, files{"sys/fs/cgroup/cgroup.controllers": ""}, nil, nil, "unified"},
		{"control groups", Warning, files{"sys/fs/cgroup/cgroup.controllers": "cpu pids"}, nil, nil, "memory"},
		{"seccomp", Warning, files{"proc/sys/kernel/seccomp/actions_avail": ""}, nil, nil, "SECCOMP"},
		{"Landlock", Warning, nil, nil, func(m *Machine) { m.Landlock = func() (int, error) { return 0, errors.New("disabled") } }, "lsm="},
		{"Landlock", OK, nil, nil, func(m *Machine) { m.Landlock = func() (int, error) { return 2, nil } }, "version 2"},
		{"user namespaces", OK, nil, nil, func(m *Machine) { m.UID = 1000 }, "allowed"},
		{"user namespaces", Warning, files{"proc/sys/kernel/apparmor_restrict_unprivileged_userns": "1"}, nil, func(m *Machine) { m.UID = 1000 }, "kernel.apparmor_restrict"},
		{"QEMU", Failed, nil, files{"qemu-system-x86_64 --version": ""}, nil, "apt install"},
		{"QEMU", OK, nil, files{"qemu-system-x86_64 --version": "", "/usr/libexec/qemu-kvm --version": "QEMU emulator version 9.1.0", "/usr/libexec/qemu-kvm -device help": `"vhost-user-fs-pci"`}, nil, "/usr/libexec/qemu-kvm 9.1.0"},
		{"QEMU", Failed, nil, files{"qemu-system-x86_64 --version": "QEMU emulator version 4.2.1"}, nil, "too old"},
		{"QEMU", Warning, nil, files{"qemu-system-x86_64 --version": "QEMU emulator version 7.2.1"}, nil, "8.2"},
		{"QEMU", Failed, nil, files{"qemu-system-x86_64 -device help": "nothing"}, nil, "vhost-user-fs-pci"},
		{"QEMU", Failed, nil, files{"qemu-system-x86_64 --version": "FAIL Illegal instruction"}, nil, "Illegal"},
		{"libvirt", Warning, nil, files{"virsh -c qemu:///system version": ""}, nil, "by hand"},
		{"libvirt", Failed, nil, files{"virsh -c qemu:///system version": "FAIL error: failed to connect"}, nil, "systemctl start libvirtd"},
		{"libvirt", Failed, nil, files{"virsh -c qemu:///system version": "FAIL error: failed to connect to the hypervisor\nerror: Failed to connect socket to '/run/s'\n"}, nil, "does not answer: Failed to connect socket"},
		{"libvirt", Failed, nil, files{"virsh -c qemu:///system version": "FAIL Compiled against library: libvirt 11.3.0\n"}, nil, "does not answer: exit status 1"},
		{"libvirt", Warning, nil, files{"virsh -c qemu:///system version": "Using library: libvirt 6.0.0\n"}, nil, "6.0.0"},
		{"libvirt", Warning, nil, files{"virsh -c qemu:///system version": "Using library: libvirt 9.0.0\n"}, nil, "migrat"},
		{"systemd units", OK, nil, nil, nil, "by hand"},
		{"systemd units", OK, systemd, unitIs("loaded enabled active no"), nil, "enabled, active"},
		{"systemd units", Warning, systemd, unitIs("not-found  inactive no"), nil, "Install the causeway package"},
		{"systemd units", Failed, systemd, unitIs("masked masked inactive no"), nil, "systemctl unmask"},
		{"systemd units", Failed, systemd, unitIs("bad-setting enabled inactive no"), nil, "systemctl status"},
		{"systemd units", Failed, systemd, unitIs("loaded enabled failed no"), nil, "journalctl -u causewayd"},
		{"systemd units", Warning, systemd, unitIs("loaded enabled active yes"), nil, "daemon-reload"},
		{"systemd units", Warning, systemd, unitIs("loaded disabled active no"), nil, "systemctl enable causewayd"},
		{"systemd units", Warning, systemd, files{showUnit: unitIs("loaded enabled active no")[showUnit],
			"systemctl list-units --state=failed --plain --no-legend causeway*": "causeway-scheduler.service loaded failed failed x\n"}, nil, "journalctl -u causeway-scheduler.service"},
		{"systemd units", Warning, systemd, files{showUnit: "FAIL Failed to connect to bus"}, nil, "connect to bus"},
		{"libvirt hook", Warning, files{hookFile[1:]: ""}, nil, nil, "attach works"},
		{"libvirt hook", OK, files{hookFile[1:]: "", "etc/libvirt/hooks/qemu": "exec causeway hook qemu \"$@\""}, nil, nil, "calls it"},
		{"libvirt hook", Failed, files{hookFile[1:]: "mode 0"}, nil, nil, "chmod"},
		{"AppArmor", OK, files{"sys/module/apparmor/parameters/enabled": "N"}, nil, nil, "not in use"},
		{"AppArmor", Failed, files{appArmorRule[1:]: ""}, nil, nil, "rw,"},
		{"AppArmor", Failed, files{appArmorBase[1:]: "old"}, nil, nil, appArmorLocal},
		{"AppArmor", OK, files{appArmorRule[1:]: "", appArmorLocal[1:]: "/run/causeway/** rw,"}, nil, nil, "local"},
		{"SELinux", OK, files{"sys/fs/selinux/enforce": "0"}, nil, nil, "permissive"},
		{"SELinux", OK, files{"sys/fs/selinux/enforce": "1"}, files{"semodule -l": "base\ncauseway\n"}, nil, "module"},
		{"SELinux", Failed, files{"sys/fs/selinux/enforce": "1"}, files{"semodule -l": "base\n"}, nil, "semodule -i"},
		{"SELinux", Warning, files{"sys/fs/selinux/enforce": "1"}, nil, nil, "cannot be told"},
		{"NVIDIA driver", Failed, card, nil, nil, "apt install"},
		{"NVIDIA driver", OK, driverOf("580.159.04"), nil, nil, "580.159.04"},
		{"NVIDIA driver", Warning, driverOf("550.54"), nil, nil, "older"},
		{"NVIDIA driver", Warning, driverOf("600.1"), nil, nil, "newer"},
		{"NVIDIA driver", Failed, driverOf("470.1"), nil, nil, "too old"},
		{"device nodes", OK, driverOf("580.1"), nil, nil, "nvidiactl"},
		{"device nodes", Failed, files{"proc/driver/nvidia/version": nv, "dev/nvidiactl": "x"}, nil, nil, "nvidia-uvm"},
		{"device nodes", Failed, files{"proc/driver/nvidia/version": nv, "dev/nvidiactl": "x", "dev/nvidia-uvm": "x"}, nil, nil, "/dev/nvidia0"},
		{"GPUs", Failed, driverOf("580.1"), nil, nil, "libcuda"},
		{"GPUs", OK, driverOf("580.1"), cuda, nil, "NVIDIA H200"},
		{"GPUs", Warning, driverOf("580.1"), files{"causeway gpus --local --json": `[{"backend":"cuda","name":"NVIDIA H200"}]`}, nil, "libnvidia-ml"},
		{"GPUs", Failed, nil, files{"causeway gpus --local --json": "FAIL cuInit: 999"}, nil, "999"},
		{"GPUs", Failed, nil, files{"causeway gpus --local --json": "hello"}, nil, "hello"},
		{"MIG", OK, nil, files{"causeway gpus --local --json": `[{"backend":"cuda","index":2,"mig":"on"}]`}, nil, "GPU 2"},
		{"kernels' reach", OK, driverOf("580.1"), cuda, nil, "allocated"},
		{"kernels' reach", Failed, driverOf("580.1"), reaching("HMM"), nil, "uvm_disable_hmm=1"},
		{"kernels' reach", Failed, driverOf("580.1"), reaching("ATS"), nil, "uvm_ats_mode=0"},
		{"kernels' reach", Warning, driverOf("580.1"), reaching("HMM"), func(m *Machine) { m.ReachWorker = true }, "permits"},
		{"configuration", Failed, nil, nil, func(m *Machine) { m.Config = func() error { return errors.New("line 3: memroy") } }, "line 3"},
		{"configuration", Warning, nil, nil, func(m *Machine) { m.Config = func() error { return fs.ErrPermission } }, "as root"},
		{"configuration", OK, nil, nil, func(m *Machine) { m.Config = func() error { return fs.ErrNotExist } }, "defaults"},
		{"run directory", Warning, nil, nil, func(m *Machine) { m.RunDir = "/none" }, "tmpfiles"},
		{"run directory", Failed, nil, nil, chmod(0o777), "pose"},
		{"run directory", Failed, nil, nil, chmod(0o700), "QEMU"},
		{"disk space", Failed, nil, nil, space1(Space{Free: 1 << 20, Total: 1 << 40}), "too little"},
		{"disk space", Warning, nil, nil, space1(Space{Free: 100 << 20, Total: 1 << 40}), "too little"},
		{"disk space", OK, nil, nil, space1(Space{Free: 100 << 20, Total: 110 << 20}), "100 MiB"},
		{"disk space", Failed, nil, nil, space1(Space{Free: 1 << 40, Total: 1 << 40, Inodes: 3, Nodes: 1000}), "3 files"},
		{"causewayd", Warning, nil, nil, func(m *Machine) { m.Version = "2.0" }, "restart"},
		{"causewayd", Failed, nil, nil, nobody, "enable --now"},
		{"scheduler", Warning, files{"proc/net/unix": "Num\n"}, nil, nil, "caps"},
		{"scheduler", OK, files{"proc/net/unix": "Num\n"}, nil, nobody, "starts it"},
		{"scheduler", Warning, nil, nil, schedules(fmt.Errorf("status: %w within 2s", schedule.ErrSilent)), "kill -CONT"},
		{"scheduler", OK, nil, nil, schedules(fs.ErrPermission), "listens"},
		{"sockets", Warning, files{"RUN/vm1/gpu0.ctl": "x", "RUN/vm1/gpu0.sock": "x",
			"proc/net/unix": "Num\n0000: 00000002 00000000 00010000 0001 01 123 RUN/vm1/gpu0.sock\n0000: 00000003 00000000 00000000 0001 03 124 RUN/vm1/gpu0.ctl\n"}, nil, nil, "gpu0.ctl`"},
	} {
		t.Run(c.check+" "+c.want, func(t *testing.T) {
			m := host(t, c.files, c.programs)
			if c.change != nil {
				c.change(m)
			}
			r := find(t, Examine(t.Context(), m), c.check)
			if r.State != c.state || !strings.Contains(r.Found+r.Do, c.want) || (r.State != OK) != (r.Do != "") {
				t.Errorf("%+v, want %s with %q", r, c.state, c.want)
			}
		})
	}
}

func zipped(t *testing.T, s string) string {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	if _, err := z.Write([]byte(s)); err != nil || z.Close() != nil {
		t.Fatal(err)
	}
	return b.String()
}

func chmod(mode fs.FileMode) func(*Machine) {
	return func(m *Machine) { m.FS.(fstest.MapFS)[m.RunDir[1:]] = &fstest.MapFile{Mode: fs.ModeDir | mode} }
}

func space1(s Space) func(*Machine) {
	return func(m *Machine) { m.Space = func(string) (Space, error) { return s, nil } }
}

func nobody(m *Machine) { m.Daemon = api.NewClient(filepath.Join(m.RunDir, "nobody")) }

func TestVGPUs(t *testing.T) {
	for want, change := range map[string]func(*apitest.Fake){
		"lost: vm1/gpu0":               func(f *apitest.Fake) { f.VGPUs[0].State = api.Lost },
		"no answer from vm1/gpu0":      func(f *apitest.Fake) { f.VGPUs[0].Status = nil },
		"GPU GPU-1 is drained: hot":    func(f *apitest.Fake) { f.GPUs[0].Drained, f.GPUs[0].Why = true, "hot" },
		"do not hold: vm1/gpu0 (gone)": func(f *apitest.Fake) { f.VGPUs[0].Status.Unheld = "gone" },
		"2; without a limit of memory, so that neighbours may find none: vm1/gpu0": func(f *apitest.Fake) {
			f.VGPUs = append(f.VGPUs, api.VGPU{Spec: api.Spec{VM: "vm2", Name: "gpu0", Limits: api.Limits{Memory: 1 << 30}}, Status: &api.Status{}})
		},
		"1": func(*apitest.Fake) {},
	} {
		run := runDir(t)
		f := &apitest.Fake{GPUs: []api.GPU{{ID: "GPU-1"}}, VGPUs: []api.VGPU{{Spec: api.Spec{VM: "vm1", Name: "gpu0"}, Status: &api.Status{}}}}
		f.Serve(t, run)
		f.Change(change)
		m := host(t, nil, nil)
		m.Daemon = api.NewClient(api.Socket(run))
		r := find(t, Examine(t.Context(), m), "vGPUs")
		m.Daemon.Close()
		if !strings.Contains(r.Found, want) || (want == "1") != (r.State == OK) {
			t.Errorf("%+v, want %q", r, want)
		}
	}
}

func TestWrite(t *testing.T) {
	results := []Result{{"a", OK, "well", ""}, {"b", Warning, "so\nso", "Do it."}, {"c", Failed, "bad", "Mend it."}}
	var b bytes.Buffer
	if err := Write(&b, results, false); err != nil {
		t.Fatal(err)
	}
	want := "warning  b                so; so\n                          > Do it.\nfailed   c                bad\n                          > Mend it.\n3 checks: 1 ok, 1 warnings, 1 failed\n"
	if b.String() != want {
		t.Errorf("%q, want %q", b.String(), want)
	}
	for n, want := range map[int]State{1: OK, 2: Warning, 3: Failed} {
		if got := Worst(results[:n]); got != want {
			t.Errorf("worst of %d: %s", n, got)
		}
	}
}

// The real machine answers every check in time, whatever it is.
func TestReal(t *testing.T) {
	m := Real()
	run := runDir(t)
	m.RunDir, m.StateDir, m.LogDir, m.Version, m.Config = run, run, run, "1", func() error { return nil }
	m.Program = []string{"echo", "[]"}
	m.Daemon = api.NewClient(api.Socket(run))
	defer m.Daemon.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for _, r := range Examine(ctx, m) {
		if r.Check == "" || r.State == "" || r.Found == "" {
			t.Errorf("%+v", r)
		}
	}
}
