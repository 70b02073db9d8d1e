package overview

import (
	"strings"
	"testing"
)

// TestTop: vGPUs with what they do, the busiest first; of a GPU of another host what its host
// counts, and not the relay; what nobody knows of comes last and says so; others' vGPUs are left
// out.
func TestTop(t *testing.T) {
	f := &Fleet{Claims: []Claim{
		{Namespace: "team", Name: "idle", UID: "1-a", State: InUse, Pods: []string{"p1"}, Parts: []Part{{Node: "node1", Device: "gpu-1", Memory: 4 << 30}}},
		{Namespace: "team", Name: "busy", UID: "1-b", State: InUse, Pods: []string{"p2\x1b[2J"}, Parts: []Part{{Node: "node1", Device: "gpu-1", Memory: 1 << 30}, {Node: "node1", Device: "gpu-2", Memory: 1 << 30}}},
		{Namespace: "team", Name: "far", UID: "1-c", State: InUse, Pods: []string{"p3"}, Parts: []Part{{Node: "gpu9", Device: "gpu-9-net", Memory: 2 << 30, Lease: Held}}},
		{Namespace: "team", Name: "dark", UID: "1-d", State: InUse, Pods: []string{"p4"}, Parts: []Part{{Node: "node2", Device: "gpu-5", Memory: 2 << 30}}},
		{Namespace: "team", Name: "left", UID: "1-e", State: Allocated, Parts: []Part{{Node: "node2", Device: "gpu-5", Memory: 2 << 30}}},
	}}
	var u Uses
	set := func(vm, vgpu string, busy float64, memory uint64, sessions int) {
		u.Of(vm, vgpu, func(is *Use) { is.Busy += busy })
		u.Of(vm, vgpu, func(is *Use) { is.Memory, is.Sessions = memory, sessions })
	}
	set("claim-1-a", "gpu0", 0, 1<<20, 1)
	set("claim-1-b", "gpu1", 0.5, 1<<29, 2)
	set("claim-1-b", "gpu0", 0.1, 0, 0)
	set("claim-1-c", "gpu0", 0.9, 7, 9)
	set("node1", "claim-1-c:gpu0", 0.3, 1<<30, 1)
	set("vm1", "gpu0", 1, 1, 1)
	got := f.Top(&u)
	var order []string
	for _, x := range got {
		order = append(order, x.Claim+" "+x.Device)
	}
	if want := "team/busy gpu-2,team/far gpu-9-net,team/busy gpu-1,team/idle gpu-1,team/dark gpu-5"; strings.Join(order, ",") != want {
		t.Fatalf("%v", order)
	}
	if x := got[1].Used; x.Busy != 0.3 || x.Memory != 1<<30 || x.Sessions != 1 {
		t.Errorf("%+v", x)
	}
	var b strings.Builder
	if err := TopTable(&b, got); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"50%", "512 MiB/1 GiB", "1 vGPUs without figures", "team/dark"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("%q is missing in\n%s", want, b.String())
		}
	}
	if strings.Contains(b.String(), "\x1b") {
		t.Error("a pod's name moves the cursor")
	}
	b.Reset()
	if err := TopTable(&b, (&Fleet{}).Top(&Uses{})); err != nil || !strings.Contains(b.String(), "no pod has a GPU") {
		t.Errorf("%q, %v", b.String(), err)
	}
}
