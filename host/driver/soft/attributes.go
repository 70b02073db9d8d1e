package soft

import (
	"bytes"
	"encoding/binary"

	"causeway/cuda"
	"causeway/cuda/wire"
)

const attributeValueSize = 64 // CUlaunchAttributeValue

// streamAttributes are those that a stream has, with the bytes that count. They are kept and given
// back; only the window of an access policy, the way to wait and the domains would change how a GPU
// works, and nothing here depends on that.
var streamAttributes = map[uint32]int{
	cuda.LaunchAttrAccessPolicyWindow: 32, cuda.LaunchAttrSynchronizationPolicy: 4, cuda.LaunchAttrPriority: 4,
	cuda.LaunchAttrMemSyncDomainMap: 2, cuda.LaunchAttrMemSyncDomain: 4,
}

const (
	syncPolicyFirst, syncPolicyLast = 1, 4 // CU_SYNC_POLICY_AUTO to BLOCKING_SYNC
	syncDomains                     = 2
)

// StreamSetAttribute sets an attribute of a stream.
func (s *session) StreamSetAttribute(c *wire.Call, a *wire.StreamSetAttributeArgs) cuda.Result {
	st, res := s.findStream(c, a.Target)
	if res != cuda.Success {
		return res
	}
	size, ok := streamAttributes[a.Attr]
	if !ok || len(a.Value) != attributeValueSize {
		return cuda.ErrorInvalidValue
	}
	word := binary.LittleEndian.Uint32(a.Value)
	switch a.Attr {
	case cuda.LaunchAttrSynchronizationPolicy:
		if word < syncPolicyFirst || word > syncPolicyLast {
			return cuda.ErrorInvalidValue
		}
	case cuda.LaunchAttrMemSyncDomain:
		if word >= syncDomains {
			return cuda.ErrorInvalidValue
		}
	case cuda.LaunchAttrPriority:
		st.own, st.priority = true, min(max(int32(word), priorityGreatest), priorityLeast)
		return cuda.Success
	}
	st.own = true
	if st.attrs == nil {
		st.attrs = map[uint32][]byte{}
	}
	st.attrs[a.Attr] = bytes.Clone(a.Value[:size])
	return cuda.Success
}

// StreamGetAttribute reads an attribute of a stream.
func (s *session) StreamGetAttribute(c *wire.Call, a *wire.StreamGetAttributeArgs, r *wire.StreamGetAttributeReply) cuda.Result {
	st, res := s.findStream(c, a.Stream)
	if res != cuda.Success {
		return res
	}
	if _, ok := streamAttributes[a.Attr]; !ok {
		return cuda.ErrorInvalidValue
	}
	r.Value = make([]byte, attributeValueSize)
	switch v := st.attrs[a.Attr]; {
	case a.Attr == cuda.LaunchAttrPriority:
		binary.LittleEndian.PutUint32(r.Value, uint32(st.priority))
	case v != nil:
		copy(r.Value, v)
	case a.Attr == cuda.LaunchAttrSynchronizationPolicy:
		// As a real driver says before it was set.
		binary.LittleEndian.PutUint32(r.Value, 0xffffffff)
	}
	return cuda.Success
}

// StreamCopyAttributes copies the attributes of one stream to another.
func (s *session) StreamCopyAttributes(c *wire.Call, a *wire.StreamCopyAttributesArgs) cuda.Result {
	from, res := s.findStream(c, a.Source)
	if res != cuda.Success {
		return res
	}
	to, res := s.findStream(c, a.Target)
	if res != cuda.Success {
		return res
	}
	to.own, to.attrs, to.priority = true, map[uint32][]byte{}, from.priority
	for id, v := range from.attrs {
		to.attrs[id] = v
	}
	return cuda.Success
}
