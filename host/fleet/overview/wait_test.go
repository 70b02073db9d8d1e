package overview

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"causeway/host/fleet/claim"
)

// waited runs a wait of up to a minute on a clock of its own, and returns what was said.
func waited(t *testing.T, wait func(context.Context, func(string)) error) (said []string, err error) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		err = wait(ctx, func(text string) { said = append(said, text) })
	})
	return said, err
}

// TestAwaitAllocated: each reason is said once, and what will never be served ends the wait.
func TestAwaitAllocated(t *testing.T) {
	for name, c := range map[string]struct {
		memory string
		then   func(f *fake, n int)
		said   []string // in order
		fails  string   // "": it is served
	}{
		"served": {"512Mi", func(f *fake, n int) {
			switch n {
			case 3:
				f.add("other", "causeway", "1Gi", "")
				f.pods = append(f.pods, corev1.Pod{})
				p := &f.pods[len(f.pods)-1]
				p.Namespace, p.Name, p.UID = "team", "p", "p-uid"
				claimName := "mine"
				p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "vgpu", ResourceClaimName: &claimName}}
			case 5:
				allocate(&f.claims[0], "512Mi", "0")
			}
		}, []string{"waits: " + noPod, "waits: the scheduler has not", "team/mine has 512MiB of gpu-1 on node1"}, ""},
		"too large": {"64Gi", nil, []string{"the largest GPU of the fleet has 2GiB"}, "the time is up"},
		"no room": {"2Gi", func(f *fake, n int) {
			if n == 1 {
				allocate(f.add("other", "causeway", "512Mi", corev1.PodRunning), "512Mi", "0")
			}
		}, []string{"it asks for 2GiB, and no GPU has more than 1536MiB free"}, "the time is up"},
		"no time": {"1Gi", func(f *fake, n int) {
			if n == 1 {
				f.claims[0].Spec.Devices.Requests[0].Exactly.Capacity.Requests[claim.Compute] = resource.MustParse("25")
				allocate(f.add("other", "causeway", "512Mi", corev1.PodRunning), "512Mi", "80")
			}
		}, []string{"it asks for 25 hundredths of a GPU's time, and no GPU with room has more than 20 left"}, "the time is up"},
		"drained": {"1Gi", func(f *fake, _ int) { SetDrained(&f.nodes[0], true) }, []string{"no GPU has more than 0B free: wait, or ask for less; these nodes take no pods (`causeway-fleet ls` says why): node1"}, "the time is up"},
		"no GPU":  {"1Gi", func(f *fake, _ int) { f.slices = nil }, []string{noPod, "offers no GPU"}, "the time is up"},
		"deleted": {"1Gi", func(f *fake, n int) { f.claims = f.claims[:min(1, 3-min(n, 3))] }, []string{noPod}, "somebody deleted it"},
		"refused": {"1Gi", func(f *fake, _ int) {
			allocate(&f.claims[0], "1Gi", "0")
			f.event("ResourceClaim", "uid-mine", "CausewayRefused", "no room; do not fit", time.Now())
		}, nil, "its node refuses it: no room; do not fit"},
		"unreadable": {"1Gi", func(f *fake, n int) {
			if n == 2 {
				f.noSlices = errors.New("unauthorized")
			}
		}, []string{noPod}, "unauthorized"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake()
			f.add("mine", "causeway", c.memory, "")
			if c.then != nil {
				f.looked = func(n int) { c.then(f, n) }
			}
			said, err := waited(t, func(ctx context.Context, say func(string)) error { return AwaitAllocated(ctx, f, "team", "mine", say) })
			if (err == nil) != (c.fails == "") || err != nil && !strings.Contains(err.Error(), c.fails) {
				t.Errorf("%v, want %q", err, c.fails)
			}
			if len(said) != len(c.said) {
				t.Fatalf("said %q, want %q", said, c.said)
			}
			for i := range said {
				if !strings.Contains(said[i], c.said[i]) {
					t.Errorf("said %q, want %q", said[i], c.said[i])
				}
			}
		})
	}
}

// TestAwaitEmpty: who is left is said when it changes; claims of other nodes keep nobody waiting.
func TestAwaitEmpty(t *testing.T) {
	f := newFake()
	allocate(f.add("one", "causeway", "512Mi", corev1.PodRunning), "512Mi", "0")
	allocate(f.add("two", "causeway", "512Mi", corev1.PodRunning), "512Mi", "0")
	allocate(f.add("else", "causeway", "512Mi", corev1.PodRunning), "512Mi", "0")
	f.claims[2].Status.Allocation.Devices.Results[0].Pool = "node2"
	f.looked = func(n int) {
		if n == 3 || n == 5 {
			f.claims = f.claims[1:]
		}
	}
	wait := func(ctx context.Context, say func(string)) error { return AwaitEmpty(ctx, f, "node1", say) }
	said, err := waited(t, wait)
	want := []string{"claims that have a GPU of node1 still, 2: team/one (pods: pod-one); team/two (pods: pod-two)", "claims that have a GPU of node1 still, 1: team/two (pods: pod-two)", "no claim has a GPU of node1"}
	if err != nil || !slices.Equal(said, want) {
		t.Errorf("%v, %q", err, said)
	}
	allocate(f.add("three", "causeway", "512Mi", corev1.PodRunning), "512Mi", "0")
	if said, err = waited(t, wait); !errors.Is(err, ErrWaited) || len(said) != 1 || !strings.Contains(err.Error(), "team/three") {
		t.Errorf("%v, %q", err, said)
	}
	_, err = waited(t, func(ctx context.Context, say func(string)) error {
		ctx, stop := context.WithCancel(ctx)
		return AwaitEmpty(ctx, f, "node1", func(text string) { say(text); stop() })
	})
	if !errors.Is(err, context.Canceled) || errors.Is(err, ErrWaited) || !strings.Contains(err.Error(), "interrupted: claims that have") {
		t.Errorf("interrupted: %v", err)
	}
}

// TestSetDrained: the taint is there once, and others stay.
func TestSetDrained(t *testing.T) {
	n := &corev1.Node{}
	n.Spec.Taints = []corev1.Taint{{Key: "other", Effect: corev1.TaintEffectNoExecute}}
	if !SetDrained(n, true) || SetDrained(n, true) || len(n.Spec.Taints) != 2 || n.Spec.Taints[1].Effect != corev1.TaintEffectNoSchedule {
		t.Errorf("%+v", n.Spec.Taints)
	}
	if !SetDrained(n, false) || SetDrained(n, false) || len(n.Spec.Taints) != 1 || n.Spec.Taints[0].Key != "other" {
		t.Errorf("%+v", n.Spec.Taints)
	}
}
