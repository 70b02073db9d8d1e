package lease

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	"causeway/host/api"
	"causeway/host/fleet/claim"
	"causeway/host/fleet/pool"
)

// server is a GPU host's causewayd, as far as a controller sees.
type server struct {
	down  error
	left  uint64
	state api.FleetState
	ended []string // reservations, by node and ID
}

func (s *server) State(_ context.Context, epoch uint64) (api.FleetState, error) {
	if s.down != nil {
		return api.FleetState{}, s.down
	}
	s.state.Epoch = max(s.state.Epoch, epoch)
	out := s.state
	out.Reserved = slices.Clone(s.state.Reserved)
	return out, nil
}

func (s *server) accept(epoch uint64) error {
	switch {
	case s.down != nil:
		return s.down
	case epoch < s.state.Epoch:
		return &api.Error{Status: http.StatusPreconditionFailed, Text: "a newer controller"}
	}
	s.state.Epoch = epoch
	return nil
}

func (s *server) Reserve(_ context.Context, epoch uint64, r *api.Reservation) error {
	if err := s.accept(epoch); err != nil {
		return err
	}
	if err := r.Check(); err != nil {
		return err
	}
	for i := range s.state.Reserved {
		h := &s.state.Reserved[i]
		if h.Key() != r.Key() || h.ID != r.ID {
			continue
		}
		if h.Moved != r.Moved {
			return &api.Error{Status: http.StatusPreconditionFailed, Text: "it has moved"}
		}
		moved := h.Moved
		if h.Host != r.Host {
			moved++
		}
		h.Reservation = *r
		h.Moved = moved
		return nil
	}
	s.end(func(h api.Reserved) bool { return h.Key() == r.Key() })
	if uint64(r.Memory) > s.left {
		return &api.Error{Status: http.StatusInsufficientStorage, Text: "no room"}
	}
	s.left -= uint64(r.Memory)
	s.state.Reserved = append(s.state.Reserved, api.Reserved{Reservation: *r})
	return nil
}

func (s *server) Withdraw(_ context.Context, epoch uint64, r *api.Reservation) error {
	if err := s.accept(epoch); err != nil {
		return err
	}
	s.end(func(h api.Reserved) bool { return h.Key() == r.Key() && h.ID == r.ID })
	return nil
}

func (s *server) end(which func(api.Reserved) bool) {
	s.state.Reserved = slices.DeleteFunc(s.state.Reserved, func(h api.Reserved) bool {
		if !which(h) {
			return false
		}
		s.left += uint64(h.Memory)
		s.ended = append(s.ended, h.Host+" "+h.ID)
		return true
	})
}

// apiServer has claims; what a controller knows of them may be older.
type apiServer struct {
	now, known []*resourceapi.ResourceClaim
	down       error
	said       []string
	writes     int
	elsewhere  map[string][]string
	pods       map[string]place // by name
	asked      int              // for pods
}

func (a *apiServer) NodeOf(_ context.Context, _, pod string, uid types.UID) (string, bool, error) {
	a.asked++
	p, is := a.pods[pod]
	if !is || string(uid) != "uid-"+pod {
		return "", true, nil
	}
	return p.node, p.sure, p.err
}

func (a *apiServer) Claims(pool string) (list []*resourceapi.ResourceClaim) {
	for _, c := range a.known {
		if c.Status.Allocation != nil && c.Status.Allocation.Devices.Results[0].Pool == pool {
			list = append(list, c)
		}
	}
	return list
}

func (a *apiServer) Claim(_ context.Context, namespace, name string) (*resourceapi.ResourceClaim, error) {
	if a.down != nil {
		return nil, a.down
	}
	for _, c := range a.now {
		if c.Namespace == namespace && c.Name == name {
			return c.DeepCopy(), nil
		}
	}
	return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "resourceclaims"}, name)
}

