package vhostuser_test

import (
	"os"
	"testing"

	"causeway/vhostuser"
	"causeway/vhostuser/vhosttest"
)

// TestMessages sends each message in a right and several wrong forms to a fresh connection. What
// each answers: a value, an acknowledgement, a refusal (connection kept) or the end of the
// connection.
func TestMessages(t *testing.T) {
	m := ram(t, 0, 1<<20)
	file := m.File
	region := func(gpa, size, user, off uint64) []byte { return vhosttest.U64(0, gpa, size, user, off) }
	table := func(n uint32, regions ...uint64) []byte {
		return append(vhosttest.U32s(n, 0), vhosttest.U64(regions...)...)
	}
	u64, u32 := vhosttest.U64, vhosttest.U32s
	const (
		ack   = "ack"
		nak   = "refused"
		end   = "end"
		value = "value"
	)
	for _, c := range []struct {
		name    string
		id      vhostuser.MessageID
		payload []byte
		fds     int
		want    string
		val     uint64
	}{
		{"features", vhostuser.GetFeatures, nil, 0, value, 1<<32 | 1<<30 | 1<<29 | 1<<28 | 1<<26},
		{"features with payload", vhostuser.GetFeatures, u64(1), 0, end, 0},
		{"features with descriptor", vhostuser.GetFeatures, nil, 1, end, 0},
		{"set features", vhostuser.SetFeatures, u64(1<<32 | 1<<30), 0, ack, 0},
		{"set features not offered", vhostuser.SetFeatures, u64(1 << 33), 0, nak, 0},
		{"set features short", vhostuser.SetFeatures, u32(1), 0, end, 0},
		{"owner", vhostuser.SetOwner, nil, 0, ack, 0},
		{"reset owner", vhostuser.ResetOwner, nil, 0, ack, 0},
		{"protocol features", vhostuser.GetProtocolFeatures, nil, 0, value, 1<<0 | 1<<1 | 1<<3 | 1<<13 | 1<<15 | 1<<19},
		{"set protocol features", vhostuser.SetProtocolFeatures, u64(1 << 3), 0, ack, 0},
		{"protocol features not offered", vhostuser.SetProtocolFeatures, u64(1<<3 | 1<<16), 0, nak, 0},
		{"queues", vhostuser.GetQueueNum, nil, 0, value, 3},
		{"slots", vhostuser.GetMaxMemSlots, nil, 0, value, vhostuser.MaxRegions},
		{"table", vhostuser.SetMemTable, table(1, 0, 4096, 0, 0), 1, ack, 0},
		{"table of two", vhostuser.SetMemTable, table(2, 0, 4096, 0, 0, 4096, 4096, 4096, 4096), 2, ack, 0},
		{"table empty", vhostuser.SetMemTable, table(0), 0, ack, 0},
		{"table overlap", vhostuser.SetMemTable, table(2, 0, 8192, 0, 0, 4096, 4096, 1<<30, 0), 2, nak, 0},
		{"table user overlap", vhostuser.SetMemTable, table(2, 0, 8192, 0, 0, 1<<30, 4096, 4096, 0), 2, nak, 0},
		{"table without descriptor", vhostuser.SetMemTable, table(1, 0, 4096, 0, 0), 0, nak, 0},
		{"table with a wrong count", vhostuser.SetMemTable, table(2, 0, 4096, 0, 0), 1, nak, 0},
		{"table with a huge count", vhostuser.SetMemTable, table(1<<31, 0, 4096, 0, 0), 1, nak, 0},
		{"table short", vhostuser.SetMemTable, u32(1), 1, nak, 0},
		{"region", vhostuser.AddMemReg, region(0, 4096, 0, 0), 1, ack, 0},
		{"region empty", vhostuser.AddMemReg, region(0, 0, 0, 0), 1, nak, 0},
		{"region past the file", vhostuser.AddMemReg, region(0, 2<<20, 0, 0), 1, nak, 0},
		{"region offset past the file", vhostuser.AddMemReg, region(0, 4096, 0, 1<<20), 1, nak, 0},
		{"region wraps", vhostuser.AddMemReg, region(^uint64(0)-4095, 8192, 0, 0), 1, nak, 0},
		{"region offset wraps", vhostuser.AddMemReg, region(0, 4096, 0, ^uint64(0)-100), 1, nak, 0},
		{"region user wraps", vhostuser.AddMemReg, region(0, 4096, ^uint64(0)-100, 0), 1, nak, 0},
		{"region without descriptor", vhostuser.AddMemReg, region(0, 4096, 0, 0), 0, end, 0},
		{"region with two descriptors", vhostuser.AddMemReg, region(0, 4096, 0, 0), 2, end, 0},
		{"remove what is not there", vhostuser.RemMemReg, region(0, 4096, 0, 0), 0, nak, 0},
		{"log", vhostuser.SetLogBase, u64(4096, 0), 1, value, 0},
		{"log too large", vhostuser.SetLogBase, u64(2<<20, 0), 1, end, 0},
		{"log empty", vhostuser.SetLogBase, u64(0, 0), 1, end, 0},
		{"log without descriptor", vhostuser.SetLogBase, u64(4096, 0), 0, end, 0},
		{"log fd", vhostuser.SetLogFD, nil, 1, ack, 0},
		{"num", vhostuser.SetVringNum, u32(2, 1024), 0, ack, 0},
		{"num 1", vhostuser.SetVringNum, u32(2, 1), 0, ack, 0},
		{"num 2", vhostuser.SetVringNum, u32(2, 2), 0, ack, 0},
		{"num most", vhostuser.SetVringNum, u32(2, 1<<15), 0, ack, 0},
		{"num 0", vhostuser.SetVringNum, u32(2, 0), 0, nak, 0},
		{"num odd", vhostuser.SetVringNum, u32(2, 1000), 0, nak, 0},
		{"num huge", vhostuser.SetVringNum, u32(2, 1<<16), 0, nak, 0},
		{"num of no ring", vhostuser.SetVringNum, u32(3, 64), 0, nak, 0},
		{"num of a wild ring", vhostuser.SetVringNum, u32(^uint32(0), 64), 0, nak, 0},
		{"addr", vhostuser.SetVringAddr, append(u32(0, 0), u64(1, 2, 3, 4)...), 0, ack, 0},
		{"addr of no ring", vhostuser.SetVringAddr, append(u32(9, 0), u64(1, 2, 3, 4)...), 0, nak, 0},
		{"base", vhostuser.SetVringBase, u32(0, 65535), 0, ack, 0},
		{"base huge", vhostuser.SetVringBase, u32(0, 65536), 0, nak, 0},
		{"get base", vhostuser.GetVringBase, u32(2, 0), 0, value, 2},
		{"get base of no ring", vhostuser.GetVringBase, u32(3, 0), 0, end, 0},
		{"kick that is a file", vhostuser.SetVringKick, u64(0), 1, nak, 0},
		{"kick without descriptor", vhostuser.SetVringKick, u64(0), 0, nak, 0},
		{"kick by polling", vhostuser.SetVringKick, u64(0x100), 0, ack, 0},
		{"kick of no ring", vhostuser.SetVringKick, u64(3), 1, nak, 0},
		{"kick with both", vhostuser.SetVringKick, u64(0x100), 1, nak, 0},
		{"kick with odd bits", vhostuser.SetVringKick, u64(0x200), 1, nak, 0},
		{"call by polling", vhostuser.SetVringCall, u64(0x101), 0, ack, 0},
		{"error by polling", vhostuser.SetVringErr, u64(0x101), 0, ack, 0},
		{"enable", vhostuser.SetVringEnable, u32(0, 1), 0, ack, 0},
		{"enable twice as much", vhostuser.SetVringEnable, u32(0, 2), 0, nak, 0},
		{"enable no ring", vhostuser.SetVringEnable, u32(3, 1), 0, nak, 0},
		{"reset", vhostuser.ResetDevice, nil, 0, ack, 0},
		{"state without descriptor", vhostuser.SetDeviceStateFD, u32(0, 0), 0, end, 0},
		{"check state", vhostuser.CheckDeviceState, nil, 0, value, 1},
		{"GET_CONFIG", 24, make([]byte, 12), 0, end, 0},
		{"SET_STATUS", 39, u64(0), 0, end, 0},
		{"GET_INFLIGHT_FD", 31, make([]byte, 24), 0, end, 0},
		{"id 0", 0, nil, 0, end, 0},
		{"id huge", 1 << 31, nil, 0, end, 0},
		{"payload huge", vhostuser.GetFeatures, make([]byte, 5000), 0, end, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := serve(t, &fakeDevice{}).connect()
			fds := make([]int, c.fds)
			for i := range fds {
				fds[i] = fdOf(t, file)
			}
			var flags uint32
			if c.want != value {
				flags = vhosttest.NeedReply
			}
			must(t, f.Send(c.id, flags, c.payload, fds...))
			p, err := f.Receive(c.id)
			if got := classify(c.want, p, err); got != c.want {
				t.Fatalf("the answer is %q (% x, %v), not %q", got, p, err, c.want)
			}
			if c.want == value && le64(p) != c.val {
				t.Errorf("value %#x, not %#x", le64(p), c.val)
			}
			if c.want == end {
				return
			}
			if _, err := f.GetU64(vhostuser.GetFeatures, nil); err != nil {
				t.Errorf("the connection did not survive: %v", err)
			}
		})
	}
}

