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

// Nodes are the device nodes that a real GPU's driver computes with: its control nodes, those of
// all GPUs, or of the ones that visible names by UUID only these, and the capabilities of their MIG
// slices. Not among them: nodes for displays, profilers, links between machines, and for dividing
// GPUs. root is "/" but for tests.
func Nodes(root string, visible []string) []string {
	at := func(p string) string { return filepath.Join(root, p) }
	var out []string
	for _, p := range []string{"dev/nvidiactl", "dev/nvidia-uvm", "dev/dxg"} {
		if _, err := os.Lstat(at(p)); err == nil {
			out = append(out, at(p))
		}
	}
	whole, slice := visible, sliceID{"*", "*"}
	if len(visible) == 1 {
		if gpu, id, ok := parseSlice(visible[0]); ok {
			whole, slice = []string{gpu}, id
		}
	}
	minors, ok := minorsOf(at("proc/driver/nvidia/gpus"), whole)
	if !ok {
		all, _ := filepath.Glob(at("dev/nvidia[0-9]*"))
		return append(append(out, all...), slice.nodes(root, "*")...)
	}
	for _, n := range minors {
		out = append(out, at(fmt.Sprintf("dev/nvidia%s", n)))
		out = append(out, slice.nodes(root, n)...)
	}
	return out
}

// sliceID is a MIG slice of a GPU: a GPU instance, and a compute instance in it. "*": any.
type sliceID struct{ gpu, compute string }

// parseSlice reads the older form of a slice's name, MIG-GPU-UUID/GPU instance/compute instance,
// which says what it is a slice of. The newer one, MIG-UUID, does not: the nodes of all GPUs and of
// all slices then, which the driver's own permissions guard.
func parseSlice(name string) (gpu string, id sliceID, ok bool) {
	rest, ok := strings.CutPrefix(name, "MIG-GPU-")
	part := strings.Split(rest, "/")
	if !ok || len(part) != 3 || !isNumber(part[1]) || !isNumber(part[2]) {
		return "", id, false
	}
	return "GPU-" + part[0], sliceID{part[1], part[2]}, true
}

func isNumber(s string) bool { return s != "" && strings.Trim(s, "0123456789") == "" }

// nodes are the capability nodes of a slice of the GPU with a device minor, by what the driver
// tells in /proc.
func (s sliceID) nodes(root, minor string) []string {
	instance := filepath.Join(root, "proc/driver/nvidia/capabilities/gpu"+minor, "mig/gi"+s.gpu)
	var out []string
	for _, pattern := range []string{instance + "/access", instance + "/ci" + s.compute + "/access"} {
		files, _ := filepath.Glob(pattern) // minors and instances are numbers
		for _, file := range files {
			b, err := os.ReadFile(file)
			if n := information(b)["DeviceFileMinor"]; err == nil && isNumber(n) {
				out = append(out, filepath.Join(root, "dev/nvidia-caps/nvidia-cap"+n))
			}
		}
	}
	return out
}

// minorsOf finds the device minors of GPUs by what the driver tells in /proc; false unless all are
// found.
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

// NewPolicy is the policy of workers that run a real GPU's driver, restricted to visible if that is
// not empty, or the software GPU. env is their environment.
func NewPolicy(mode Mode, real bool, visible, env []string) Policy {
	p := Policy{Mode: mode, Real: real, UIDBase: UIDBase, Read: libraryFolders(env)}
	if real {
		p.Nodes, p.Driver = Nodes("/", visible), driverBranch("/")
		p.Groups = groupsOf(p.Nodes)
	}
	return p
}

// ShareCache lets workers use this user's cache of compiled kernels, as the user's own programs do:
// what they leave there those run. It is not for workers of guests, nor for those that root starts
// as other users.
func (p *Policy) ShareCache() {
	if home, err := os.UserHomeDir(); err == nil && p.Real && os.Getuid() != 0 {
		p.Write = append(p.Write, filepath.Join(home, ".nv"))
	}
}
