package main

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"

	"causeway/host/fleet/overview"
)

// objects are a cluster's pods and claims.
type objects struct {
	overview.Cluster

	pods   []corev1.Pod
	claims []resourceapi.ResourceClaim
	down   error
}

func (o *objects) Pods(context.Context, string) ([]corev1.Pod, error) { return o.pods, o.down }
func (o *objects) Claims(context.Context, string) ([]resourceapi.ResourceClaim, error) {
	return o.claims, nil
}

func (o *objects) pod(namespace, name string, claims ...string) *corev1.Pod {
	p := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(namespace + name)}, Status: corev1.PodStatus{Phase: corev1.PodPending}}
	for _, c := range claims {
		p.Spec.ResourceClaims = append(p.Spec.ResourceClaims, corev1.PodResourceClaim{Name: c, ResourceClaimName: &c})
	}
	o.pods = append(o.pods, p)
	return &o.pods[len(o.pods)-1]
}

func (o *objects) claim(namespace, name string) {
	o.claims = append(o.claims, resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}})
}

// TestMissing: a pod that names another namespace's claim, or none's, has an event that says so,
// once for a good while, and not while its claim may be about to come.
func TestMissing(t *testing.T) {
	o := &objects{}
	o.claim("team", "vgpu")
	o.pod("other", "foreign", "vgpu")
	o.pod("team", "fine", "vgpu")
	o.pod("team", "two", "nowhere", "nowhere")
	template := "sized"
	o.pod("team", "templated").Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "t", ResourceClaimTemplateName: &template}}
	o.pod("team", "placed", "nowhere").Spec.NodeName = "node1"
	o.pod("team", "ended", "nowhere").Status.Phase = corev1.PodFailed
	o.pod("team", "leaving", "nowhere").DeletionTimestamp = &metav1.Time{}
	events := record.NewFakeRecorder(16)
	m := &missing{Cluster: o, events: events, log: slog.New(slog.DiscardHandler)}
	now := time.Unix(1000, 0)
	look := func(after time.Duration, want ...string) {
		t.Helper()
		now = now.Add(after)
		if err := m.look(t.Context(), now); err != nil {
			t.Fatal(err)
		}
		for _, w := range want {
			select {
			case e := <-events.Events:
				if !strings.HasPrefix(e, "Warning NoResourceClaim ") || !strings.Contains(e, w) {
					t.Errorf("%q, want %q", e, w)
				}
			default:
				t.Errorf("no event: %q", w)
			}
		}
		select {
		case e := <-events.Events:
			t.Errorf("also: %q", e)
		default:
		}
	}
	look(0)
	look(missingEvery)
	look(missingEvery, "the namespace other has no ResourceClaim vgpu", "the namespace team has no ResourceClaim nowhere")
	look(missingEvery)
	o.claim("other", "vgpu")
	look(missingAgain, "the namespace team has no ResourceClaim nowhere")
	o.claims = o.claims[:1] // gone again, before the pod was scheduled
	look(missingEvery)
	look(missingFirst, "the namespace other has no ResourceClaim vgpu")
	o.down = errors.New("not read yet")
	if err := m.look(t.Context(), now); !errors.Is(err, o.down) {
		t.Error(err)
	}
}
