package lease

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"slices"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	"causeway/host/api"
	"causeway/host/fleet/claim"
	"causeway/host/fleet/pool"
)

// Server is what is asked of a GPU host's causewayd.
type Server interface {
	State(ctx context.Context, epoch uint64) (api.FleetState, error)
	Reserve(ctx context.Context, epoch uint64, r *api.Reservation) error
	Withdraw(ctx context.Context, epoch uint64, r *api.Reservation) error
}

// Cluster is what is asked of the API server.
type Cluster interface {
	// Claims are those with devices of a pool, as far as is known.
	Claims(pool string) []*resourceapi.ResourceClaim
	// Claim is one as it is now.
	Claim(ctx context.Context, namespace, name string) (*resourceapi.ResourceClaim, error)
	// Update writes a claim's status, if nobody has written it since.
	Update(ctx context.Context, c *resourceapi.ResourceClaim) error
	// NodeOf is the node of a pod, which is none before it has one and when it has ended; sure: it
	// has that until it ends. It is asked of claims that bind to no node alone.
	NodeOf(ctx context.Context, namespace, pod string, uid types.UID) (node string, sure bool, err error)
	// Warn has whoever looks at a claim see why it is not served.
	Warn(c claim.ID, why error)
	// Elsewhere are the nodes that say they offer a GPU themselves, by its UUID, and whether a
	// node's driver runs.
	Elsewhere() map[string][]string
	DriverRuns(node string) bool
}

// Leader says as the how-manieth controller this one acts.
type Leader interface {
	Epoch() uint64
	// Confirm asks whether this one leads still; a host has heard of a controller of that epoch,
	// which is newer.
	Confirm(ctx context.Context, highest uint64) error
}

// Keeper looks after what claims have of one GPU host. Its methods are called by one goroutine.
type Keeper struct {
	Host    pool.Host
	Address string // by which nodes' causewayds are configured with it
	Server  Server
	Cluster Cluster
	Leader  Leader
	// Publish has Kubernetes offer this.
	Publish func(resourceslice.Pool)
	// Patience is how long the host may not answer before it gets no new claims; Backoff is for how
	// long a GPU gets none of which one was refused.
	Patience, Backoff time.Duration
	Now               func() time.Time
	Log               *slog.Logger
	// Counted hears of what is done: one of Acts; may be nil.
	Counted func(act string)
	// Leaving: it is not to be in the fleet any more, once nobody has a lease.
	Leaving bool

	state         api.FleetState
	above         uint64 // what this host has heard of, if that is newer than any that leads
	known         bool   // state was ever heard, or found
	lastHeartbeat time.Time
	silent        error // since lastHeartbeat
	refused       map[string]time.Time
	lastRefused   map[string]time.Time // when a claim was last refused, by UID
	lastReported  map[offer]bool
	at            map[types.UID]place // the nodes of pods, of claims that bind to none
}

// Acts of a keeper.
const (
	ActReserved  = "reserved"  // the host keeps room for a device of a claim
	ActWithdrawn = "withdrawn" // it does so no more
	ActRefused   = "refused"   // a claim heard that there is none
	ActLost      = "lost"      // a claim whose pod is bound heard that its lease is no more
	ActMoved     = "moved"     // a lease is another host's, with its VM
	ActSilent    = "silent"    // a heartbeat that did not come
)

// Acts are all of them.
var Acts = []string{ActReserved, ActWithdrawn, ActRefused, ActLost, ActMoved, ActSilent}

func (k *Keeper) count(act string) {
	if k.Counted != nil {
		k.Counted(act)
	}
}

// Account is how a host is.
type Account struct {
	LastHeartbeat time.Time // its last heartbeat; zero: none yet
	Answers       bool
	GPUs          int
	Reserved      int
	Memory        uint64 // bytes that it keeps for claims
}

