package publish

import (
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"

	"causeway/host/api"
)

// TestDevices: what causewayd says of its GPUs becomes values that the API server takes, whatever
// it is.
func TestDevices(t *testing.T) {
	odd := gpu(1, 80)
	odd.Name, odd.Driver, odd.NUMA, odd.Drained, odd.Why = strings.Repeat("long", 40)+"\n", "", -1, true, "drained by root"
	soft := api.GPU{ID: "GPU-AB", Backend: "soft", Name: "Causeway Software GPU", Memory: 2<<30 + 4096}
	huge, tiny, unnamed := gpu(3, 0), gpu(4, 0), gpu(5, 80)
	huge.Memory, tiny.Memory, unnamed.ID = 1<<63+1, 1<<20, "GPU/../x"
	n := &Node{Name: "node1", GPUs: []api.GPU{odd, soft, huge, tiny, unnamed}}
	got := n.Devices()
	if len(got) != 3 || got[0].Name != "gpu-ab" || got[1].Name != "gpu-00000001" || got[2].Name != "gpu-00000003" {
		t.Fatalf("%+v", got)
	}
	for _, d := range got {
		memory := d.Capacity["memory"]
		if v, ok := memory.Value.AsInt64(); !ok || v <= 0 || v%step != 0 || !*d.AllowMultipleAllocations || memory.RequestPolicy.Default.Cmp(memory.Value) != 0 {
			t.Errorf("%s: memory %v", d.Name, memory)
		}
		for name, a := range d.Attributes {
			if a.StringValue != nil && (len(*a.StringValue) > 64 || *a.StringValue == "") {
				t.Errorf("%s: %s is %q", d.Name, name, *a.StringValue)
			}
		}
	}
	if _, ok := got[1].Attributes["numa"]; ok {
		t.Error("a NUMA node that nobody knows")
	}
	want := resourceapi.DeviceTaint{Key: TaintDrained, Value: "operator", Effect: resourceapi.DeviceTaintEffectNoSchedule}
	if len(got[1].Taints) != 1 || got[1].Taints[0] != want || len(got[0].Taints) != 0 {
		t.Errorf("%+v, %+v", got[0].Taints, got[1].Taints)
	}
	n.Unreachable = true
	if d := n.Devices()[0]; len(d.Taints) != 1 || d.Taints[0].Key != TaintUnreachable {
		t.Errorf("%+v", d.Taints)
	}
	none := &Node{Name: "node2"}
	if p := none.Resources().Pools["node2"]; len(p.Slices) != 1 || len(p.Slices[0].Devices) != 0 {
		t.Errorf("%+v", p)
	}
	many := &Node{Name: "node3"}
	for i := range 70 {
		g := gpu(i, 80)
		many.GPUs = append(many.GPUs, g)
	}
	if p := many.Resources().Pools["node3"]; len(p.Slices) != 2 || len(p.Slices[0].Devices) != 64 {
		t.Errorf("%d slices", len(p.Slices))
	}
}
