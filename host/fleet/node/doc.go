// Package node is the driver on one node: the kubelet asks it to prepare claims and to take them
// back, and it asks the node's causewayd, which decides. It keeps nothing of its own: what is
// prepared is what causewayd has, under names made of claims' UIDs, and the container
// specifications beside it. So it can be restarted at any time, and so can causewayd and the node.
//
// Prepare may be asked again for what is prepared: the vGPU is the same, and the specification is
// written anew, for a node that was restarted has lost it while the kubelet remembers. Kubernetes
// serializes calls (kubeletplugin.Serialize).
package node
