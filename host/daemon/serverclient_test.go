package daemon

import (
	"errors"
	"net"
	"net/http"
	"path/filepath"
	"testing"
	"time"

	"causeway/host/api"
)

// TestServerClient: a client is made for a server once, and again when another was asked for
// meanwhile; its connections are closed when that is, and at the end, not before.
func TestServerClient(t *testing.T) {
	dir := t.TempDir()
	closed := map[string]chan struct{}{}
	for _, name := range []string{"gpu1", "gpu2"} {
		ln, err := net.Listen("unix", filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		over := make(chan struct{}, 8)
		s := &http.Server{Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}), ConnState: func(_ net.Conn, now http.ConnState) {
			if now == http.StateClosed {
				over <- struct{}{}
			}
		}}
		closed[name] = over
		go func() { _ = s.Serve(ln) }()
		t.Cleanup(func() { _ = s.Close() })
	}
	no, made := errors.New("no such server"), 0
	s := &serverClient{clients: &serverClients{}, connect: func(name string) (*api.Client, error) {
		if closed[name] == nil {
			return nil, no
		}
		made++
		return api.NewClient(filepath.Join(dir, name)), nil
	}}
	s.close() // none yet
	if _, err := s.of("gpu3"); !errors.Is(err, no) {
		t.Error(err)
	}
	var last *api.Client
	for i, step := range []struct {
		name string
		anew bool
		fail error
		ends string // whose connections do
	}{
		{"gpu1", true, nil, ""}, {"gpu1", false, nil, ""}, {"gpu3", false, no, ""}, {"gpu1", false, nil, ""}, {"gpu2", true, nil, "gpu1"}, {"gpu2", false, nil, ""}, {"gpu1", true, nil, "gpu2"},
	} {
		was := made
		c, err := s.of(step.name)
		if !errors.Is(err, step.fail) || (made > was) != step.anew || step.fail == nil && (c == last) == step.anew {
			t.Fatalf("step %d: %v, made %d, %v", i, c, made-was, err)
		}
		if step.ends != "" {
			ends(t, closed[step.ends])
		}
		if step.fail != nil {
			continue
		}
		last = c
		if err := c.Do(t.Context(), http.MethodGet, "/v1/anything", nil, nil); err != nil {
			t.Fatal(err)
		}
		for name, over := range closed {
			if len(over) > 0 {
				t.Fatalf("step %d: a connection to %s is closed", i, name)
			}
		}
	}
	s.close()
	ends(t, closed["gpu1"])
}

// ends waits for what a server hears of a connection's end.
func ends(t *testing.T, over <-chan struct{}) {
	t.Helper()
	select {
	case <-over:
	case <-time.After(20 * time.Second):
		t.Fatal("the connection stays")
	}
}
