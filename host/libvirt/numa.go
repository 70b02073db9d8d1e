package libvirt

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// mostIDs bounds lists of nodes and CPUs: no kernel has more (CONFIG_NR_CPUS).
const mostIDs = 8192

// Node is the host's NUMA node of the domain's memory, as <numatune> says, or else the one that all
// its vCPUs are pinned to. sys is where sysfs is. Nil: the XML binds it to no single node.
func (d *DomainXML) Node(sys string) *int {
	var node int
	var ok bool
	if list := d.doc.memoryNodes(); len(list) > 0 {
		node, ok = single(list)
	} else {
		node, ok = nodeOf(sys, d.doc.pinned())
	}
	if !ok {
		return nil
	}
	return &node
}

// memoryNodes are the lists of nodes in <numatune>. Memory that is only preferred there counts too.
func (x *domainXML) memoryNodes() []string {
	var list []string
	for _, m := range append(x.Tune.Nodes, x.Tune.Memory...) {
		if s := strings.TrimSpace(m.Nodes); s != "" {
			list = append(list, s)
		}
	}
	return list
}

// pinned are the lists of CPUs that vCPUs may run on; nil if one may run anywhere.
func (x *domainXML) pinned() []string {
	general := strings.TrimSpace(x.VCPU.CPUs)
	n, _ := strconv.Atoi(strings.TrimSpace(x.VCPU.Count))
	var list []string
	for _, p := range x.Pins {
		list = append(list, p.CPUs)
	}
	switch {
	case general != "":
		return append(list, general)
	case n > 0 && len(x.Pins) >= n:
		return list
	}
	return nil
}

// single is the one node that all lists name.
func single(lists []string) (int, bool) {
	node := -1
	for _, text := range lists {
		ids, ok := ids(text)
		if !ok || len(ids) != 1 || node >= 0 && !ids[node] {
			return 0, false
		}
		for node = range ids {
		}
	}
	return node, node >= 0
}

// nodeOf is the node that has all of the CPUs.
func nodeOf(sys string, lists []string) (int, bool) {
	want := map[int]bool{}
	for _, text := range lists {
		some, ok := ids(text)
		if !ok {
			return 0, false
		}
		for id := range some {
			want[id] = true
		}
	}
	if len(want) == 0 {
		return 0, false
	}
	files, _ := filepath.Glob(filepath.Join(sys, "devices/system/node/node[0-9]*/cpulist"))
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		has, ok := ids(strings.TrimSpace(string(b)))
		node, err := strconv.Atoi(strings.TrimPrefix(filepath.Base(filepath.Dir(file)), "node"))
		if ok && err == nil && contains(has, want) {
			return node, true
		}
	}
	return 0, false
}

func contains(has, want map[int]bool) bool {
	for id := range want {
		if !has[id] {
			return false
		}
	}
	return true
}

// ids reads a list as libvirt and sysfs write them: "0-3,8,^2". False: it is none, and says
// nothing.
func ids(text string) (map[int]bool, bool) {
	set := map[int]bool{}
	for _, part := range strings.Split(text, ",") {
		part = strings.TrimSpace(part)
		part, except := strings.CutPrefix(part, "^")
		from, to, isRange := strings.Cut(part, "-")
		a, err := strconv.Atoi(strings.TrimSpace(from))
		b := a
		if err == nil && isRange {
			b, err = strconv.Atoi(strings.TrimSpace(to))
		}
		if err != nil || a < 0 || b < a || b >= mostIDs {
			return nil, false
		}
		for i := a; i <= b; i++ {
			if except {
				delete(set, i)
			} else {
				set[i] = true
			}
		}
	}
	return set, len(set) > 0
}
