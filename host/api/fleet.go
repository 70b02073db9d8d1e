package api

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"

	"causeway/host/limit"
)

// What the controller of a fleet and the causewayd of a GPU server say to each other, on the port
// for other hosts: docs/KUBERNETES.md. The controller says which host may have which lease; hosts
// take those leases as any.

// ClaimPrefix begins the name by which causewayds know what a fleet's claim has, where others have
// a VM's name: claim-UID.
const ClaimPrefix = "claim-"

// FleetState is a GPU server's heartbeat, which the controller of its fleet asks for.
type FleetState struct {
	Version  string `json:"version"`
	Protocol uint32 `json:"protocol"` // remote.ProtocolVersion
	// Epoch is that of the newest controller which the server has heard of.
	Epoch    uint64     `json:"epoch"`
	GPUs     []FleetGPU `json:"gpus"`
	Reserved []Reserved `json:"reserved"`
}

// FleetGPU is a GPU, and how much of its memory claims may have: all that was not promised to
// others.
type FleetGPU struct {
	GPU
	Claimable uint64 `json:"claimable"`
}

// Reservation is a lease that a host may have, and room that is kept for it until then. The server
// gives the leases of a fleet's claims to nobody else and in no other size.
type Reservation struct {
	VM   string `json:"vm"`   // at the host: ClaimPrefix and the claim's UID
	Name string `json:"name"` // of the vGPU there: gpu0
	ID   string `json:"id"`   // of what was allocated: another one takes the place of this
	Of   string `json:"of"`   // the claim, as NAMESPACE/NAME
	Host string `json:"host"` // that may have it, by its certificate's name
	// Heir is the host that may take the lease over with its VM; empty: none. Moved counts how
	// often it has changed hosts: who has not heard of the last time changes nothing.
	Heir  string `json:"heir,omitempty"`
	Moved uint64 `json:"moved,omitempty"`
	GPU   string `json:"gpu"` // UUID

	Memory limit.Memory `json:"memory"`
	Share  limit.Share  `json:"share"`
}

// Reserved is a reservation that a server has.
type Reserved struct {
	Reservation
	Leased bool `json:"leased,omitempty"` // its host has the lease
}

// Key is VM/NAME.
func (r *Reservation) Key() string { return r.VM + "/" + r.Name }

// Lease is the vGPU at the server that its host's lease is, unless that has moved: HOST/VM:NAME.
func (r *Reservation) Lease() string { return r.Host + "/" + r.VM + ":" + r.Name }

// mostOf bounds Of: a namespace's and a claim's name.
const mostOf = 63 + 1 + 253

// Check says what is wrong with a reservation in itself.
func (r *Reservation) Check() error {
	for _, n := range []string{r.VM, r.Name, r.Host, r.GPU, r.ID, r.VM + ":" + r.Name} {
		if !isName(n) {
			return fmt.Errorf("%w: %q in a reservation", ErrName, n)
		}
	}
	if r.Heir != "" && (!isName(r.Heir) || r.Heir == r.Host) || r.Moved > mostMoved {
		return fmt.Errorf("%w: the heir %.100q of %s in a reservation that has moved %d times", ErrName, r.Heir, r.Host, r.Moved)
	}
	if len(r.Of) > mostOf || !plain(r.Of) {
		return fmt.Errorf("%w: the claim of a reservation", ErrName)
	}
	if r.Memory == 0 {
		return fmt.Errorf("%w: a reservation of no memory", ErrLimit)
	}
	if err := r.Memory.Check(); err != nil {
		return err
	}
	return r.Share.Check()
}

// mostMoved leaves room for more moves.
const mostMoved = 1 << 62

func plain(s string) bool {
	for _, c := range []byte(s) {
		if c <= ' ' || c > '~' {
			return false
		}
	}
	return true
}

// epochQuery has a request carry the controller's epoch.
func epochQuery(path string, epoch uint64) string {
	return path + "?" + url.Values{"epoch": {strconv.FormatUint(epoch, 10)}}.Encode()
}

// FleetPath is where a server tells of itself, ReservationPath where one of its reservations is.
const FleetPath = "/v1/fleet"

// ReservationPath is where a reservation is.
func ReservationPath(vm, name string) string {
	return FleetPath + "/reservations/" + url.PathEscape(vm) + "/" + url.PathEscape(name)
}

// Fleet asks a GPU server for its heartbeat, as the controller of an epoch.
func (c *Client) Fleet(ctx context.Context, epoch uint64) (io.ReadCloser, error) {
	return c.Open(ctx, http.MethodGet, epochQuery(FleetPath, epoch), nil)
}

// Reserve has a GPU server keep room for a lease, and let its host have it.
func (c *Client) Reserve(ctx context.Context, epoch uint64, r *Reservation) error {
	return c.Do(ctx, http.MethodPut, epochQuery(ReservationPath(r.VM, r.Name), epoch), r, nil)
}

// Withdraw ends a reservation, with the lease that its host has of it. One that is not there any
// more, or is another by now, is no error.
func (c *Client) Withdraw(ctx context.Context, epoch uint64, r *Reservation) error {
	return c.Do(ctx, http.MethodDelete, epochQuery(ReservationPath(r.VM, r.Name), epoch)+"&id="+url.QueryEscape(r.ID), nil, nil)
}
