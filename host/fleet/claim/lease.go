package claim

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	kjson "sigs.k8s.io/json"

	"causeway/host/api"
)

// Conditions of a device on the network, which the fleet's controller sets: a pod is bound when
// LeaseReady is true, and when LeaseRefused is the scheduler looks for another device.
const (
	LeaseReady   = "causeway.dev/LeaseReady"
	LeaseRefused = "causeway.dev/LeaseRefused"
)

// LeaseKind is that of a device's data in a claim's status.
const LeaseKind = "Lease"

// Lease is where a claim's device on the network is, by the word of the fleet's controller. It is
// no secret: a host gets the lease by its certificate.
type Lease struct {
	Server string `json:"server"` // as nodes' causewayds are configured with it
	GPU    string `json:"gpu"`    // UUID there
	Epoch  uint64 `json:"epoch"`  // of the controller that reserved it
}

type leaseText struct {
	metav1.TypeMeta `json:",inline"`
	Lease
}

// Data is what stands in a claim's status.
func (l Lease) Data() (*runtime.RawExtension, error) {
	b, err := json.Marshal(leaseText{metav1.TypeMeta{APIVersion: APIVersion, Kind: LeaseKind}, l})
	return &runtime.RawExtension{Raw: b}, err
}

// ParseLease reads and checks a device's data.
func ParseLease(b []byte) (Lease, error) {
	var t leaseText
	if len(b) > mostParameters {
		return Lease{}, wrong("a lease of %d bytes, more than %d", len(b), mostParameters)
	}
	strict, err := kjson.UnmarshalStrict(b, &t)
	if err = errors.Join(append(strict, err)...); err != nil {
		return Lease{}, wrong("lease: %w", err)
	}
	if t.APIVersion != APIVersion || t.Kind != LeaseKind {
		return Lease{}, wrong("a lease of %q, kind %q: use %s, kind %s", t.APIVersion, t.Kind, APIVersion, LeaseKind)
	}
	if err := api.CheckServer(t.Server); err != nil || t.Server == api.RemoteAny || !api.IsName(t.GPU) {
		return Lease{}, wrong("a lease of the GPU %.100q of the server %.100q", t.GPU, t.Server)
	}
	return t.Lease, nil
}

// OnNetwork reports whether a device is one whose lease is waited for.
func OnNetwork(r *resourceapi.DeviceRequestAllocationResult) bool {
	return r.Driver == Driver && slices.Contains(r.BindingConditions, LeaseReady)
}

// StatusOf is what a claim's status says of an allocated device; nil: nothing.
func StatusOf(c *resourceapi.ResourceClaim, r *resourceapi.DeviceRequestAllocationResult) *resourceapi.AllocatedDeviceStatus {
	for i := range c.Status.Devices {
		s := &c.Status.Devices[i]
		if s.Driver == r.Driver && s.Pool == r.Pool && s.Device == r.Device && sameShare(s.ShareID, r) {
			return s
		}
	}
	return nil
}

func sameShare(id *string, r *resourceapi.DeviceRequestAllocationResult) bool {
	if id == nil || r.ShareID == nil {
		return id == nil && r.ShareID == nil
	}
	return *id == string(*r.ShareID)
}

// leaseOf is the lease of an allocated device; nil: it is not ready.
func leaseOf(c *resourceapi.ResourceClaim, r *resourceapi.DeviceRequestAllocationResult) (*Lease, error) {
	s := StatusOf(c, r)
	if s == nil || s.Data == nil || !isTrue(s.Conditions, LeaseReady) {
		return nil, nil
	}
	l, err := ParseLease(s.Data.Raw)
	return &l, err
}

func isTrue(list []metav1.Condition, name string) bool {
	return slices.ContainsFunc(list, func(c metav1.Condition) bool { return c.Type == name && c.Status == metav1.ConditionTrue })
}

// poolPrefix begins the names of pools that the fleet's controller publishes.
const poolPrefix = "fleet/"

// PoolOf is the pool of a GPU host that the fleet's controller publishes.
func PoolOf(host string) string { return poolPrefix + host }

// HostOf is the GPU host whose pool that is; false: it is none of the controller's.
func HostOf(pool string) (string, bool) { return strings.CutPrefix(pool, poolPrefix) }

// NodeOf is the node to which an allocation binds its pods; false: to no single one.
func NodeOf(a *resourceapi.AllocationResult) (string, bool) {
	if a.NodeSelector == nil || len(a.NodeSelector.NodeSelectorTerms) != 1 {
		return "", false
	}
	for _, f := range a.NodeSelector.NodeSelectorTerms[0].MatchFields {
		if f.Key == "metadata.name" && f.Operator == "In" && len(f.Values) == 1 {
			return f.Values[0], true
		}
	}
	return "", false
}
