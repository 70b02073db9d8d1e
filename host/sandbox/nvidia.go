package sandbox

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Nodes are the device nodes for a real GPU's driver: those of all GPUs, and of the ones that visible names by UUID only these.
// root is "/" but for tests. A MIG slice (MIG-...) does not say here which GPU it is of: all GPUs' nodes then, which the
// driver's capability nodes guard.
func Nodes(root string, visible []string) []string {
	at := func(p string) string { return filepath.Join(root, p) }
	var out []string
	for _, pattern := range []string{"dev/nvidiactl", "dev/nvidia-uvm", "dev/nvidia-uvm-tools", "dev/nvidia-modeset", "dev/nvidia-nvlink", "dev/nvidia-caps/nvidia-cap*", "dev/nvidia-caps-imex-channels/channel*", "dev/dxg"} {
		found, _ := filepath.Glob(at(pattern)) // the patterns are well-formed
		out = append(out, found...)
	}
	if minors, ok := minorsOf(at("proc/driver/nvidia/gpus"), visible); ok {
		for _, n := range minors {
			out = append(out, at(fmt.Sprintf("dev/nvidia%s", n)))
		}
		return out
	}
	all, _ := filepath.Glob(at("dev/nvidia[0-9]*"))
	return append(out, all...)
}

// minorsOf finds the device minors of GPUs by what the driver tells in /proc; false unless all are found.
func minorsOf(gpus string, visible []string) ([]string, bool) {
	if len(visible) == 0 {
		return nil, false
	}
	list, _ := filepath.Glob(filepath.Join(gpus, "*", "information"))
	var minors []string
	for _, file := range list {
		b, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		info := information(b)
		if slices.Contains(visible, info["GPU UUID"]) && info["Device Minor"] != "" {
			minors = append(minors, info["Device Minor"])
		}
	}
	return minors, len(minors) == len(visible)
}

// information reads lines of "name: value".
func information(b []byte) map[string]string {
	m := map[string]string{}
	for sc := bufio.NewScanner(bytes.NewReader(b)); sc.Scan(); {
		if k, v, ok := strings.Cut(sc.Text(), ":"); ok {
			m[strings.TrimSpace(k)] = strings.TrimSpace(v)
		}
	}
	return m
}

// groupsOf are the groups without which nodes cannot be opened by another user than root.
func groupsOf(nodes []string) []int {
	var out []int
	for _, n := range nodes {
		var st unix.Stat_t
		if unix.Stat(n, &st) != nil || st.Mode&0o006 == 0o006 || st.Mode&0o060 != 0o060 {
			continue
		}
		if g := int(st.Gid); g != 0 && !slices.Contains(out, g) {
			out = append(out, g)
		}
	}
	return out
}

// NewPolicy is the policy of workers that run a real GPU's driver, restricted to visible if that is not empty, or the software
// GPU. env is their environment.
func NewPolicy(mode Mode, real bool, visible, env []string) Policy {
	p := Policy{Mode: mode, Real: real, UIDBase: UIDBase, Read: libraryFolders(env)}
	if real {
		p.Nodes = Nodes("/", visible)
		p.Groups = groupsOf(p.Nodes)
	}
	return p
}

// ShareCache lets workers use this user's cache of compiled kernels, as the user's own programs do: what they leave there those run. It is
// not for workers of guests, nor for those that root starts as other users.
func (p *Policy) ShareCache() {
	if home, err := os.UserHomeDir(); err == nil && p.Real && os.Getuid() != 0 {
		p.Write = append(p.Write, filepath.Join(home, ".nv"))
	}
}
