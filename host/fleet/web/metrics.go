package web

import (
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"causeway/host/fleet/overview"
)

// mostScrapes at once: of Prometheus there are one or two, and each scrape is made anew.
const mostScrapes = 4

// Metrics serves what Prometheus reads.
func Metrics(s *Source, version string) http.Handler {
	r := prometheus.NewRegistry()
	r.MustRegister(newCollector(s, version))
	return promhttp.HandlerFor(r, promhttp.HandlerOpts{MaxRequestsInFlight: mostScrapes})
}

// collector makes metrics of the last overview.
type collector struct {
	source  *Source
	version string
	now     func() time.Time

	read, info, node                             *prometheus.Desc
	memory, claimed, stranded, compute, had, out *prometheus.Desc
	claims, waits, leases, moves                 *prometheus.Desc
}

func newCollector(s *Source, version string) *collector {
	d := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("causeway_fleet_"+name, help, labels, nil)
	}
	gpu := []string{"node", "gpu", "model"}
	return &collector{source: s, version: version, now: time.Now,
		read:     d("read_timestamp_seconds", "When the fleet was last read from the API server."),
		info:     d("info", "1, with the version of causeway-fleet.", "version"),
		node:     d("node_ready", "Whether a node with GPUs takes pods: 1, or 0 where it is not ready, gone, cordoned or drained.", "node"),
		memory:   d("gpu_memory_bytes", "GPU memory that claims can have.", gpu...),
		claimed:  d("gpu_claimed_memory_bytes", "GPU memory that claims have.", gpu...),
		stranded: d("gpu_stranded_memory_bytes", "GPU memory that is free while claims wait, and too little for any of them.", gpu...),
		compute:  d("gpu_compute_promised_ratio", "Part of a GPU's time that claims were promised.", gpu...),
		had:      d("gpu_claims", "vGPUs that claims have of a GPU.", gpu...),
		out:      d("gpu_out", "1 where a GPU gets no new claims, for a taint of its own or its node.", gpu...),
		claims:   d("claims", "Claims, by state.", "namespace", "state"),
		waits:    d("claim_wait_seconds", "How long the claim that waits longest has waited; 0: none waits.", "namespace"),
		leases:   d("leases", "vGPUs on GPUs of other hosts, by how it stands with their lease.", "state"),
		moves:    d("moves", "VMs with vGPUs that are being moved to another node."),
	}
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.read, c.info, c.node, c.memory, c.claimed, c.stranded, c.compute, c.had, c.out, c.claims, c.waits, c.leases, c.moves} {
		ch <- d
	}
}

// Collect implements prometheus.Collector. Of a fleet that was never read there is nothing; of one
// that was, it is as it was, and read says when.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	put := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	put(c.info, 1, c.version)
	seen := c.source.Seen()
	if seen.Fleet == nil {
		return
	}
	f := seen.Fleet
	put(c.read, float64(seen.At.UnixMilli())/1000)
	wanted := f.Wanted()
	for i := range f.Nodes {
		c.ofNode(&f.Nodes[i], wanted, put)
	}
	c.ofClaims(f, put)
	put(c.moves, float64(len(f.Moves)))
}

type putter func(d *prometheus.Desc, v float64, labels ...string)

func (c *collector) ofNode(n *overview.Node, wanted overview.Wanted, put putter) {
	put(c.node, one(!n.Away()), n.Name)
	seen := map[string]bool{} // one device in two slices would spoil the whole answer
	for i := range n.GPUs {
		g := &n.GPUs[i]
		if seen[g.Device+"/"+g.Model] {
			continue
		}
		seen[g.Device+"/"+g.Model] = true
		labels := []string{n.Name, g.Device, g.Model}
		put(c.memory, float64(g.Memory), labels...)
		put(c.claimed, float64(g.Claimed), labels...)
		put(c.stranded, float64(wanted.Stranded(n, g)), labels...)
		put(c.compute, float64(g.Compute)/100, labels...)
		put(c.had, float64(g.Claims), labels...)
		put(c.out, one(n.Away() || len(g.Taints) > 0), labels...)
	}
}

// ofClaims: a namespace has all states, and the fleet all of leases, so that a sum that comes to
// nothing is 0 and not missing.
func (c *collector) ofClaims(f *overview.Fleet, put putter) {
	states := map[string]map[string]int{}
	waits, leases := map[string]time.Duration{}, map[string]int{overview.Held: 0, overview.Refuses: 0, overview.Asked: 0}
	for i := range f.Claims {
		cl := &f.Claims[i]
		if states[cl.Namespace] == nil {
			states[cl.Namespace] = map[string]int{overview.Waiting: 0, overview.Allocated: 0, overview.InUse: 0, overview.Refused: 0, overview.Leaving: 0}
		}
		states[cl.Namespace][cl.State]++
		if cl.State == overview.Waiting {
			waits[cl.Namespace] = max(waits[cl.Namespace], c.now().Sub(cl.Created))
		}
		for _, p := range cl.Parts {
			if p.Lease != "" {
				leases[p.Lease]++
			}
		}
	}
	for namespace, of := range states {
		for state, n := range of {
			put(c.claims, float64(n), namespace, state)
		}
		put(c.waits, waits[namespace].Seconds(), namespace)
	}
	for state, n := range leases {
		put(c.leases, float64(n), state)
	}
}

func one(yes bool) float64 {
	if yes {
		return 1
	}
	return 0
}
