package doctor

import (
	"context"
	"errors"
	"os/exec"
	"regexp"
	"strings"
)

// qemus are names that distributions give to QEMU.
var qemus = []string{"qemu-system-x86_64", "/usr/libexec/qemu-kvm", "qemu-kvm"}

var qemuVersion = regexp.MustCompile(`version (\d+\.\d+[.\d]*)`)

func qemu(ctx context.Context, m *Machine) Result {
	const install = "Install it: `apt install qemu-system-x86`, or `dnf install qemu-kvm`."
	for _, name := range qemus {
		text, err := m.Run(ctx, name, "--version")
		if errors.Is(err, exec.ErrNotFound) {
			continue
		}
		found := qemuVersion.FindStringSubmatch(text)
		if err != nil || found == nil {
			return failed("Run it: `"+name+" --version`.", "%s does not tell its version: %v %s", name, err, firstLine(text))
		}
		major, minor := version(found[1])
		if !atLeast(major, minor, 5, 0) {
			return failed("Install QEMU 5.0 or newer; 8.2 or newer for migration.", "%s is %s, too old", name, found[1])
		}
		devices, err := m.Run(ctx, name, "-device", "help")
		switch {
		case err != nil || !strings.Contains(devices, `"vhost-user-fs-pci"`):
			return failed("Install the module that has it (on Fedora and its kin `dnf install qemu-kvm-device-virtiofs` or qemu-kvm-core), or a QEMU built with vhost-user.",
				"%s %s has no vhost-user-fs-pci device", name, found[1])
		case !atLeast(major, minor, 8, 2):
			return warning("For migration and snapshots, install QEMU 8.2 or newer (Debian: from backports).", "%s %s works, but cannot save the state of a vGPU", name, found[1])
		}
		return ok("%s %s with vhost-user-fs-pci", name, found[1])
	}
	if m.hasVMs(ctx) {
		return failed(install, "no QEMU: looked for %s", strings.Join(qemus, ", "))
	}
	return warning(install+" Nothing, if this host's GPUs are for programs (containers, Slurm) or for other hosts.", "no QEMU, so that no VM has a vGPU: looked for %s", strings.Join(qemus, ", "))
}

var libvirtVersion = regexp.MustCompile(`Using library: libvirt (\d+\.\d+[.\d]*)`)

// virsh asks libvirt for its version. there is false if it is not installed.
func virsh(ctx context.Context, m *Machine) (text string, there bool, err error) {
	text, err = m.Run(ctx, "virsh", "-c", "qemu:///system", "version")
	return text, !errors.Is(err, exec.ErrNotFound), err
}

// virshReason is why virsh failed: its last error, as the first says only that there is no
// connection. What it prints of itself before it is ended for taking too long is no reason.
func virshReason(ctx context.Context, text string, err error) string {
	reason := err.Error()
	if ctx.Err() != nil {
		reason = "virsh has not ended in time (" + reason + ")"
	}
	for line := range strings.Lines(text) {
		if said, found := strings.CutPrefix(strings.TrimSpace(line), "error: "); found {
			reason = said
		}
	}
	return firstLine(reason)
}

func libvirt(ctx context.Context, m *Machine) Result {
	text, there, err := virsh(ctx, m)
	const install = "`apt install libvirt-daemon-system libvirt-clients`, unless you start QEMU by hand: then `causeway create` and `causeway attach --qmp` serve."
	switch {
	case !there:
		return warning(install, "not installed")
	case err != nil && !m.hasLibvirt():
		return warning(install, "its client alone is installed")
	}
	if err != nil {
		return failed("`systemctl start libvirtd` (or virtqemud.socket), and run this as root or a member of the group libvirt.", "qemu:///system does not answer: %s", virshReason(ctx, text, err))
	}
	found := libvirtVersion.FindStringSubmatch(text)
	if found == nil {
		return warning("Run it: `virsh -c qemu:///system version`.", "the version is not told: %s", firstLine(text))
	}
	major, minor := version(found[1])
	switch {
	case !atLeast(major, minor, 8, 0):
		return warning("Install a newer libvirt if it refuses the <source socket='...'/> of a <filesystem>.", "libvirt %s is older than those that Causeway was tried with (11.3)", found[1])
	case !atLeast(major, minor, 11, 3):
		return warning("For migration, install libvirt 11.3 or newer (Debian: from backports).", "libvirt %s works, but does not migrate VMs with virtiofs devices", found[1])
	}
	return ok("libvirt %s answers", found[1])
}

