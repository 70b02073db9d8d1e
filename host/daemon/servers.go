package daemon

import (
	"cmp"
	"context"
	"fmt"
	"math/bits"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"causeway/host/api"
	"causeway/host/daemon/lease"
	"causeway/remote"
)

// offerTime bounds what asking a server takes.
const offerTime = 5 * time.Second

// pings is how often the round trip is measured; the shortest counts.
const pings = 3

// serverNames are the GPU servers of the configuration, and those that its domain names. What is
// wrong with the domain leaves those that are known.
func (d *Daemon) serverNames(ctx context.Context) ([]string, error) {
	r := d.config().Remote
	found, err := d.finder.Servers(ctx, r.Domain)
	names := slices.Clone(r.Servers)
	for _, f := range found {
		if !slices.ContainsFunc(names, func(n string) bool { return api.ServerAddress(n) == f }) {
			names = append(names, f)
		}
	}
	return names, err
}

// Servers asks all GPU servers what they offer. A domain that cannot be asked for its servers
// stands in the list as one that cannot be asked.
func (d *Daemon) Servers(ctx context.Context) []api.Server {
	names, err := d.serverNames(ctx)
	list := make([]api.Server, len(names))
	var wg sync.WaitGroup
	for i, name := range names {
		list[i] = api.Server{Name: name, Address: api.ServerAddress(name)}
		wg.Go(func() {
			if err := d.askOffer(ctx, &list[i]); err != nil {
				list[i].Error = besideName(name, err)
			}
		})
	}
	wg.Wait()
	if err != nil {
		list = append(list, api.Server{Name: "_causeway._tcp." + d.config().Remote.Domain, Error: err.Error()})
	}
	return list
}

func (d *Daemon) askOffer(ctx context.Context, s *api.Server) error {
	ctx, cancel := context.WithTimeout(ctx, offerTime)
	defer cancel()
	c, err := d.server(s.Name)
	if err != nil {
		return err
	}
	defer c.Close()
	o, err := called(ctx, c, http.MethodGet, "/v1/gpus", nil, lease.DecodeOffer)
	if err != nil {
		return err
	}
	s.Offer = o
	for range pings {
		begin := time.Now()
		if err := c.Do(ctx, http.MethodGet, "/v1/leases", nil, nil); err != nil {
			return err
		}
		if took := time.Since(begin); s.RoundTrip == 0 || took < s.RoundTrip {
			s.RoundTrip = took
		}
	}
	return nil
}

func (d *Daemon) getServers(w http.ResponseWriter, req *http.Request) error {
	return reply(w, d.Servers(req.Context()))
}

// rank are the places in list of the servers that may take a vGPU, the best first: with a real GPU,
// near, with little promised.
func rank(list []api.Server, s *api.Spec) (order []int) {
	for i := range list {
		if why, _ := unfit(&list[i], s); why == "" {
			order = append(order, i)
		}
	}
	slices.SortStableFunc(order, func(a, b int) int {
		x, y := &list[a], &list[b]
		return cmp.Or(
			cmp.Compare(onlySoft(x, s), onlySoft(y, s)),
			cmp.Compare(distance(x.RoundTrip), distance(y.RoundTrip)),
			cmp.Compare(load(x, s), load(y, s)),
			cmp.Compare(x.RoundTrip, y.RoundTrip),
		)
	})
	return order
}

// distance has round trips count as equal that measure alike: it grows by one where they double,
// from 50 µs on.
func distance(d time.Duration) int { return bits.Len64(uint64(d / (50 * time.Microsecond))) }

// unfit says why a server cannot take a vGPU as far as its offer tells, and whether that is that a
// GPU there has no room for it; empty: it may.
func unfit(s *api.Server, spec *api.Spec) (why string, full bool) {
	switch {
	case s.Error != "":
		return s.Error, false
	case s.Protocol != remote.ProtocolVersion:
		return fmt.Sprintf("it has Causeway %s, whose sessions speak version %d, this host version %d", s.Version, s.Protocol, remote.ProtocolVersion), false
	}
	why = "it has no GPU " + cmp.Or(spec.GPU, "any")
	for i := range s.GPUs {
		g := &s.GPUs[i]
		if !fitting(g, spec.GPU) {
			continue
		}
		if left := g.Memory - min(g.Memory, max(g.Promised, g.Used)); !g.Drained && spec.MIG == "" && left < spec.Memory {
			why, full = fmt.Sprintf("%s has %d MiB left, of %d MiB", g.Name, left>>20, g.Memory>>20), true
			continue
		}
		if !g.Drained {
			return "", false
		}
		if !full { // that one has no room says more
			why = g.Name + " is drained"
		}
	}
	return why, full
}

// fitting reports whether a GPU may be what a wish names.
func fitting(g *api.GPU, name string) bool {
	name = strings.ToLower(strings.TrimSpace(name))
	switch {
	case name == "" || name == "any" || name == "auto":
		return true
	case name == "soft" || strings.HasPrefix(name, "soft:") || strings.HasPrefix(name, "soft/"):
		return g.Backend == "soft"
	}
	if first, _, _ := strings.Cut(name, ","); g.Backend != "soft" && first == strconv.Itoa(g.Index) {
		return true
	}
	return g.Backend != "soft" && (strings.Contains(strings.ToLower(g.Name), name) || strings.HasPrefix(strings.ToLower(g.ID), name) || slices.Contains(g.MIG, name))
}

// onlySoft is 1 for a server that has software GPUs only of those that fit.
func onlySoft(s *api.Server, spec *api.Spec) int {
	if slices.ContainsFunc(s.GPUs, func(g api.GPU) bool { return g.Backend != "soft" && fitting(&g, spec.GPU) }) {
		return 0
	}
	return 1
}

// load is how much of the GPU with the most left is promised, per thousand.
func load(s *api.Server, spec *api.Spec) uint64 {
	least := uint64(1000)
	for i := range s.GPUs {
		if g := &s.GPUs[i]; fitting(g, spec.GPU) && !g.Drained && g.Memory >= 1000 {
			least = min(least, max(g.Promised, g.Used)/(g.Memory/1000))
		}
	}
	return least
}
