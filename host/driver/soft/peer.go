package soft

import (
	"causeway/cuda"
	"causeway/cuda/wire"
)

// Software GPUs of one session share their memory: each reaches the other's, and enabling that is a
// matter of state alone. What is not enabled is reachable all the same.

// CtxEnablePeerAccess notes that the current context may reach the peer's memory.
func (s *session) CtxEnablePeerAccess(c *wire.Call, a *wire.CtxEnablePeerAccessArgs) cuda.Result {
	g, res := s.context(c)
	if res != cuda.Success {
		return res
	}
	peer, ok := s.ctxs[a.Peer]
	switch {
	case !ok:
		return cuda.ErrorInvalidContext
	case a.Flags != 0:
		return cuda.ErrorInvalidValue
	case peer.device == g.device:
		return cuda.ErrorPeerAccessUnsupported
	case s.peers[peerPair{g, peer}]:
		return cuda.ErrorPeerAccessAlreadyEnabled
	}
	if s.peers == nil {
		s.peers = map[peerPair]bool{}
	}
	s.peers[peerPair{g, peer}] = true
	return cuda.Success
}

// peerPair is a context and one whose memory it may reach.
type peerPair struct{ from, to *gpuContext }

// CtxDisablePeerAccess undoes CtxEnablePeerAccess.
func (s *session) CtxDisablePeerAccess(c *wire.Call, a *wire.CtxDisablePeerAccessArgs) cuda.Result {
	g, res := s.context(c)
	if res != cuda.Success {
		return res
	}
	peer, ok := s.ctxs[a.Peer]
	if !ok {
		return cuda.ErrorInvalidContext
	}
	if !s.peers[peerPair{g, peer}] {
		return cuda.ErrorPeerAccessNotEnabled
	}
	delete(s.peers, peerPair{g, peer})
	return cuda.Success
}

// forgetPeers drops what hangs on a context that is gone.
func (s *session) forgetPeers(gone *gpuContext) {
	for p := range s.peers {
		if p.from == gone || p.to == gone {
			delete(s.peers, p)
		}
	}
}

// DeviceCanAccessPeer says that any two devices reach each other.
func (s *session) DeviceCanAccessPeer(c *wire.Call, a *wire.DeviceCanAccessPeerArgs, r *wire.DeviceCanAccessPeerReply) cuda.Result {
	if int(a.Dev) >= len(s.gpus) || int(a.Peer) >= len(s.gpus) {
		return cuda.ErrorInvalidDevice
	}
	if a.Dev != a.Peer {
		r.Can = 1
	}
	return cuda.Success
}

// DeviceGetP2PAttribute says how two devices are linked: by the same memory, but for arrays.
func (s *session) DeviceGetP2PAttribute(c *wire.Call, a *wire.DeviceGetP2PAttributeArgs, r *wire.DeviceGetP2PAttributeReply) cuda.Result {
	if int(a.Src) >= len(s.gpus) || int(a.Dst) >= len(s.gpus) || a.Src == a.Dst {
		return cuda.ErrorInvalidDevice
	}
	switch a.Attr {
	case cuda.P2PAttrAccessSupported, cuda.P2PAttrNativeAtomicSupported:
		r.Value = 1
	case cuda.P2PAttrPerformanceRank, cuda.P2PAttrCudaArrayAccessSupported, cuda.P2PAttrOnlyPartialNativeAtomicSupported:
		r.Value = 0
	default:
		return cuda.ErrorInvalidValue
	}
	return cuda.Success
}
