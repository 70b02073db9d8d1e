package libvirt

import (
	"os"
	"path/filepath"
	"testing"
)

func TestNode(t *testing.T) {
	sys := t.TempDir()
	for node, cpus := range map[string]string{"node0": "0-3,8-11\n", "node1": "4-7,12-15\n", "node2": "\n"} {
		dir := filepath.Join(sys, "devices/system/node", node)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "cpulist"), []byte(cpus), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for name, c := range map[string]struct {
		xml  string
		want int // -1: unknown
	}{
		"nothing":                    {"", -1},
		"memory":                     {"<numatune><memory mode='strict' nodeset='1'/></numatune>", 1},
		"memory on two":              {"<numatune><memory nodeset='0-1'/></numatune>", -1},
		"all but one":                {"<numatune><memory nodeset='0-1,^0'/></numatune>", 1},
		"cells on one":               {"<numatune><memory nodeset='1'/><memnode cellid='0' nodeset='1'/></numatune>", 1},
		"cells apart":                {"<numatune><memnode cellid='0' nodeset='0'/><memnode cellid='1' nodeset='1'/></numatune>", -1},
		"automatic":                  {"<numatune><memory mode='strict' placement='auto'/></numatune>", -1},
		"memory before CPUs":         {"<vcpu cpuset='0-3'>4</vcpu><numatune><memory nodeset='1'/></numatune>", 1},
		"CPUs":                       {"<vcpu placement='static' cpuset='4-7,12'>4</vcpu>", 1},
		"CPUs of two":                {"<vcpu cpuset='3-4'>2</vcpu>", -1},
		"pinned one by one":          {"<vcpu>2</vcpu><cputune><vcpupin vcpu='0' cpuset='8'/><vcpupin vcpu='1' cpuset='9'/></cputune>", 0},
		"one is not pinned":          {"<vcpu>2</vcpu><cputune><vcpupin vcpu='0' cpuset='8'/></cputune>", -1},
		"CPUs that the host has not": {"<vcpu cpuset='99'>1</vcpu>", -1},
		"no list":                    {"<vcpu cpuset='1,x'>1</vcpu>", -1},
		"too large":                  {"<vcpu cpuset='0-99999999'>1</vcpu>", -1},
		"backwards":                  {"<numatune><memory nodeset='3-1'/></numatune>", -1},
	} {
		d, err := Parse([]byte("<domain><name>vm1</name>" + c.xml + "</domain>"))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		node := -1
		if n := d.Node(sys); n != nil {
			node = *n
		}
		if node != c.want {
			t.Errorf("%s: node %d, want %d", name, node, c.want)
		}
	}
}
