package node

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"
)

// fakeKubelet answers as the kubelet of 1.36 does: pkg/kubelet/apis/podresources/server_v1.go.
type fakeKubelet struct {
	podresources.UnimplementedPodResourcesListerServer

	pod *podresources.PodResources
	err error
}

func (f *fakeKubelet) Get(_ context.Context, r *podresources.GetPodResourcesRequest) (*podresources.GetPodResourcesResponse, error) {
	if f.err != nil {
		return nil, f.err
	}
	if f.pod == nil || r.PodName != f.pod.Name || r.PodNamespace != f.pod.Namespace {
		return nil, fmt.Errorf("pod %s in namespace %s not found", r.PodName, r.PodNamespace)
	}
	return &podresources.GetPodResourcesResponse{PodResources: f.pod}, nil
}

// kubelet is one that answers at a socket, and who asks there.
func kubelet(t *testing.T, f *fakeKubelet) *Kubelet {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "kubelet.sock")
	ln, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer()
	podresources.RegisterPodResourcesListerServer(s, f)
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(ln) }()
	k, err := NewKubelet(socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := k.Close(); err != nil {
			t.Error(err)
		}
		s.Stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return k
}

// TestKubelet: what containers have is the kubelet's word; a pod that it has not is another node's,
// and whatever else it says is an error.
func TestKubelet(t *testing.T) {
	dynamic := func(names ...string) (list []*podresources.DynamicResource) {
		for _, n := range names {
			list = append(list, &podresources.DynamicResource{ClaimNamespace: "team", ClaimName: n})
		}
		return list
	}
	f := &fakeKubelet{pod: &podresources.PodResources{Namespace: "team", Name: "p", Containers: []*podresources.ContainerResources{
		{Name: "one", DynamicResources: dynamic("a", "b")}, {Name: "none"}, nil,
		{Name: "other", DynamicResources: []*podresources.DynamicResource{{ClaimNamespace: "elsewhere", ClaimName: "a"}, nil}},
	}}}
	k := kubelet(t, f)
	got, err := k.Containers(t.Context(), "team", "p")
	if want := []Container{{"one", []string{"a", "b"}}, {"none", nil}, {}, {Name: "other"}}; err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v, want %+v", got, err, want)
	}
	for _, name := range []string{"q", ""} {
		if _, err := k.Containers(t.Context(), "team", name); !errors.Is(err, ErrNoPod) {
			t.Errorf("%q: %v", name, err)
		}
	}
	if _, err := k.Containers(t.Context(), "elsewhere", "p"); !errors.Is(err, ErrNoPod) {
		t.Error(err)
	}
	f.err = status.Error(codes.NotFound, "gone")
	if _, err := k.Containers(t.Context(), "team", "p"); !errors.Is(err, ErrNoPod) {
		t.Error(err)
	}
	for _, e := range []error{status.Error(codes.ResourceExhausted, "too many requests"), errors.New("no resources"), status.Error(codes.Unimplemented, "not found")} {
		f.err = e
		if _, err := k.Containers(t.Context(), "team", "p"); err == nil || errors.Is(err, ErrNoPod) || !strings.Contains(err.Error(), "pod resources") {
			t.Errorf("%v: %v", e, err)
		}
	}
}

// TestNoKubelet: a socket at which nobody listens is an error that names it, when who asks has
// waited long enough.
func TestNoKubelet(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "kubelet.sock")
	k, err := NewKubelet(socket)
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := k.Containers(ctx, "team", "p"); err == nil || errors.Is(err, ErrNoPod) || !strings.Contains(err.Error(), socket) {
		t.Error(err)
	}
}
