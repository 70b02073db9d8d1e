package cgroup

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const asChild = "CAUSEWAY_TEST_CGROUP"

// TestMain: the test's process must not move, so a child does.
func TestMain(m *testing.M) {
	if path := os.Getenv(asChild); path != "" {
		if err := child(path); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// child enters a group, starts processes until the limit stops it, and leaves.
func child(path string) error {
	g, err := Make(Root, path, Limits{CPUWeight: 50, CPU: 150, Processes: 64})
	if g == nil {
		return err
	}
	fmt.Println("partly:", err)
	pids, err := g.Processes()
	if err != nil || !slices.Contains(pids, os.Getpid()) {
		return fmt.Errorf("processes %v, %w", pids, err)
	}
	var started []*exec.Cmd
	var limit error
	for range 100 {
		cmd := exec.Command("/bin/sleep", "60")
		if limit = cmd.Start(); limit != nil {
			break
		}
		started = append(started, cmd)
	}
	for _, c := range started {
		_ = c.Process.Kill()
		_ = c.Wait()
	}
	fmt.Println("started", len(started), "then", limit)
	if limit == nil {
		return fmt.Errorf("no limit")
	}
	return g.Close()
}

func TestMake(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root makes groups where nobody delegated one")
	}
	base := fmt.Sprintf("causeway-test-%d", os.Getpid())
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), asChild+"="+base+"/vm1/gpu0")
	out, err := cmd.CombinedOutput()
	switch {
	case err == nil:
	case strings.Contains(string(out), "no controller"), strings.Contains(string(out), "read-only"), strings.Contains(string(out), "permission"):
		t.Skipf("this machine lets nobody make groups: %s", out)
	default:
		t.Fatalf("%v: %s", err, out)
	}
	t.Logf("%s", out)
	if found, _ := filepath.Glob(filepath.Join(Root, "*", base)); len(found) > 0 {
		t.Errorf("%q are left", found)
	}
}

// tree makes files as a kernel would show them.
func tree(t *testing.T, files ...string) string {
	t.Helper()
	root := t.TempDir()
	for _, f := range files {
		f = filepath.Join(root, f)
		if err := os.MkdirAll(filepath.Dir(f), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(f, nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

var all = Limits{CPUWeight: 200, CPU: 250, Memory: 1 << 30, High: 1 << 29, Processes: 500}

func TestVersions(t *testing.T) {
	const group = "causeway/vm1/gpu0"
	two := []string{"cgroup.controllers"}
	for _, d := range []string{"", "causeway/", "causeway/vm1/"} {
		two = append(two, d+"cgroup.subtree_control", d+"cgroup.procs")
	}
	for _, f := range []string{"cgroup.procs", "cpu.weight", "cpu.max", "memory.max", "memory.swap.max", "memory.high", "pids.max"} {
		two = append(two, group+"/"+f)
	}
	var one []string
	for _, c := range []string{"cpu", "memory", "pids"} {
		one = append(one, c+"/cgroup.procs", c+"/"+group+"/cgroup.procs")
	}
	one = append(one, "cpu/"+group+"/cpu.shares", "cpu/"+group+"/cpu.cfs_quota_us", "memory/"+group+"/memory.limit_in_bytes", "pids/"+group+"/pids.max")
	for _, c := range []struct {
		name  string
		files []string
		want  map[string]string
	}{
		{"2", two, map[string]string{
			group + "/cpu.weight": "200", group + "/cpu.max": "250000 100000", group + "/memory.max": "1073741824", group + "/memory.swap.max": "0", group + "/memory.high": "536870912",
			group + "/pids.max": "500", group + "/cgroup.procs": "0",
		}},
		{"1", one, map[string]string{
			"cpu/" + group + "/cpu.shares": "2048", "cpu/" + group + "/cpu.cfs_quota_us": "250000", "memory/" + group + "/memory.limit_in_bytes": "1073741824",
			"pids/" + group + "/pids.max": "500", "cpu/" + group + "/cgroup.procs": "0", "memory/" + group + "/cgroup.procs": "0",
		}},
	} {
		root := tree(t, c.files...)
		g, err := Make(root, group, all)
		if err != nil || g == nil {
			t.Errorf("version %s: %v", c.name, err)
			continue
		}
		for f, want := range c.want {
			if b, err := os.ReadFile(filepath.Join(root, f)); err != nil || string(b) != want {
				t.Errorf("version %s: %s is %q, want %q (%v)", c.name, f, b, want, err)
			}
		}
	}
	// A controller that is missing is said, the others hold.
	root := tree(t, slices.DeleteFunc(one, func(f string) bool { return strings.HasPrefix(f, "memory") })...)
	if g, err := Make(root, group, all); g == nil || err == nil || !strings.Contains(err.Error(), "memory") || len(g.Folders()) != 2 {
		t.Errorf("without memory: %v, %v", g.Folders(), err)
	}
	if g, err := Make(t.TempDir(), group, all); g != nil || err == nil {
		t.Error("a group where none can be")
	}
}

func TestBadInput(t *testing.T) {
	for _, path := range []string{"", ".", "/abs", "../up", "a/../../b"} {
		if g, err := Make(t.TempDir(), path, Limits{}); g != nil || err == nil {
			t.Errorf("path %q is taken", path)
		}
	}
	for _, l := range []Limits{{CPUWeight: 10001}, {Memory: 1}, {Processes: 3}} {
		if l.Check() == nil {
			t.Errorf("%+v is taken", l)
		}
	}
}
