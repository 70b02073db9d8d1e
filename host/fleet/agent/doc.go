// Package agent has hosts of plain libvirt in a fleet: the small part of a kubelet that a host
// without containers needs. It registers a Node, keeps its heartbeat, and has each placeholder Pod
// that the scheduler binds to it stand for vGPUs of a domain: causewayd makes them, libvirt plugs
// them in.
package agent
