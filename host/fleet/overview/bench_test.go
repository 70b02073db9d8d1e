package overview

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"causeway/host/fleet/claim"
)

// many is a fleet of n claims: a node for 10, a pod and an event for each.
func many(n int) *fake {
	f := &fake{}
	for i := range n {
		node, name := fmt.Sprintf("node%d", i/10), fmt.Sprintf("c%d", i)
		if i%10 == 0 {
			f.nodes = append(f.nodes, corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}})
			f.slices = append(f.slices, resourceapi.ResourceSlice{Spec: resourceapi.ResourceSliceSpec{Driver: claim.Driver, NodeName: &node, Pool: resourceapi.ResourcePool{Name: node},
				Devices: []resourceapi.Device{{Name: "gpu-1", Capacity: map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{claim.Memory: {Value: resource.MustParse("80Gi")}}}}}})
		}
		c := resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: name, UID: types.UID(name)}}
		c.Status.Allocation = &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{Results: []resourceapi.DeviceRequestAllocationResult{
			{Driver: claim.Driver, Pool: node, Device: "gpu-1", ConsumedCapacity: map[resourceapi.QualifiedName]resource.Quantity{claim.Memory: resource.MustParse("8Gi")}}}}}
		f.claims = append(f.claims, c)
		f.pods = append(f.pods, corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: name, UID: types.UID("p" + name)},
			Spec: corev1.PodSpec{ResourceClaims: []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimName: &name}}}})
		f.events = append(f.events, corev1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: "team"}, Type: corev1.EventTypeWarning, InvolvedObject: corev1.ObjectReference{Kind: "ResourceClaim", UID: c.UID}, Message: "no room"})
	}
	return f
}

// BenchmarkRead: what a claim costs is the same in a fleet of ten times the claims.
func BenchmarkRead(b *testing.B) {
	for _, n := range []int{1000, 10000} {
		f := many(n)
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			for b.Loop() {
				v, err := Read(b.Context(), f, "")
				if err != nil || len(v.Claims) != n || v.Nodes[0].GPUs[0].Claims != 10 || len(v.Claims[0].Pods) != 1 {
					b.Fatalf("%d claims, %v", len(v.Claims), err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N)/float64(n), "µs/claim")
		})
	}
}
