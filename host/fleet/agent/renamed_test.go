package agent

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestRenamed: who changes the domain of a pod that runs gets no second domain with the device of
// the first: the pod has failed, and neither domain has anything.
func TestRenamed(t *testing.T) {
	t.Parallel()
	r := newRig(t, "vm1", "vm2")
	r.claim("a", "1Gi", forVM, "p")
	r.pod("p", "vm1", "a")
	r.is("p", corev1.PodRunning)
	r.h.set(func() { r.h.deaf = true }) // also while the guest does not let go
	p, err := r.client.CoreV1().Pods("team").Get(t.Context(), "p", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	p.Annotations[DomainKey] = "vm2"
	if _, err := r.client.CoreV1().Pods("team").Update(t.Context(), p, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	r.event("names another domain")
	r.holds("1 made, 1 in vm1")
	r.h.set(func() { r.h.deaf = false })
	r.is("p", corev1.PodFailed)
	r.holds("0 made, 0 in vm1")
	if got := r.h.has("vm2"); got != "0 made, 0 in vm2" {
		t.Error(got)
	}
	if left, err := r.Records.All(); len(left) != 0 || err != nil {
		t.Errorf("%v %v", left, err)
	}
}
