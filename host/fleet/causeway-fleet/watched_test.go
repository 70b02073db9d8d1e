package main

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"causeway/host/fleet/overview"
)

// eventually reads the fleet until it is as wanted.
func eventually(t *testing.T, w *watched, wanted func(*overview.Fleet, error) bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		f, err := overview.Read(t.Context(), w, "")
		if wanted(f, err) {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%+v, %v", f, err)
		}
	}
}

// TestWatched: what is made later is seen without being listed again; pods without claims are
// nobody's concern, and what may not be read is said.
func TestWatched(t *testing.T) {
	node, driver := "node1", "gpu.causeway.dev"
	slice := &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: "s"}, Spec: resourceapi.ResourceSliceSpec{NodeName: &node, Driver: driver, Devices: []resourceapi.Device{{Name: "gpu-1"}}}}
	plain := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "plain"}}
	client := fake.NewClientset(slice, plain)
	client.PrependReactor("list", "events", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, errors.New("forbidden") })
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	w, err := watch(ctx, client)
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, w, func(f *overview.Fleet, err error) bool {
		return err == nil && len(f.Nodes) == 1 && len(f.Unread) == 1 && strings.Contains(f.Unread[0], "forbidden")
	})
	name := "c"
	rc := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: name}}
	rc.Spec.Devices.Requests = []resourceapi.DeviceRequest{{Name: "gpu", Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: overview.Class}}}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "with"}}
	pod.Spec = corev1.PodSpec{NodeName: node, Hostname: "h", ResourceClaims: []corev1.PodResourceClaim{{Name: "vgpu", ResourceClaimName: &name}}}
	if _, err := client.ResourceV1().ResourceClaims("team").Create(ctx, rc, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := client.CoreV1().Pods("team").Create(ctx, pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, w, func(f *overview.Fleet, err error) bool {
		return err == nil && len(f.Claims) == 1 && len(f.Claims[0].Pods) == 1 && f.Claims[0].Pods[0] == "with"
	})
	kept, err := w.Pods(ctx, "team")
	if err != nil || len(kept) != 1 || kept[0].Spec.Hostname != "" || kept[0].Spec.NodeName != node {
		t.Errorf("%+v, %v", kept, err)
	}
	if other, err := w.Pods(ctx, "other"); err != nil || len(other) != 0 {
		t.Errorf("%+v, %v", other, err)
	}
	if other, err := w.Claims(ctx, "other"); err != nil || len(other) != 0 {
		t.Errorf("%+v, %v", other, err)
	}
}
