package lease

import "strings"

/*
A GPU that its host's own node offers as well is not offered over the network: it would be promised
twice. Which GPUs a node has is the node's word alone, and any node can say it of any GPU: it is
heard for the host that it is, by its name, and for no other. Else one node that was taken over
would take all GPUs of the fleet from everybody.
*/

// offer is a GPU, by UUID, that a node says it offers.
type offer struct{ gpu, node string }

// elsewhere are the host's GPUs that its own node offers, and by whom.
func (k *Keeper) elsewhere() map[string]string {
	out, reported := map[string]string{}, map[offer]bool{}
	all := k.Cluster.Elsewhere()
	for i := range k.state.GPUs {
		id := k.state.GPUs[i].ID
		for _, node := range all[id] {
			own := isNode(k.Host.Name, node)
			if own {
				out[id] = "the node " + node
			}
			reported[offer{id, node}] = true
			switch {
			case k.lastReported[offer{id, node}]:
			case own:
				k.Log.Error("a GPU is not offered over the network: another offers it", "host", k.Host.Name, "gpu", id, "by", out[id],
					"remedy", "if it is the host's own causeway-dra, start that with --offered-by-fleet, and say `local: true` of the host")
			default:
				k.Log.Error("a node says that it has a GPU of another host: it stays offered over the network", "host", k.Host.Name, "gpu", id, "node", node,
					"remedy", "if that node is the host, call the host as the node in the controller's configuration; if not, see who publishes the node's ResourceSlice")
			}
		}
	}
	k.lastReported = reported
	return out
}

// isNode: a host and a node of these names are one; either may be without its domain.
func isNode(host, node string) bool {
	return host == node || strings.HasPrefix(host, node+".") || strings.HasPrefix(node, host+".")
}