// Account of the host, as its last Pass has found it.
func (k *Keeper) Account() Account {
	a := Account{LastHeartbeat: k.lastHeartbeat, Answers: k.known && k.silent == nil, GPUs: len(k.state.GPUs), Reserved: len(k.state.Reserved)}
	for i := range k.state.Reserved {
		a.Memory += uint64(k.state.Reserved[i].Memory)
	}
	return a
}

// Found begins with what an earlier controller has published, for a host that does not answer yet.
func (k *Keeper) Found(gpus []api.FleetGPU) {
	if !k.known {
		k.state.GPUs, k.known = gpus, true
	}
}

// Pass does once what is to be done. Again says after which time it is to be called whatever
// happens; 0: as usual.
func (k *Keeper) Pass(ctx context.Context) (again time.Duration) {
	if k.lastHeartbeat.IsZero() {
		k.lastHeartbeat = k.Now()
	}
	k.forget()
	s, err := k.Server.State(ctx, k.epoch())
	if ctx.Err() != nil {
		return 0
	}
	if err == nil && s.Epoch > k.epoch() {
		if err = k.Leader.Confirm(ctx, s.Epoch); err == nil {
			// Of this host alone: what others hear is none of its business.
			k.above = s.Epoch
		}
	}
	k.observe(s, err)
	again = k.locate(ctx)
	if k.silent == nil {
		k.withdraw(ctx)
	}
	for _, w := range k.wanted() {
		again = sooner(again, k.serve(ctx, w))
	}
	k.publish()
	return again
}

// sooner of two times, of which 0 is no matter when.
func sooner(a, b time.Duration) time.Duration {
	if a == 0 || b == 0 {
		return max(a, b)
	}
	return min(a, b)
}

// epoch is that of which the host takes requests.
func (k *Keeper) epoch() uint64 {
	if k.above > 0 {
		return max(k.Leader.Epoch(), k.above+1)
	}
	return k.Leader.Epoch()
}

// observe notes a heartbeat, or that there was none.
func (k *Keeper) observe(s api.FleetState, err error) {
	if err != nil {
		k.count(ActSilent)
		if k.silent == nil || k.silent.Error() != err.Error() {
			k.Log.Warn("a GPU host does not answer", "host", k.Host.Name, "error", err)
		}
		k.silent = err
		return
	}
	if k.silent != nil {
		k.Log.Info("a GPU host answers again", "host", k.Host.Name)
	}
	for i := range s.Reserved {
		r := &s.Reserved[i].Reservation
		if had := k.had(r); had != nil && r.Moved > had.Moved {
			k.count(ActMoved)
			k.Log.Info("a lease has moved", "host", k.Host.Name, "claim", r.Of, "vgpu", r.Key(), "from", had.Host, "node", r.Host)
		}
	}
	k.state, k.known, k.lastHeartbeat, k.silent = s, true, k.Now(), nil
}

// lost: it has not answered for so long that nothing is expected of it.
func (k *Keeper) lost() bool { return k.silent != nil && k.Now().Sub(k.lastHeartbeat) > k.Patience }

// Idle: it is leaving, and nobody has anything of it.
func (k *Keeper) Idle() bool {
	return k.Leaving && k.silent == nil && len(k.state.Reserved) == 0 && len(k.Cluster.Claims(claim.PoolOf(k.Host.Name))) == 0
}

// want is a device that a claim has of the host.
type want struct {
	claim  *resourceapi.ResourceClaim
	result *resourceapi.DeviceRequestAllocationResult
	r      api.Reservation
	err    error // why it cannot be served
}

// wanted are all devices that claims have of the host over the network.
func (k *Keeper) wanted() (list []want) {
	for _, c := range k.Cluster.Claims(claim.PoolOf(k.Host.Name)) {
		list = append(list, k.wants(c)...)
	}
	return list
}

