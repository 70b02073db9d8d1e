package controller

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/record"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	"causeway/host/api"
	"causeway/host/fleet/lease"
)

// gpuHost is a GPU server that keeps something for a claim.
type gpuHost struct {
	state     api.FleetState
	withdrawn chan string
}

func (g *gpuHost) State(context.Context, uint64) (api.FleetState, error) { return g.state, nil }

func (g *gpuHost) Reserve(context.Context, uint64, *api.Reservation) error { return nil }

func (g *gpuHost) Withdraw(_ context.Context, _ uint64, r *api.Reservation) error {
	g.state.Reserved = nil
	g.withdrawn <- r.ID
	return nil
}

// TestLeaving: a controller that begins when a GPU host is leaving already offers nothing of it,
// ends there what claims had that are gone, says when nobody has anything of it, and looks after it
// until the configuration does not name it.
func TestLeaving(t *testing.T) {
	g := &gpuHost{withdrawn: make(chan string, 1)}
	g.state.GPUs = []api.FleetGPU{{GPU: api.GPU{ID: "GPU-1", Backend: "soft", Name: "soft", Memory: 4 << 30}, Claimable: 4 << 30}}
	g.state.Reserved = []api.Reserved{{Reservation: api.Reservation{VM: "claim-1-a", Name: "gpu0", ID: "5-a", Of: "team/gone", Host: "node1", GPU: "GPU-1", Memory: 1 << 30, Share: 50}}}
	config := HostConfig{Name: "gpu1", Nodes: map[string]string{"fabric": "f1"}, Leaving: true}
	var log bytes.Buffer
	f := &fleet{Options: Options{Every: time.Millisecond, Metrics: NewMetrics(), Log: slog.New(slog.NewTextHandler(&log, nil))}, leader: &leader{}, pools: newPools(), hosts: map[string]*host{}}
	var err error
	if f.cluster, err = newCluster(fake.NewClientset(), record.NewFakeRecorder(10), func(string) {}); err != nil {
		t.Fatal(err)
	}
	ctx, end := context.WithCancel(t.Context())
	defer end()
	if err := f.cluster.start(ctx); err != nil {
		t.Fatal(err)
	}
	h := &host{config: config, wakeup: make(chan struct{}, 1), stop: end, leave: make(chan struct{}), first: make(chan struct{})}
	f.hosts["fleet/gpu1"] = h
	published := make(chan resourceslice.Pool, 100)
	k := &lease.Keeper{Host: config.host(), Address: "gpu1", Server: g, Cluster: f.cluster, Leader: f.leader, Patience: time.Minute, Backoff: time.Minute, Now: time.Now, Log: f.Log,
		Publish: func(p resourceslice.Pool) {
			select {
			case published <- p:
			default:
			}
		}}
	done := make(chan struct{})
	go func() { f.routineKeep(ctx, h, k); close(done) }()
	select {
	case id := <-g.withdrawn:
		if id != "5-a" {
			t.Errorf("%s is withdrawn", id)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("what a claim had that is gone stays")
	}
	for range 3 { // also when nobody has anything of it
		if p := <-published; len(p.Slices[0].Devices) != 0 {
			t.Errorf("it is offered: %+v", p)
		}
	}
	close(h.leave) // the configuration does not name it any more
	h.wake()
	select {
	case <-done:
	case <-time.After(20 * time.Second):
		t.Fatal("it does not leave")
	}
	if f.hosts["fleet/gpu1"] != nil || strings.Count(log.String(), "may be taken out of the configuration") != 1 {
		t.Errorf("%v; %s", f.hosts, log.String())
	}
}
