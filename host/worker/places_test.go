package worker

import (
	"runtime"
	"testing"

	"causeway/host/worker/link"
	"causeway/remote"
	"causeway/remote/mtls"
)

// TestPlaces: a worker whose session may have connections for copies has places for who sleeps in
// the kernel, once, however often it is configured; none for a session of this host, nor where
// cores are few and nobody sleeps so.
func TestPlaces(t *testing.T) {
	const connections, few, plenty = 4, 2, 8
	had := runtime.GOMAXPROCS(0)
	defer runtime.GOMAXPROCS(had)
	more := remote.AwakePlaces(connections, plenty)
	if more < connections {
		t.Fatalf("%d for %d connections", more, connections)
	}
	near := link.Config{Branches: connections}
	served, relayed := near, near
	served.TLS, relayed.Relay = &mtls.Pinned{}, &link.Relay{}
	for _, c := range []struct {
		name  string
		told  []link.Config
		cores int
		want  int
	}{
		{"of this host", []link.Config{near, near}, plenty, 0},
		{"served", []link.Config{served, served}, plenty, more},
		{"passed on, behind getting ready for one of this host", []link.Config{near, relayed}, plenty, more},
		{"where cores are few", []link.Config{served}, few, 0},
	} {
		runtime.GOMAXPROCS(had)
		var s starter
		for _, cfg := range c.told {
			s.havePlaces(cfg, c.cores)
		}
		if n := runtime.GOMAXPROCS(0) - had; n != c.want {
			t.Errorf("%s: %d more places, want %d", c.name, n, c.want)
		}
	}
}