// hookFile is where packages put Causeway's hook.
const hookFile = "/etc/libvirt/hooks/qemu.d/causeway"

func hook(ctx context.Context, m *Machine) Result {
	if _, there, err := virsh(ctx, m); !there || err != nil && !m.hasLibvirt() {
		return ok("not needed without libvirt")
	}
	st, err := m.stat(hookFile)
	if err != nil {
		if text, there := m.text("/etc/libvirt/hooks/qemu"); there && strings.Contains(text, "causeway hook") {
			return ok("/etc/libvirt/hooks/qemu calls it")
		}
		return warning("Install the causeway package, or write a script `exec causeway hook qemu \"$@\"` there, make it executable, and restart libvirtd.",
			"%s is missing: vGPUs in domains' metadata are not made ready; causeway attach works", hookFile)
	}
	if st.Mode()&0o111 == 0 {
		return failed("`chmod 755 "+hookFile+"`, and restart libvirtd.", "%s is not executable: libvirt passes it over", hookFile)
	}
	return ok("%s is there", hookFile)
}

// Places of the rule that lets confined QEMUs connect.
const (
	appArmorRule  = "/etc/apparmor.d/abstractions/libvirt-qemu.d/causeway"
	appArmorLocal = "/etc/apparmor.d/local/abstractions/libvirt-qemu"
	appArmorBase  = "/etc/apparmor.d/abstractions/libvirt-qemu"
)

func appArmor(_ context.Context, m *Machine) Result {
	if on, _ := m.text("/sys/module/apparmor/parameters/enabled"); on != "Y" {
		return ok("not in use")
	}
	base, there := m.text(appArmorBase)
	if !there {
		return ok("in use, but libvirt's rules are not installed")
	}
	if local, _ := m.text(appArmorLocal); strings.Contains(local, "causeway") {
		return ok("in use; %s has the rule", appArmorLocal)
	}
	if !m.exists(appArmorRule) {
		return failed("Write `  /run/causeway/*/*.sock rw,` into "+appArmorRule+" (or install the causeway package); VMs take it at their next start.",
			"in use, and no rule lets QEMU connect to vGPUs")
	}
	if !strings.Contains(base, "libvirt-qemu.d") {
		return failed("Copy its rule into "+appArmorLocal+".", "%s is there, but this libvirt does not include it", appArmorRule)
	}
	return ok("in use; %s is there", appArmorRule)
}

func seLinux(ctx context.Context, m *Machine) Result {
	mode, there := m.text("/sys/fs/selinux/enforce")
	switch {
	case !there:
		return ok("not in use")
	case mode != "1":
		return ok("permissive")
	}
	modules, err := m.Run(ctx, "semodule", "-l")
	if err != nil {
		return warning("As root: `semodule -l | grep causeway`; without it `semodule -i /usr/share/causeway/selinux/causeway.pp`.", "enforcing; whether Causeway's module is loaded cannot be told (%s)", firstLine(modules))
	}
	if !contains(strings.Fields(modules), "causeway") {
		return failed("`semodule -i /usr/share/causeway/selinux/causeway.pp && restorecon -R /run/causeway`.", "enforcing, and Causeway's module is not loaded: QEMU may not connect")
	}
	return ok("enforcing, with Causeway's module")
}

func firstLine(s string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(s), "\n")
	if len(line) > 200 {
		line = line[:200]
	}
	return line
}
