// Package overview is a fleet as people see it: its nodes, what GPUs they offer, and who has how
// much of them by which claim, or waits for it, and why. It is read from Kubernetes' API server
// alone, whoever looks with his own rights, and nothing of it is kept.
package overview
