package controller

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/record"

	"causeway/host/fleet/claim"
	"causeway/remote/mtls"
)

// TestConfig: what a host is called and how it is reached; what cannot be is named.
func TestConfig(t *testing.T) {
	c, err := ParseConfig([]byte("nodes: {causeway.dev/fabric: f1}\nhosts:\n- {name: gpu1}\n- {name: gpu2, address: \"gpu2.example.net:7745\", nodes: {rack: r2}, local: true}\n"))
	if err != nil || len(c.Hosts) != 2 || c.Hosts[0].Address != "gpu1" || c.Hosts[0].Nodes["causeway.dev/fabric"] != "f1" || c.Hosts[1].Nodes["rack"] != "r2" || !c.Hosts[1].host().Local {
		t.Fatalf("%+v, %v", c, err)
	}
	for says, text := range map[string]string{
		"unknown field":        "hosts: [{name: gpu1, adress: x}]",
		"name \"GPU_1\"":       "nodes: {a: b}\nhosts: [{name: GPU_1}]",
		"by which labels":      "hosts: [{name: gpu1}]",
		"two of the name gpu1": "nodes: {a: b}\nhosts: [{name: gpu1}, {name: gpu1, address: gpu2}]",
		"two of the address":   "nodes: {a: b}\nhosts: [{name: gpu1, address: x}, {name: gpu2, address: \"x:7745\"}]",
		"NAME or HOST:PORT":    "nodes: {a: b}\nhosts: [{name: gpu1, address: any}]",
		"nodes: \"a b: c\"":    "nodes: {a b: c}\nhosts: [{name: gpu1}]",
		"cannot unmarshal":     "hosts: 3",
	} {
		if _, err := ParseConfig([]byte(text)); !errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", text, err)
		}
	}
}

func leaseOf(holder string, transitions int32) *coordinationv1.Lease {
	return &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "causeway", Name: LeaseName}, Spec: coordinationv1.LeaseSpec{HolderIdentity: &holder, LeaseTransitions: &transitions}}
}

// TestConfirm: a host that has heard of a higher epoch has whoever does not lead stop, and an API
// server that does not answer confirms nothing.
func TestConfirm(t *testing.T) {
	client := fake.NewClientset(leaseOf("me", 3))
	ctx, resign := context.WithCancelCause(t.Context())
	l := &leader{client: client, namespace: "causeway", identity: "me", resign: resign, log: slog.New(slog.DiscardHandler), epoch: 4}
	if err := l.Confirm(t.Context(), 9); err != nil || ctx.Err() != nil || l.Epoch() != 4 {
		t.Errorf("epoch %d: %v", l.Epoch(), err)
	}
	away := &leader{client: client, namespace: "elsewhere", identity: "me", resign: resign, log: l.log}
	if err := away.Confirm(t.Context(), 9); err == nil || ctx.Err() != nil {
		t.Errorf("%v, %v", err, ctx.Err())
	}
	if _, err := client.CoordinationV1().Leases("causeway").Update(t.Context(), leaseOf("other", 4), metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := l.Confirm(t.Context(), 20); !errors.Is(err, ErrNotLeader) || !errors.Is(context.Cause(ctx), ErrNotLeader) {
		t.Errorf("%v, %v", err, context.Cause(ctx))
	}
}

// TestLead: of two one works, and the other when that has ended, with a higher epoch.
func TestLead(t *testing.T) {
	client := fake.NewClientset()
	log := slog.New(slog.DiscardHandler)
	epochs := make(chan uint64, 2)
	var working atomic.Int32
	work := func(ctx context.Context, l *leader) error {
		if working.Add(1) > 1 {
			t.Error("two lead")
		}
		epochs <- l.Epoch()
		<-ctx.Done()
		working.Add(-1)
		return nil
	}
	first, end := context.WithCancel(t.Context())
	of := func(identity string) *Options {
		return &Options{Client: client, Namespace: "causeway", Identity: identity, Health: NewHealth(), Log: log}
	}
	done := make(chan error, 2)
	go func() { done <- lead(first, of("a"), work) }()
	one := <-epochs
	second, endSecond := context.WithCancel(t.Context())
	go func() { done <- lead(second, of("b"), work) }()
	end()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if two := <-epochs; two <= one {
		t.Errorf("epoch %d after %d", two, one)
	}
	endSecond()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// TestUnkept: a claim that has a device of a pool which nobody keeps, whoever published it, says
// so.
func TestUnkept(t *testing.T) {
	c := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "c", UID: "1-a"}}
	c.Status.Allocation = &resourceapi.AllocationResult{}
	c.Status.Allocation.Devices.Results = []resourceapi.DeviceRequestAllocationResult{{Driver: claim.Driver, Pool: "node9", Device: "gpu-1", BindingConditions: []string{claim.LeaseReady}}}
	node := "node9"
	uuid := "GPU-1"
	s := &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: "s"}, Spec: resourceapi.ResourceSliceSpec{Driver: claim.Driver, NodeName: &node,
		Devices: []resourceapi.Device{{Name: "gpu-1", Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{"uuid": {StringValue: &uuid}}}}}}
	dir := t.TempDir()
	file := filepath.Join(dir, "hosts.yaml")
	if err := os.WriteFile(file, []byte("hosts: []\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	events := record.NewFakeRecorder(10)
	f := &fleet{Options: Options{Client: fake.NewClientset(c, s), Events: events, Config: file, Files: mtls.Files{}, Every: time.Second, Patience: time.Second, Metrics: NewMetrics(), Health: NewHealth(), Log: slog.New(slog.DiscardHandler)},
		leader: &leader{}, pools: newPools(), hosts: map[string]*host{}}
	ctx, end := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- f.run(ctx) }()
	select {
	case text := <-events.Events:
		if !strings.Contains(text, "none of the fleet's") || !strings.HasPrefix(text, corev1.EventTypeWarning) {
			t.Error(text)
		}
	case <-time.After(20 * time.Second):
		t.Error("nobody is told")
	}
	if f.cluster == nil {
		t.Fatal("it did not begin")
	}
	if !slices.Equal(f.cluster.Elsewhere()[uuid], []string{"node9"}) || !f.cluster.DriverRuns(node) || f.cluster.DriverRuns("other") {
		t.Errorf("%v", f.cluster.Elsewhere())
	}
	end()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
