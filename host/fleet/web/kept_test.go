package web

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"causeway/host/fleet/overview"
)

// TestKept: many who ask have one text, made once for each look at the fleet and each second; what
// could not be made is made again.
func TestKept(t *testing.T) {
	var k kept
	made := 0
	ask := func(look uint64, now time.Time, fails error) {
		t.Helper()
		var wg sync.WaitGroup
		for range 50 {
			wg.Go(func() {
				if b, err := k.made("now", Seen{look: look}, now, func(Seen) ([]byte, error) { made++; return []byte("x"), fails }); !errors.Is(err, fails) || fails == nil && string(b) != "x" {
					t.Errorf("%q, %v", b, err)
				}
			})
		}
		wg.Wait()
	}
	for i, step := range []struct {
		look  uint64
		after time.Duration
		fails error
		made  int
	}{{1, 0, nil, 1}, {1, keepFor / 2, nil, 1}, {1, keepFor, nil, 2}, {2, keepFor, nil, 3}, {3, keepFor, errors.New("no"), 53}, {3, keepFor, nil, 54}} {
		if ask(step.look, start.Add(step.after), step.fails); made != step.made {
			t.Fatalf("step %d: made %d times, not %d", i, made, step.made)
		}
	}
}

// TestMany: of a fleet with thousands of claims a second page costs next to nothing.
func TestMany(t *testing.T) {
	f := fleet()
	for range 2000 {
		f.Claims = append(f.Claims, overview.Claim{Namespace: "team", Name: "one-of-many", State: overview.Waiting, Created: start, Memory: "1Gi"})
	}
	s := &Source{last: Seen{Fleet: f, At: start, look: 1}}
	mux := http.NewServeMux()
	if err := (&Page{Source: s, Now: func() time.Time { return start }}).Register(mux); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"/", "/now", "/fleet.json"} {
		get := func() {
			to := discard{http.Header{}}
			mux.ServeHTTP(to, httptest.NewRequest(http.MethodGet, path, nil))
		}
		get()
		if n := testing.AllocsPerRun(20, get); n > 200 {
			// And tens of thousands for one that is made.
			t.Errorf("%s: %v allocations", path, n)
		}
	}
}

// discard is an answer that nobody keeps.
type discard struct{ header http.Header }

func (d discard) Header() http.Header         { return d.header }
func (d discard) Write(b []byte) (int, error) { return len(b), nil }
func (d discard) WriteHeader(int)             {}
