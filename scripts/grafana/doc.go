// Package grafana holds the dashboard for Grafana, and what keeps it and the alerts for Prometheus
// in step with what causewayd exports.
package grafana
