package sandbox

import (
	"os"
	"path/filepath"
	"strings"
)

// access is what a rule grants below a path.
type access uint8

const (
	read     access = 1 << iota // files and folders
	write                       // to what exists
	execute                     // as a program
	truncate                    // what exists: O_TRUNC asks for it even where it means nothing
	create                      // make, remove
	ioctl                       // of device nodes
)

// rule grants access to a path and to everything below it. A path that does not exist grants
// nothing.
type rule struct {
	path string
	may  access
}

// rules are the files that a worker may touch. Descriptors that its parent hands it are not
// concerned. self is its folder in /proc, or all of /proc where that shows no other users'
// processes.
func (p *Policy) rules(self string) []rule {
	var out []rule
	grant := func(may access, paths ...string) {
		for _, path := range paths {
			out = append(out, rule{path, may})
		}
	}
	// Programs' libraries, and what the loader reads.
	grant(read, "/usr", "/lib", "/lib64", "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/ld.so.preload", "/etc/localtime")
	grant(read, p.Read...)
	grant(read|write|truncate|create, p.Write...)
	// A cold start executes this program anew (before Seal); the loader is a program too.
	grant(read|execute, "/proc/self/exe")
	grant(read|execute, interpreters...)
	grant(read|write, "/dev/null", "/dev/zero", "/dev/full")
	grant(read, "/dev/urandom", "/dev/random")
	grant(read, self, "/proc/cpuinfo", "/proc/meminfo", "/proc/stat", "/proc/sys/kernel", "/proc/sys/vm")
	// libcuda names the threads that it makes by opening their comm with O_TRUNC, and takes a
	// refusal for a failed start.
	if self != "/proc" {
		grant(write|truncate, self+"/task")
	} else if p.UIDBase != 0 { // what is not a worker's own there, its user may not write
		grant(write|truncate, self)
	}
	grant(read, "/sys/devices/system", "/sys/fs/cgroup", "/sys/kernel/mm", "/etc/machine-id")
	if p.Fabric { // libibverbs finds its devices in sysfs, and a provider for each
		grant(read|write|ioctl, "/dev/infiniband")
		grant(read, "/sys/class/infiniband", "/sys/class/infiniband_verbs", "/sys/devices", "/etc/libibverbs.d")
	}
	if !p.Real {
		return out
	}
	grant(read|write|ioctl, p.Nodes...)
	grant(read, "/proc/driver/nvidia", "/proc/driver/nvidia-caps", "/proc/driver/nvidia-uvm", "/proc/driver/nvidia-nvswitch", "/proc/modules", "/proc/devices",
		"/proc/version", "/proc/filesystems", "/proc/mounts", "/sys/bus/pci", "/sys/module", "/sys/class", "/sys/devices", "/etc/nvidia")
	if p.tight() {
		return out
	}
	// Not known to be needed, and harmless to another VM: /dev/shm is this virtual GPU's own where
	// there is a mount namespace.
	if p.UIDBase != 0 { // a user of its own cannot read what others must not
		grant(read, "/etc")
	}
	grant(read, "/sys", "/proc/uptime", "/proc/loadavg", "/proc/zoneinfo", "/proc/vmstat", "/opt", "/dev/dxg")
	grant(read|write|truncate|create, "/dev/shm")
	return out
}

// interpreters are the loaders of dynamically linked programs (their ABIs fix the names).
var interpreters = []string{"/lib64/ld-linux-x86-64.so.2", "/lib/ld-linux-aarch64.so.1", "/lib/ld-musl-x86_64.so.1"}

// allows reports whether rules grant all of may for a path, which is absolute and without symbolic
// links.
func allows(rules []rule, path string, may access) bool {
	var got access
	for _, r := range rules {
		root, err := filepath.EvalSymlinks(r.path)
		if err != nil {
			continue
		}
		if root == path || strings.HasPrefix(path, strings.TrimSuffix(root, "/")+"/") {
			got |= r.may
		}
	}
	return got&may == may
}

// libraryFolders are the folders that an environment adds to the loader's.
func libraryFolders(env []string) []string {
	var out []string
	for _, kv := range env {
		list, ok := strings.CutPrefix(kv, "LD_LIBRARY_PATH=")
		if !ok {
			continue
		}
		for _, d := range filepath.SplitList(list) {
			if abs, err := filepath.Abs(d); d != "" && err == nil {
				if st, err := os.Stat(abs); err == nil && st.IsDir() && abs != "/" {
					out = append(out, abs)
				}
			}
		}
	}
	return out
}
