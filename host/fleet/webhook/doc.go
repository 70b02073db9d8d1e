// Package webhook is what a server that Kubernetes' API server calls has to have: a certificate
// that the API server trusts, renewed while it runs and shared by all replicas, with nothing beside
// the cluster itself to make it.
package webhook
