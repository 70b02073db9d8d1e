// Package pool says what of a GPU host's GPUs Kubernetes is told to offer over the network: a pool
// for each host, of devices that no node publishes itself. A GPU that its own node's pods may have
// as well is two devices that share a counter of one, so that it is used one way at a time.
package pool
