package agent

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestForgets: who makes pods for domains that are not there, with claims that are refused, and
// deletes them, does not have the agent grow.
func TestForgets(t *testing.T) {
	t.Parallel()
	r := newRig(t, "vm1")
	for i := range 3 {
		name := fmt.Sprintf("refused%d", i)
		r.claim(name, "64Mi", "", name) // for a container
		r.pod(name, "vm1", name)
		r.is(name, corev1.PodFailed)
		waits := fmt.Sprintf("waits%d", i)
		r.claim(waits, "64Mi", forVM, waits)
		r.pod(waits, "of-"+waits, waits)
		r.event("no such domain: of-" + waits)
		for _, n := range []string{name, waits} {
			if err := r.client.CoreV1().Pods("team").Delete(t.Context(), n, metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
		}
	}
	r.until("nothing is kept of pods that are gone", func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return len(r.reported) == 0 && len(r.domains) == 0
	})
}
