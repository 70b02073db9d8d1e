package bind

import (
	"encoding/binary"
	"unsafe"

	"causeway/cuda"
)

// Attributes are what a launch has besides its dimensions.
type Attributes struct{ list []LaunchAttribute }

// AttributeSize is the length of a CUlaunchAttribute in bytes, AttributeValueSize that of its
// value.
const (
	AttributeSize      = int(unsafe.Sizeof(LaunchAttribute{}))
	AttributeValueSize = int(unsafe.Sizeof(LaunchAttributeValue{}))
)

// LaunchAttributes takes a guest's records, whose events event finds. It reports whether there are
// any: the launch records them.
func (s *Space) LaunchAttributes(b []byte, event func(id uint32) (Event, bool)) (a Attributes, events bool, _ cuda.Result) {
	if len(b)%AttributeSize != 0 {
		return a, false, cuda.ErrorInvalidValue
	}
	for ; len(b) > 0; b = b[AttributeSize:] {
		id := binary.LittleEndian.Uint32(b)
		v, e, res := s.AttributeValue(id, b[AttributeSize-AttributeValueSize:AttributeSize], event)
		if res != cuda.Success {
			return a, false, res
		}
		events = events || e
		a.list = append(a.list, LaunchAttribute{id: id, value: v})
	}
	return a, events, cuda.Success
}

// AttributeValue takes the value of one attribute. Those that hold addresses and handles of kinds
// that guests cannot name are refused, and so is what is not known here.
func (s *Space) AttributeValue(id uint32, b []byte, event func(id uint32) (Event, bool)) (v LaunchAttributeValue, isEvent bool, _ cuda.Result) {
	if len(b) != AttributeValueSize {
		return v, false, cuda.ErrorInvalidValue
	}
	*v.Pad() = [AttributeValueSize]byte(b)
	switch id {
	case cuda.LaunchAttrProgrammaticEvent, cuda.LaunchAttrLaunchCompletionEvent:
		e, ok := event(uint32(binary.LittleEndian.Uint64(b)))
		if !ok {
			return v, false, cuda.ErrorInvalidHandle
		}
		v.LaunchCompletionEvent().Event = e // both begin with it
		return v, true, cuda.Success
	case cuda.LaunchAttrAccessPolicyWindow:
		// Where it begins, and how many bytes it has; none: there is no window.
		if v.words[1] == 0 {
			return v, false, cuda.Success
		}
		_, res := s.Mem(v.words[0], v.words[1])
		return v, false, res
	case cuda.LaunchAttrIgnore, cuda.LaunchAttrCooperative, cuda.LaunchAttrSynchronizationPolicy,
		cuda.LaunchAttrClusterDimension, cuda.LaunchAttrClusterSchedulingPolicyPreference, cuda.LaunchAttrProgrammaticStreamSerialization,
		cuda.LaunchAttrPriority, cuda.LaunchAttrMemSyncDomainMap, cuda.LaunchAttrMemSyncDomain, cuda.LaunchAttrPreferredClusterDimension,
		cuda.LaunchAttrPreferredSharedMemoryCarveout, cuda.LaunchAttrNvlinkUtilCentricScheduling:
		return v, false, cuda.Success
	}
	return v, false, cuda.ErrorNotSupported
}

// Bytes is a value as a guest gets it, events being ids.
func (v LaunchAttributeValue) Bytes(id uint32, name func(Event) uint32) []byte {
	if id == cuda.LaunchAttrProgrammaticEvent || id == cuda.LaunchAttrLaunchCompletionEvent {
		v.LaunchCompletionEvent().Event = Event{v: uint64(name(v.LaunchCompletionEvent().Event))}
	}
	return append([]byte(nil), v.Pad()[:]...)
}

// IsZero reports whether there are none.
func (a Attributes) IsZero() bool { return len(a.list) == 0 }

// copy is the records in C memory, to be freed.
func (a Attributes) copy() Buffer {
	return BufferOf(unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(a.list))), len(a.list)*AttributeSize))
}