// withdraw ends reservations of which the API server says now that no claim has them: what is known
// of claims may be old.
func (k *Keeper) withdraw(ctx context.Context) {
	wanted := k.wanted()
	k.state.Reserved = slices.DeleteFunc(k.state.Reserved, func(r api.Reserved) bool {
		if slices.ContainsFunc(wanted, func(w want) bool { return w.r.Key() == r.Key() && w.r.ID == r.ID }) {
			return false
		}
		over, err := k.over(ctx, &r.Reservation)
		if err == nil && over {
			err = k.Server.Withdraw(ctx, k.epoch(), &r.Reservation)
		}
		switch {
		case err != nil:
			k.Log.Warn("whether a lease is over, or its end, is tried again", "host", k.Host.Name, "claim", r.Of, "vgpu", r.Key(), "error", err)
		case over:
			k.count(ActWithdrawn)
			k.Log.Info("a lease is over", "host", k.Host.Name, "claim", r.Of, "vgpu", r.Key(), "node", r.Host)
		}
		return err == nil && over
	})
}

// serve has a device reserved, and says so in the claim. The answer is when to look again at the
// latest.
func (k *Keeper) serve(ctx context.Context, w want) time.Duration {
	err := w.err
	if err == nil {
		err = k.reserve(ctx, &w)
	}
	if err == nil {
		if err := k.ready(ctx, &w); err != nil {
			k.Log.Warn("a claim is not told of its lease yet", "claim", w.r.Of, "error", err)
			return time.Second
		}
		return 0
	}
	return k.refuse(ctx, &w, err)
}

// reserve has the host keep room for a device.
func (k *Keeper) reserve(ctx context.Context, w *want) error {
	if slices.ContainsFunc(k.state.Reserved, func(r api.Reserved) bool { return r.Reservation == w.r }) {
		return nil
	}
	if k.silent != nil {
		return &unanswered{k.silent}
	}
	if err := k.current(ctx, w); err != nil {
		return err
	}
	if err := k.Server.Reserve(ctx, k.epoch(), &w.r); err != nil {
		return err
	}
	k.state.Reserved = append(k.state.Reserved, api.Reserved{Reservation: w.r})
	k.count(ActReserved)
	k.Log.Info("a lease is reserved", "host", k.Host.Name, "claim", w.r.Of, "vgpu", w.r.Key(), "node", w.r.Host, "memory", w.r.Memory)
	return nil
}

// unanswered: the host does not answer, which may pass.
type unanswered struct{ error }

func (u *unanswered) Unwrap() error { return u.error }

// passes reports whether an error says nothing of the claim: it is tried again.
func passes(err error) bool {
	var e *api.Error
	if errors.As(err, &e) {
		return e.Status == http.StatusPreconditionFailed || e.Status == http.StatusServiceUnavailable
	}
	for _, final := range []error{claim.ErrClaim, ErrGone, ErrNode, api.ErrName, api.ErrLimit} {
		if errors.Is(err, final) {
			return false
		}
	}
	return true // it was not asked, or did not answer
}

// forget lets GPUs get claims again that have rested, and forgets when claims were refused.
func (k *Keeper) forget() {
	now := k.Now()
	for id, since := range k.refused {
		if now.Sub(since) > k.Backoff {
			delete(k.refused, id)
		}
	}
	for uid, since := range k.lastRefused {
		if now.Sub(since) > mostWait {
			delete(k.lastRefused, uid)
		}
	}
}

// publish says what the host offers.
func (k *Keeper) publish() {
	if !k.known { // whatever an earlier controller has said stands
		return
	}
	s := pool.State{GPUs: k.state.GPUs, Unreachable: k.lost(), Leaving: k.Leaving, Elsewhere: k.elsewhere(), Refused: map[string]bool{}}
	s.NoDriver = k.Host.Local && !k.Cluster.DriverRuns(k.Host.Name)
	for id := range k.refused {
		s.Refused[id] = true
	}
	k.Publish(k.Host.Pool(&s))
}
