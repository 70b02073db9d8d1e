package controller

import (
	"net/http"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"causeway/host/fleet/lease"
)

// Metrics are a controller's: what it leads, how its hosts are, and what it did.
type Metrics struct {
	registry                               *prometheus.Registry
	leading, epoch                         prometheus.Gauge
	up, heard, gpus, reservations, promise *prometheus.GaugeVec
	acts                                   *prometheus.CounterVec

	now atomic.Uint64 // as what it leads
}

// NewMetrics begins at nothing.
func NewMetrics() *Metrics {
	gauge := func(name, help string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "causeway_fleet_controller_host_" + name, Help: help}, []string{"host"})
	}
	m := &Metrics{
		registry:     prometheus.NewRegistry(),
		leading:      prometheus.NewGauge(prometheus.GaugeOpts{Name: "causeway_fleet_controller_leads", Help: "1 where this controller leads the fleet: of several one does."}),
		epoch:        prometheus.NewGauge(prometheus.GaugeOpts{Name: "causeway_fleet_controller_epoch", Help: "As the how-manieth controller it leads; 0: it does not."}),
		up:           gauge("up", "1 where the GPU host's last heartbeat came."),
		heard:        gauge("heard_timestamp_seconds", "When the GPU host's last heartbeat came; before the first one: since when it is waited for."),
		gpus:         gauge("gpus", "GPUs that the host offers."),
		reservations: gauge("reservations", "Leases that the host keeps for claims."),
		promise:      gauge("reserved_memory_bytes", "GPU memory that the host keeps for claims."),
		acts: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "causeway_fleet_controller_acts_total",
			Help: "What was done for claims at a GPU host: reserved, withdrawn, moved, refused, lost; and silent, a heartbeat that did not come."}, []string{"host", "act"}),
	}
	m.registry.MustRegister(m.leading, m.epoch, m.up, m.heard, m.gpus, m.reservations, m.promise, m.acts)
	return m
}

// Handler serves them.
func (m *Metrics) Handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{})
}

// leads notes as what the controller leads.
func (m *Metrics) leads(epoch uint64) {
	m.now.Store(epoch)
	m.epoch.Set(float64(epoch))
	m.leading.Set(1)
}

// ended: it leads no more, and what hosts are is another's to say. A term that ends late does not
// end the next one.
func (m *Metrics) ended(epoch uint64) {
	if !m.now.CompareAndSwap(epoch, 0) {
		return
	}
	m.epoch.Set(0)
	m.leading.Set(0)
	for _, v := range []*prometheus.GaugeVec{m.up, m.heard, m.gpus, m.reservations, m.promise} {
		v.Reset()
	}
}

func (m *Metrics) host(name string, a lease.Account) {
	up := 0.0
	if a.Answers {
		up = 1
	}
	m.up.WithLabelValues(name).Set(up)
	m.heard.WithLabelValues(name).Set(float64(a.LastHeartbeat.UnixMilli()) / 1000)
	m.gpus.WithLabelValues(name).Set(float64(a.GPUs))
	m.reservations.WithLabelValues(name).Set(float64(a.Reserved))
	m.promise.WithLabelValues(name).Set(float64(a.Memory))
	for _, act := range lease.Acts { // a sum that comes to nothing is 0 and not missing
		m.acts.WithLabelValues(name, act).Add(0)
	}
}

// left: the host is not in the fleet any more.
func (m *Metrics) left(name string) {
	for _, v := range []*prometheus.GaugeVec{m.up, m.heard, m.gpus, m.reservations, m.promise} {
		v.DeleteLabelValues(name)
	}
	m.acts.DeletePartialMatch(prometheus.Labels{"host": name})
}
