package lease

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	"causeway/host/api"
	"causeway/host/fleet/claim"
	"causeway/host/fleet/pool"
)

// TestLease: a claim is reserved once, its pod's driver is told where, and when the claim is gone,
// or elsewhere, so is the lease.
func TestLease(t *testing.T) {
	r := newRig()
	r.a.now = []*resourceapi.ResourceClaim{allocated("a", "node1", "s1", 1024)}
	for range 3 {
		r.pass(t)
	}
	r.is(t, "a", claim.LeaseReady, true)
	if len(r.s.state.Reserved) != 1 || r.s.state.Reserved[0].Host != "node1" || r.a.writes != 1 {
		t.Fatalf("%+v, %d writes", r.s.state, r.a.writes)
	}
	read, err := claim.Read(r.a.now[0])
	if err != nil || read.Devices()[0].Lease == nil || *read.Devices()[0].Lease != (claim.Lease{Server: "gpu1:7745", GPU: "GPU-1", Epoch: 1}) {
		t.Fatalf("%+v, %v", read, err)
	}
	if w := read.Wish(&read.Devices()[0], "GPU-1"); w.Remote != "gpu1:7745" || w.Check() != nil {
		t.Errorf("%+v", w)
	}
	// Another controller finds all as it is.
	r.Keeper = r.next()
	r.pass(t)
	if r.a.writes != 1 || len(r.s.ended) != 0 {
		t.Errorf("%d writes, ended %v", r.a.writes, r.s.ended)
	}
	// The node froze, and the claim is allocated anew.
	r.a.now = []*resourceapi.ResourceClaim{allocated("a", "node2", "s2", 1024)}
	r.pass(t)
	r.is(t, "a", claim.LeaseReady, true)
	if len(r.s.state.Reserved) != 1 || r.s.state.Reserved[0].Host != "node2" || fmt.Sprint(r.s.ended) != "[node1 s1]" {
		t.Fatalf("%+v, ended %v", r.s.state, r.s.ended)
	}
	r.a.now = nil
	r.pass(t)
	if len(r.s.state.Reserved) != 0 || r.s.left != 4<<30 {
		t.Errorf("%+v", r.s.state)
	}
}

// TestNotKnown: what the controller has heard may be old, and an API server that does not answer
// says nothing: neither ends a lease.
func TestNotKnown(t *testing.T) {
	r := newRig()
	r.a.now = []*resourceapi.ResourceClaim{allocated("a", "node1", "s1", 1024)}
	r.pass(t)
	r.a.known = nil
	r.Pass(t.Context())
	r.a.down = errors.New("the API server is away")
	r.Pass(t.Context())
	if len(r.s.ended) != 0 {
		t.Fatalf("ended: %v", r.s.ended)
	}
	r.a.now, r.a.known = nil, nil
	r.Pass(t.Context())
	if len(r.s.ended) != 0 {
		t.Fatalf("ended: %v", r.s.ended)
	}
	r.a.down = nil
	r.Pass(t.Context())
	if len(r.s.ended) != 1 {
		t.Error("it is left")
	}
}

// TestOldNews: a controller that begins and knows an older allocation of a claim than the one that
// has a lease does not put it in that one's place, which would end the claim's sessions; nor one
// that cannot ask.
func TestOldNews(t *testing.T) {
	r := newRig()
	r.a.now = []*resourceapi.ResourceClaim{allocated("a", "node1", "s2", 1024)}
	r.pass(t)
	r.Keeper, r.a.known = r.next(), []*resourceapi.ResourceClaim{allocated("a", "node9", "s1", 1024)}
	for _, down := range []error{nil, errors.New("the API server is away"), nil} {
		r.a.down = down
		if again := r.Pass(t.Context()); again == 0 || again > time.Second {
			t.Errorf("looks again in %v", again)
		}
		if len(r.s.ended) != 0 || r.s.state.Reserved[0].ID != "s2" {
			t.Fatalf("ended %v; %+v", r.s.ended, r.s.state)
		}
	}
	r.is(t, "a", claim.LeaseRefused, false)
	// What it hears of later is so.
	r.a.now = []*resourceapi.ResourceClaim{allocated("a", "node9", "s3", 1024)}
	r.pass(t)
	r.is(t, "a", claim.LeaseReady, true)
	if fmt.Sprint(r.s.ended) != "[node1 s2]" || r.s.state.Reserved[0].Host != "node9" {
		t.Errorf("ended %v; %+v", r.s.ended, r.s.state)
	}
}

