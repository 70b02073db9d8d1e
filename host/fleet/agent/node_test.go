package agent

import (
	"errors"
	"log/slog"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"
)

// TestRegisterBesideOthers: the cluster's controllers write to a Node that is new, too; that its
// status was read before they did does not end the agent.
func TestRegisterBesideOthers(t *testing.T) {
	client, others := fake.NewClientset(), 2
	client.PrependReactor("update", "nodes", func(k8stesting.Action) (bool, runtime.Object, error) {
		if others == 0 {
			return false, nil, nil
		}
		others--
		return true, nil, apierrors.NewConflict(schema.GroupResource{Resource: "nodes"}, "hosta", errors.New("the object has been modified"))
	})
	n := &Node{Client: client, Name: "hosta", Version: "1", Log: slog.New(slog.DiscardHandler)}
	if _, err := n.Register(t.Context()); err != nil {
		t.Fatal(err)
	}
	if have, err := client.CoreV1().Nodes().Get(t.Context(), "hosta", metav1.GetOptions{}); err != nil || !isReady(have) || others != 0 {
		t.Errorf("%+v, %v, %d conflicts left", have.Status.Conditions, err, others)
	}
}