func classify(want string, p []byte, err error) string {
	switch {
	case err != nil:
		return "end"
	case want == "value":
		return want
	case len(p) == 8 && le64(p) == 0:
		return "ack"
	}
	return "refused"
}

func le64(p []byte) (v uint64) {
	for i := min(len(p), 8) - 1; i >= 0; i-- {
		v = v<<8 | uint64(p[i])
	}
	return v
}

// fdOf is f's descriptor; the file is not used for anything else that blocking mode would disturb.
func fdOf(t *testing.T, f *os.File) int {
	t.Helper()
	fd := -1
	raw, err := f.SyscallConn()
	must(t, err)
	must(t, raw.Control(func(p uintptr) { fd = int(p) }))
	return fd
}

func TestFeatureGates(t *testing.T) {
	for _, id := range []vhostuser.MessageID{vhostuser.GetQueueNum, vhostuser.GetMaxMemSlots, vhostuser.ResetDevice,
		vhostuser.CheckDeviceState} {
		f := serve(t, &fakeDevice{}).dial()
		must(t, f.Send(id, 0, nil))
		if _, err := f.Receive(id); err == nil {
			t.Errorf("%v was served without negotiation", id)
		}
	}
}

func TestTooManyDescriptors(t *testing.T) {
	m := ram(t, 0, 1<<20)
	f := serve(t, &fakeDevice{}).connect()
	fds := make([]int, 20)
	for i := range fds {
		fds[i] = fdOf(t, m.File)
	}
	must(t, f.Send(vhostuser.SetMemTable, vhosttest.NeedReply, vhosttest.U32s(0, 0), fds...))
	if _, err := f.Receive(vhostuser.SetMemTable); err == nil {
		t.Error("20 descriptors were accepted")
	}
}

func TestBadHeaders(t *testing.T) {
	for name, raw := range map[string][]byte{
		"version 0": vhosttest.U32s(1, 0, 0),
		"version 2": vhosttest.U32s(1, 2, 0),
		"a reply":   vhosttest.U32s(1, 5, 0),
		"truncated": {1, 0, 0, 0, 1},
		"payload":   append(vhosttest.U32s(2, 1, 8), 1, 2, 3),
	} {
		f := serve(t, &fakeDevice{}).dial()
		_, err := f.Sock.Write(raw)
		must(t, err)
		must(t, f.Sock.CloseWrite())
		if _, err := f.Receive(vhostuser.GetFeatures); err == nil {
			t.Errorf("%s: answered", name)
		}
	}
}