func (a *apiServer) Update(_ context.Context, c *resourceapi.ResourceClaim) error {
	if a.down != nil {
		return a.down
	}
	for i := range a.now {
		if a.now[i].UID == c.UID {
			a.writes++
			a.now[i] = c
			return nil
		}
	}
	return errors.New("it is gone")
}

func (a *apiServer) Warn(c claim.ID, why error)     { a.said = append(a.said, c.Name+": "+why.Error()) }
func (a *apiServer) Elsewhere() map[string][]string { return a.elsewhere }
func (a *apiServer) DriverRuns(string) bool         { return true }

// observe has the controller know what is.
func (a *apiServer) sync() {
	a.known = nil
	for _, c := range a.now {
		a.known = append(a.known, c.DeepCopy())
	}
}

type leader struct {
	epoch   uint64
	deposed error // it leads no more
}

func (l *leader) Epoch() uint64 { return l.epoch }
func (l *leader) Confirm(context.Context, uint64) error {
	return l.deposed
}

// rig is a keeper with fakes around it.
type rig struct {
	*Keeper
	s    *server
	a    *apiServer
	l    *leader
	now  time.Time
	pool resourceslice.Pool
}

func newRig() *rig {
	r := &rig{s: &server{left: 4 << 30}, a: &apiServer{}, l: &leader{epoch: 1}, now: time.Unix(1000, 0)}
	r.s.state.GPUs = []api.FleetGPU{{GPU: api.GPU{ID: "GPU-1", Backend: "soft", Name: "soft", Memory: 4 << 30}, Claimable: 4 << 30}}
	r.Keeper = r.next()
	return r
}

// next is another controller's keeper.
func (r *rig) next() *Keeper {
	return &Keeper{Host: pool.Host{Name: "gpu1", Nodes: map[string]string{"fabric": "f1"}}, Address: "gpu1:7745", Server: r.s, Cluster: r.a, Leader: r.l, Patience: 30 * time.Second, Backoff: 30 * time.Second,
		Publish: func(p resourceslice.Pool) { r.pool = p }, Now: func() time.Time { return r.now }, Log: slog.New(slog.DiscardHandler)}
}

// allocated is a claim as the scheduler leaves it for a node.
func allocated(name, node, share string, mib int) *resourceapi.ResourceClaim {
	c := &resourceapi.ResourceClaim{}
	c.Namespace, c.Name, c.UID = "team", name, types.UID(fmt.Sprintf("1-%x", name))
	id := types.UID(share)
	c.Status.Allocation = &resourceapi.AllocationResult{NodeSelector: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
		MatchFields: []corev1.NodeSelectorRequirement{{Key: "metadata.name", Operator: "In", Values: []string{node}}}}}}}
	c.Status.Allocation.Devices.Results = []resourceapi.DeviceRequestAllocationResult{{Request: "gpu", Driver: claim.Driver, Pool: "fleet/gpu1", Device: "gpu-1-net", ShareID: &id,
		BindingConditions: []string{claim.LeaseReady}, BindingFailureConditions: []string{claim.LeaseRefused},
		ConsumedCapacity: map[resourceapi.QualifiedName]resource.Quantity{claim.Memory: resource.MustParse(fmt.Sprintf("%dMi", mib))}}}
	return c
}

func (r *rig) pass(t *testing.T) time.Duration {
	t.Helper()
	r.a.sync()
	return r.Pass(t.Context())
}

// is wants a condition of a claim to be so.
func (r *rig) is(t *testing.T, name, condition string, want bool) {
	t.Helper()
	for _, c := range r.a.now {
		if c.Name != name {
			continue
		}
		got := false
		for _, d := range c.Status.Devices {
			got = got || apimeta.IsStatusConditionTrue(d.Conditions, condition)
		}
		if got != want {
			t.Errorf("%s of %s is %v: %+v", condition, name, got, c.Status.Devices)
		}
		return
	}
	t.Errorf("no claim %s", name)
}
