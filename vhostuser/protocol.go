package vhostuser

// Feature bits of the virtio device that the transport owns (virtio 1.2, section 6;
// vhost-user.rst). The list is closed: what QEMU offers beyond it is never acknowledged.
const (
	FeatureLogAll           = 1 << 26 // VHOST_F_LOG_ALL
	FeatureIndirectDesc     = 1 << 28 // VIRTIO_RING_F_INDIRECT_DESC
	FeatureEventIdx         = 1 << 29 // VIRTIO_RING_F_EVENT_IDX
	FeatureProtocolFeatures = 1 << 30 // VHOST_USER_F_PROTOCOL_FEATURES
	FeatureVersion1         = 1 << 32 // VIRTIO_F_VERSION_1

	Features = FeatureVersion1 | FeatureIndirectDesc | FeatureEventIdx | FeatureLogAll | FeatureProtocolFeatures
)

// Protocol feature bits.
const (
	ProtocolMQ                = 1 << 0
	ProtocolLogShmfd          = 1 << 1
	ProtocolReplyAck          = 1 << 3
	ProtocolResetDevice       = 1 << 13
	ProtocolConfigureMemSlots = 1 << 15
	ProtocolDeviceState       = 1 << 19

	ProtocolFeatures = ProtocolMQ | ProtocolLogShmfd | ProtocolReplyAck | ProtocolResetDevice |
		ProtocolConfigureMemSlots | ProtocolDeviceState
)

// MessageID names a front-end message.
type MessageID uint32

// The messages understood. Numbers are those of vhost-user.rst.
const (
	GetFeatures         MessageID = 1
	SetFeatures         MessageID = 2
	SetOwner            MessageID = 3
	ResetOwner          MessageID = 4
	SetMemTable         MessageID = 5
	SetLogBase          MessageID = 6
	SetLogFD            MessageID = 7
	SetVringNum         MessageID = 8
	SetVringAddr        MessageID = 9
	SetVringBase        MessageID = 10
	GetVringBase        MessageID = 11
	SetVringKick        MessageID = 12
	SetVringCall        MessageID = 13
	SetVringErr         MessageID = 14
	GetProtocolFeatures MessageID = 15
	SetProtocolFeatures MessageID = 16
	GetQueueNum         MessageID = 17
	SetVringEnable      MessageID = 18
	ResetDevice         MessageID = 34
	GetMaxMemSlots      MessageID = 36
	AddMemReg           MessageID = 37
	RemMemReg           MessageID = 38
	SetDeviceStateFD    MessageID = 42
	CheckDeviceState    MessageID = 43
)

// Header: id u32, flags u32, payload size u32, in the host's byte order (little-endian here).
const (
	headerSize = 12

	flagVersion     = 1
	flagVersionMask = 3
	flagReply       = 4
	flagNeedReply   = 8

	maxPayload  = 4096
	maxFDs      = 8   // VHOST_MEMORY_BASELINE_NREGIONS
	vringNoFD   = 256 // in SET_VRING_KICK, CALL and ERR: no descriptor attached
	vringAddLog = 1   // VHOST_VRING_F_LOG
)

// reply says when a message is answered.
type reply int

const (
	replyNone   reply = iota // only if the front end asks for it (REPLY_ACK): 0 for success
	replyAlways              // the handler's payload
)

// row is one message: the policy that the dispatcher enforces before the handler runs.
type row struct {
	name    string
	size    int    // exact payload size; -1: the handler checks
	minFDs  int    // descriptors accepted
	maxFDs  int    //
	needs   uint64 // protocol feature that must have been negotiated
	reply   reply
	handler func(*conn, *message) ([]byte, error)
}

// messages is the whole protocol. To add a message: its number above, a row here, a case in
// messages_test.go.
var messages = map[MessageID]row{
	GetFeatures:         {"GET_FEATURES", 0, 0, 0, 0, replyAlways, (*conn).getFeatures},
	SetFeatures:         {"SET_FEATURES", 8, 0, 0, 0, replyNone, (*conn).setFeatures},
	SetOwner:            {"SET_OWNER", 0, 0, 0, 0, replyNone, (*conn).nothing},
	ResetOwner:          {"RESET_OWNER", 0, 0, 0, 0, replyNone, (*conn).nothing},
	SetMemTable:         {"SET_MEM_TABLE", -1, 0, maxFDs, 0, replyNone, (*conn).setMemTable},
	SetLogBase:          {"SET_LOG_BASE", 16, 1, 1, ProtocolLogShmfd, replyAlways, (*conn).setLogBase},
	SetLogFD:            {"SET_LOG_FD", -1, 1, 1, 0, replyNone, (*conn).nothing},
	SetVringNum:         {"SET_VRING_NUM", 8, 0, 0, 0, replyNone, (*conn).setVringNum},
	SetVringAddr:        {"SET_VRING_ADDR", 40, 0, 0, 0, replyNone, (*conn).setVringAddr},
	SetVringBase:        {"SET_VRING_BASE", 8, 0, 0, 0, replyNone, (*conn).setVringBase},
	GetVringBase:        {"GET_VRING_BASE", 8, 0, 0, 0, replyAlways, (*conn).getVringBase},
	SetVringKick:        {"SET_VRING_KICK", 8, 0, 1, 0, replyNone, (*conn).setVringKick},
	SetVringCall:        {"SET_VRING_CALL", 8, 0, 1, 0, replyNone, (*conn).setVringCall},
	SetVringErr:         {"SET_VRING_ERR", 8, 0, 1, 0, replyNone, (*conn).setVringErr},
	GetProtocolFeatures: {"GET_PROTOCOL_FEATURES", 0, 0, 0, 0, replyAlways, (*conn).getProtocolFeatures},
	SetProtocolFeatures: {"SET_PROTOCOL_FEATURES", 8, 0, 0, 0, replyNone, (*conn).setProtocolFeatures},
	GetQueueNum:         {"GET_QUEUE_NUM", 0, 0, 0, ProtocolMQ, replyAlways, (*conn).getQueueNum},
	SetVringEnable:      {"SET_VRING_ENABLE", 8, 0, 0, 0, replyNone, (*conn).setVringEnable},
	ResetDevice:         {"RESET_DEVICE", 0, 0, 0, ProtocolResetDevice, replyNone, (*conn).resetDevice},
	GetMaxMemSlots:      {"GET_MAX_MEM_SLOTS", 0, 0, 0, ProtocolConfigureMemSlots, replyAlways, (*conn).getMaxMemSlots},
	AddMemReg:           {"ADD_MEM_REG", 40, 1, 1, ProtocolConfigureMemSlots, replyNone, (*conn).addMemReg},
	RemMemReg:           {"REM_MEM_REG", 40, 0, 1, ProtocolConfigureMemSlots, replyNone, (*conn).remMemReg},
	SetDeviceStateFD:    {"SET_DEVICE_STATE_FD", 8, 1, 1, ProtocolDeviceState, replyAlways, (*conn).setDeviceStateFD},
	CheckDeviceState:    {"CHECK_DEVICE_STATE", 0, 0, 0, ProtocolDeviceState, replyAlways, (*conn).checkDeviceState},
}

func (id MessageID) String() string {
	if r, ok := messages[id]; ok {
		return r.name
	}
	return "unknown message"
}
