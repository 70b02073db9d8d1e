package doctor

import (
	"strings"
	"testing"
	"time"

	"causeway/host/api"
	"causeway/host/api/apitest"
	"causeway/remote"
)

func TestServers(t *testing.T) {
	good := api.Server{Name: "gpu1", RoundTrip: 340 * time.Microsecond, Offer: api.Offer{Protocol: remote.ProtocolVersion}}
	old := api.Server{Name: "gpu2", Offer: api.Offer{Version: "0.1", Protocol: remote.ProtocolVersion + 1}}
	down := api.Server{Name: "gpu3", Error: "no GPU server listens there"}
	for name, c := range map[string]struct {
		list  []api.Server
		state State
		want  []string
	}{
		"none":        {nil, OK, []string{"none"}},
		"one":         {[]api.Server{good}, OK, []string{"gpu1, 0.34 ms"}},
		"an old one":  {[]api.Server{good, old}, Failed, []string{"gpu2 has Causeway 0.1", "the same"}},
		"two not met": {[]api.Server{old, down}, Failed, []string{"gpu2", "gpu3: no GPU server listens there"}},
	} {
		t.Run(name, func(t *testing.T) {
			run := runDir(t)
			f := &apitest.Fake{Servers: c.list}
			f.Serve(t, run)
			client := api.NewClient(api.Socket(run))
			defer client.Close()
			r := servers(t.Context(), &Machine{Daemon: client})
			if r.State != c.state || (r.Do != "") != (c.state != OK) {
				t.Errorf("%+v, want %s", r, c.state)
			}
			for _, word := range c.want {
				if !strings.Contains(r.Found, word) {
					t.Errorf("%q lacks %q", r.Found, word)
				}
			}
		})
	}
}
