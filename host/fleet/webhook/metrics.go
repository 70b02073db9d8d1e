package webhook

import (
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Counts are a webhook's metrics.
type Counts struct {
	registry        *prometheus.Registry
	answers         *prometheus.CounterVec
	unauthenticated prometheus.Counter
}

// NewCounts begins at nothing. until is the end of the certificate that is served, in seconds of
// Unix; 0: there is none.
func NewCounts(until func() float64) *Counts {
	c := &Counts{registry: prometheus.NewRegistry(), answers: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "causeway_fleet_webhook_answers_total", Help: "Answers to the API server, by what it asked about (pods, migrations) and what came of it (allowed, changed, refused)."},
		[]string{"asked", "verdict"}),
		unauthenticated: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "causeway_fleet_webhook_unauthenticated_total", Help: "Requests of others than the API server, which have no answer."})}
	c.registry.MustRegister(c.answers, c.unauthenticated, prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "causeway_fleet_webhook_certificate_until_seconds", Help: "When the webhook's certificate ends; 0: it has none."}, until))
	return c
}

// Answered counts an answer.
func (c *Counts) Answered(asked, verdict string) { c.answers.WithLabelValues(asked, verdict).Inc() }

// Unauthenticated counts a request that is not the API server's.
func (c *Counts) Unauthenticated() { c.unauthenticated.Inc() }

// Handler serves them.
func (c *Counts) Handler() http.Handler {
	return promhttp.HandlerFor(c.registry, promhttp.HandlerOpts{})
}