// TestRefused: a GPU gets no new claims before one is refused for lack of room; what is refused
// says why on the claim; a claim that can never be served keeps no GPU from others.
func TestRefused(t *testing.T) {
	r := newRig()
	r.s.left = 512 << 20
	r.a.now = []*resourceapi.ResourceClaim{allocated("a", "node1", "s1", 1024)}
	if again := r.pass(t); again == 0 || len(r.pool.Slices[0].Devices[0].Taints) != 1 {
		t.Fatalf("again %v, %+v", again, r.pool)
	}
	r.is(t, "a", claim.LeaseRefused, false)
	r.now = r.now.Add(taintFirst)
	r.pass(t)
	r.is(t, "a", claim.LeaseRefused, true)
	if len(r.a.said) != 1 || !strings.Contains(r.a.said[0], "a: GPU host gpu1: no room") {
		t.Errorf("%v", r.a.said)
	}
	r.pass(t)
	if r.a.writes != 1 {
		t.Errorf("%d writes", r.a.writes)
	}
	// The scheduler has it again, at once, and is not answered at once.
	r.a.now = []*resourceapi.ResourceClaim{allocated("a", "node1", "s2", 1024)}
	r.now = r.now.Add(time.Second)
	r.pass(t)
	r.is(t, "a", claim.LeaseRefused, false)
	r.s.left = 4 << 30
	r.pass(t)
	r.is(t, "a", claim.LeaseReady, true)
	r.now = r.now.Add(31 * time.Second)
	odd := allocated("odd", "node1", "s3", 64)
	o := &resourceapi.OpaqueDeviceConfiguration{Driver: claim.Driver}
	o.Parameters.Raw = []byte(`{"apiVersion":"causeway.dev/v1alpha1","kind":"VGPU","share":1}`)
	odd.Status.Allocation.Devices.Config = []resourceapi.DeviceAllocationConfiguration{{Source: resourceapi.AllocationConfigSourceClaim, DeviceConfiguration: resourceapi.DeviceConfiguration{Opaque: o}}}
	none := allocated("none", "node1", "s4", 64)
	none.Status.Allocation.NodeSelector = nil
	gone := allocated("gone", "node1", "s5", 64)
	gone.Status.Allocation.Devices.Results[0].Device = "gpu-9-net"
	r.a.now = append(r.a.now, odd, none, gone)
	r.pass(t)
	for name, says := range map[string]string{"odd": `unknown field "share"`, "none": "names no node", "gone": "no such GPU any more"} {
		r.is(t, name, claim.LeaseRefused, true)
		if !strings.Contains(strings.Join(r.a.said, "\n"), says) {
			t.Errorf("%s is not told: %v", name, r.a.said)
		}
	}
	if len(r.pool.Slices[0].Devices[0].Taints) != 0 {
		t.Error("others are kept away for it")
	}
}

// TestSilent: a host that does not answer keeps what it has, gets no new claims after its patience,
// and claims that wait for it are told. A controller that has never heard it publishes what was.
func TestSilent(t *testing.T) {
	r := newRig()
	r.a.now = []*resourceapi.ResourceClaim{allocated("a", "node1", "s1", 1024)}
	r.pass(t)
	r.s.down = errors.New("no route to host")
	r.a.now = append(r.a.now, allocated("b", "node1", "s2", 1024))
	r.pass(t)
	r.is(t, "b", claim.LeaseRefused, false)
	if len(r.pool.Slices[0].Devices[0].Taints) != 0 {
		t.Error("tainted at once")
	}
	r.now = r.now.Add(31 * time.Second)
	r.pass(t)
	r.is(t, "b", claim.LeaseRefused, true)
	r.is(t, "a", claim.LeaseReady, true)
	if d := r.pool.Slices[0].Devices; len(d) != 1 || len(d[0].Taints) != 1 {
		t.Errorf("%+v", d)
	}
	found, _ := pool.GPUOf(&r.pool.Slices[0].Devices[0])
	r.Keeper, r.pool = r.next(), resourceslice.Pool{}
	r.pass(t)
	if r.pool.Slices != nil {
		t.Error("a host that was never heard of offers something")
	}
	r.Found([]api.FleetGPU{found})
	r.pass(t)
	if len(r.pool.Slices[0].Devices) != 1 {
		t.Error("what it offered is gone")
	}
	// Started anew, it knows nothing: it is told again.
	r.s.down, r.s.state.Reserved, r.s.left = nil, nil, 4<<30
	r.a.now = r.a.now[:1]
	r.pass(t)
	if len(r.s.state.Reserved) != 1 || r.s.state.Reserved[0].ID != "s1" {
		t.Errorf("%+v", r.s.state)
	}
	r.s.state.Reserved, r.s.left = nil, 0
	r.pass(t)
	r.now = r.now.Add(taintFirst)
	r.pass(t)
	r.is(t, "a", claim.LeaseReady, false)
	r.is(t, "a", claim.LeaseRefused, false) // its pod is bound
	if !strings.Contains(strings.Join(r.a.said, "\n"), "a: GPU host gpu1 has the lease no more") {
		t.Errorf("%v", r.a.said)
	}
}

// TestTwoControllers: one that is not the newest changes nothing at a host, and one whose Lease was
// made anew goes above what hosts have heard.
func TestTwoControllers(t *testing.T) {
	r := newRig()
	r.a.now = []*resourceapi.ResourceClaim{allocated("a", "node1", "s1", 1024)}
	r.pass(t)
	r.s.state.Epoch, r.l.deposed = 5, errors.New("another leads")
	r.a.now = append(r.a.now[1:], allocated("b", "node1", "s2", 64))
	r.pass(t)
	if len(r.s.ended) != 0 || len(r.s.state.Reserved) != 1 {
		t.Fatalf("%+v", r.s)
	}
	r.l.deposed = nil
	r.pass(t)
	if r.s.state.Epoch != 6 || len(r.s.ended) != 1 || len(r.s.state.Reserved) != 1 {
		t.Errorf("%+v, epoch %d", r.s, r.l.epoch)
	}
}

// TestLeaving: a host that leaves offers nothing new, and is kept until nobody has anything of it.
func TestLeaving(t *testing.T) {
	r := newRig()
	r.a.now = []*resourceapi.ResourceClaim{allocated("a", "node1", "s1", 1024)}
	r.pass(t)
	r.Leaving = true
	r.pass(t)
	if len(r.pool.Slices[0].Devices) != 0 || r.Idle() || len(r.s.state.Reserved) != 1 {
		t.Errorf("%+v", r.pool)
	}
	r.a.now = nil
	r.pass(t)
	if !r.Idle() || len(r.s.state.Reserved) != 0 {
		t.Errorf("%+v", r.s.state)
	}
}
