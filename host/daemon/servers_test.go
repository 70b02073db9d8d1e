package daemon

import (
	"crypto/tls"
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"causeway/host/api"
	"causeway/remote"
)

// TestRank: of the servers that have what is wished, real GPUs go before software ones, the near
// before the far, the idle before the busy.
func TestRank(t *testing.T) {
	const gib = 1 << 30
	h200 := func(promised uint64) api.GPU {
		return api.GPU{ID: "GPU-12345678-0", Backend: "cuda", Name: "NVIDIA H200", Memory: 141 * gib, Promised: promised}
	}
	soft := api.GPU{ID: "GPU-soft", Backend: "soft", Name: "Causeway Software GPU", Memory: 8 * gib}
	drained := h200(0)
	drained.Drained = true
	server := func(name string, rtt time.Duration, gpus ...api.GPU) api.Server {
		return api.Server{Name: name, RoundTrip: rtt, Offer: api.Offer{Protocol: remote.ProtocolVersion, GPUs: gpus}}
	}
	old, down := server("old", 1, h200(0)), api.Server{Name: "down", Error: "no route"}
	old.Protocol++
	all := []api.Server{
		server("soft", 10*time.Microsecond, soft), server("far", 2*time.Millisecond, h200(0)), server("busy", 120*time.Microsecond, h200(100*gib)),
		server("idle", 180*time.Microsecond, h200(20*gib)), server("drained", time.Microsecond, drained), old, down,
	}
	for name, c := range map[string]struct {
		spec api.Spec
		want string
	}{
		"any":             {api.Spec{}, "idle busy far soft"},
		"a model":         {api.Spec{GPU: "h200"}, "idle busy far"},
		"much memory":     {api.Spec{GPU: "any", Limits: api.Limits{Memory: 100 * gib}}, "idle far"},
		"a software GPU":  {api.Spec{GPU: "soft"}, "soft"},
		"a number":        {api.Spec{GPU: "0"}, "idle busy far"},
		"a UUID":          {api.Spec{GPU: "GPU-12345678"}, "idle busy far"},
		"what nobody has": {api.Spec{GPU: "A100"}, ""},
		"too much":        {api.Spec{Limits: api.Limits{Memory: 200 * gib}}, ""},
	} {
		var got []string
		for _, i := range rank(all, &c.spec) {
			got = append(got, all[i].Name)
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%s: %v, want %s", name, got, c.want)
		}
		for i := range all {
			if why, _ := unfit(&all[i], &c.spec); (why == "") != slices.Contains(got, all[i].Name) {
				t.Errorf("%s: %s: %q", name, all[i].Name, why)
			}
		}
	}
}

// TestNobodyTakes: what each server has answered is said; to ask for less memory only where one has
// no room for it.
func TestNobodyTakes(t *testing.T) {
	const gib = 1 << 30
	server := func(name string, gpus ...api.GPU) api.Server {
		return api.Server{Name: name, Offer: api.Offer{Protocol: remote.ProtocolVersion, GPUs: gpus}}
	}
	real := api.GPU{ID: "GPU-1", Backend: "cuda", Name: "NVIDIA H200", Memory: 8 * gib, Promised: 7 * gib}
	drained := real
	drained.Drained, drained.Promised = true, 0
	down, denies := api.Server{Name: "gpu1", Error: "no GPU server listens there"}, api.Server{Name: "gpu2", Error: "remote.allow does not name the host hosta"}
	old := server("gpu3", real)
	old.Protocol++
	for what, c := range map[string]struct {
		list []api.Server
		gpu  string
		less bool
		says []string
	}{
		"nobody is there":        {[]api.Server{down}, "", false, []string{"gpu1: no GPU server listens"}},
		"nobody may be asked":    {[]api.Server{down, denies}, "", false, []string{"gpu1: no GPU server listens", "gpu2: remote.allow"}},
		"another version":        {[]api.Server{old}, "", false, []string{"gpu3: it has Causeway"}},
		"drained":                {[]api.Server{server("gpu4", drained)}, "", false, []string{"gpu4: NVIDIA H200 is drained"}},
		"no such GPU":            {[]api.Server{server("gpu4", real)}, "B200", false, []string{"gpu4: it has no GPU B200"}},
		"no room":                {[]api.Server{server("gpu4", real)}, "", true, []string{"gpu4: NVIDIA H200 has 1024 MiB left"}},
		"no room, one drained":   {[]api.Server{server("gpu4", real, drained)}, "", true, []string{"gpu4: NVIDIA H200 has 1024 MiB left"}},
		"no room, one not there": {[]api.Server{server("gpu4", real), down}, "", true, []string{"gpu1: no GPU server listens", "gpu4: NVIDIA H200 has 1024 MiB left"}},
	} {
		var e *api.Error
		if err := nobodyTakes(c.list, &api.Spec{GPU: c.gpu, Limits: api.Limits{Memory: 2 * gib}}); !errors.As(err, &e) {
			t.Fatal(err)
		}
		if strings.Contains(e.Remedy, "less memory") != c.less || (e.Status == http.StatusInsufficientStorage) != c.less || !strings.Contains(e.Remedy, "causeway gpus --all") {
			t.Errorf("%s: status %d, %s", what, e.Status, e.Remedy)
		}
		for _, s := range c.says {
			if !strings.Contains(e.Text, s) {
				t.Errorf("%s: %s", what, e.Text)
			}
		}
	}
}

// TestNamesOnce: a server that has no name but its address is named once in what went wrong with
// it.
func TestNamesOnce(t *testing.T) {
	const nobody = "127.0.0.1:1"
	c, err := api.NewServerClient(nobody, func(string) (*tls.Config, error) { return &tls.Config{}, nil })
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	err = c.Do(t.Context(), http.MethodGet, "/v1/gpus", nil, nil)
	for name, want := range map[string]string{nobody: "GPU server " + nobody + ": no GPU server listens there", "gpu1": "GPU server gpu1: " + nobody + ": no GPU server listens there"} {
		if got := atServer(name, err).Error(); !strings.HasPrefix(got, want) {
			t.Errorf("%s, not %s", got, want)
		}
	}
}
