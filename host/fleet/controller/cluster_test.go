package controller

import (
	"log/slog"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
)

// TestOwner: slices are the namespace's, so that they go with it; where it may not be read they are
// nobody's, and are published all the same.
func TestOwner(t *testing.T) {
	c := &cluster{client: fake.NewClientset(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "causeway", UID: "1-a"}})}
	if o := c.owner(t.Context(), "causeway", slog.New(slog.DiscardHandler)); o == nil || o.Kind != "Namespace" || o.Name != "causeway" || o.UID != "1-a" {
		t.Errorf("%+v", o)
	}
	if o := c.owner(t.Context(), "other", slog.New(slog.DiscardHandler)); o != nil {
		t.Errorf("%+v", o)
	}
}
