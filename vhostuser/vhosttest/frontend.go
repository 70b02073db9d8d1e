package vhosttest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"golang.org/x/sys/unix"

	"causeway/vhostuser"
)

var le = binary.LittleEndian

// ErrRefused says that the back end acknowledged a message with a failure.
var ErrRefused = errors.New("the back end refused the message")

// Frontend is a QEMU of a few lines. Its methods return errors instead of failing a test, so that
// fuzz targets and benchmarks can use it.
type Frontend struct {
	Sock *net.UnixConn

	rings map[int]*Ring
}

// Ring is the front end's side of one virtqueue.
type Ring struct {
	Size              int
	Desc, Avail, Used uint64 // guest-physical
	Kick, Call        *Event
}

// Event is an eventfd shared with the back end; non-blocking, as QEMU's are.
type Event struct{ fd int }

// NewEvent makes one.
func NewEvent() (*Event, error) {
	fd, err := unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("eventfd: %w", err)
	}
	return &Event{fd}, nil
}

// FD is the descriptor.
func (e *Event) FD() int { return e.fd }

// Signal adds one.
func (e *Event) Signal() { _, _ = unix.Write(e.fd, []byte{1, 0, 0, 0, 0, 0, 0, 0}) }

// Wait waits for the other side, at most d, and says whether it signalled.
func (e *Event) Wait(d time.Duration) bool {
	deadline := time.Now().Add(d)
	for {
		left := time.Until(deadline)
		p := []unix.PollFd{{Fd: int32(e.fd), Events: unix.POLLIN}}
		n, err := unix.Poll(p, int(max(left.Milliseconds(), 0)))
		if n > 0 {
			var b [8]byte
			_, _ = unix.Read(e.fd, b[:])
			return true
		}
		if err != unix.EINTR && left <= 0 {
			return false
		}
	}
}

// NonBlocking says whether O_NONBLOCK is still set: a back end that clears it hangs QEMU.
func (e *Event) NonBlocking() bool {
	f, err := unix.FcntlInt(uintptr(e.fd), unix.F_GETFL, 0)
	return err == nil && f&unix.O_NONBLOCK != 0
}

// Close closes the descriptor.
func (e *Event) Close() { _ = unix.Close(e.fd) }

// Dial connects to a back end.
func Dial(path string) (*Frontend, error) {
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, err
	}
	return &Frontend{Sock: c, rings: map[int]*Ring{}}, nil
}

// Close disconnects, as QEMU's exit does.
func (f *Frontend) Close() {
	_ = f.Sock.Close()
	for _, r := range f.rings {
		r.Kick.Close()
		r.Call.Close()
	}
}

// Message flags.
const (
	version   = 1
	isReply   = 4
	NeedReply = 8
)

// Send writes one message.
func (f *Frontend) Send(id vhostuser.MessageID, flags uint32, payload []byte, fds ...int) error {
	b := le.AppendUint32(nil, uint32(id))
	b = le.AppendUint32(b, version|flags)
	b = le.AppendUint32(b, uint32(len(payload)))
	b = append(b, payload...)
	var oob []byte
	if len(fds) > 0 {
		oob = unix.UnixRights(fds...)
	}
	_, _, err := f.Sock.WriteMsgUnix(b, oob, nil)
	return err
}

// Receive reads one reply to id, for at most ten seconds.
func (f *Frontend) Receive(id vhostuser.MessageID) ([]byte, error) {
	_ = f.Sock.SetReadDeadline(time.Now().Add(time.Minute))
	var h [12]byte
	if _, err := io.ReadFull(f.Sock, h[:]); err != nil {
		return nil, fmt.Errorf("reply to %v: %w", id, err)
	}
	if got := vhostuser.MessageID(le.Uint32(h[:])); got != id || le.Uint32(h[4:]) != version|isReply {
		return nil, fmt.Errorf("reply to %v has id %v, flags %#x", id, got, le.Uint32(h[4:]))
	}
	p := make([]byte, le.Uint32(h[8:]))
	_, err := io.ReadFull(f.Sock, p)
	return p, err
}

// Get sends a message that the protocol answers.
func (f *Frontend) Get(id vhostuser.MessageID, payload []byte, fds ...int) ([]byte, error) {
	if err := f.Send(id, 0, payload, fds...); err != nil {
		return nil, err
	}
	return f.Receive(id)
}

// GetU64 is Get for a 64-bit answer.
func (f *Frontend) GetU64(id vhostuser.MessageID, payload []byte, fds ...int) (uint64, error) {
	p, err := f.Get(id, payload, fds...)
	if err != nil {
		return 0, err
	}
	if len(p) != 8 {
		return 0, fmt.Errorf("reply to %v has %d bytes", id, len(p))
	}
	return le.Uint64(p), nil
}

// Set sends a message and waits for its acknowledgement (REPLY_ACK).
func (f *Frontend) Set(id vhostuser.MessageID, payload []byte, fds ...int) error {
	if err := f.Send(id, NeedReply, payload, fds...); err != nil {
		return err
	}
	p, err := f.Receive(id)
	if err != nil {
		return err
	}
	if len(p) != 8 || le.Uint64(p) != 0 {
		return fmt.Errorf("%v: %w", id, ErrRefused)
	}
	return nil
}

// U64 and U32s encode payloads.
func U64(vs ...uint64) (b []byte) {
	for _, v := range vs {
		b = le.AppendUint64(b, v)
	}
	return b
}

// U32s: see U64.
func U32s(vs ...uint32) (b []byte) {
	for _, v := range vs {
		b = le.AppendUint32(b, v)
	}
	return b
}

// Handshake does what QEMU does when the device is realized.
func (f *Frontend) Handshake() error {
	if _, err := f.GetU64(vhostuser.GetFeatures, nil); err != nil {
		return err
	}
	p, err := f.GetU64(vhostuser.GetProtocolFeatures, nil)
	if err != nil {
		return err
	}
	if err := f.Send(vhostuser.SetProtocolFeatures, 0, U64(p)); err != nil {
		return err
	}
	if _, err := f.GetU64(vhostuser.GetQueueNum, nil); err != nil {
		return err
	}
	if _, err := f.GetU64(vhostuser.GetMaxMemSlots, nil); err != nil {
		return err
	}
	if err := f.Send(vhostuser.SetOwner, 0, nil); err != nil {
		return err
	}
	if err := f.Set(vhostuser.ResetDevice, nil); err != nil {
		return err
	}
	return f.SetFeatures(vhostuser.Features &^ vhostuser.FeatureLogAll)
}

// SetFeatures acknowledges features.
func (f *Frontend) SetFeatures(features uint64) error {
	return f.Set(vhostuser.SetFeatures, U64(features))
}

// AddMemory announces m as a memory slot.
func (f *Frontend) AddMemory(m *Memory) error {
	fd, err := m.DupFD()
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return f.Set(vhostuser.AddMemReg, regionPayload(m), fd)
}

// RemoveMemory withdraws m.
func (f *Frontend) RemoveMemory(m *Memory) error {
	return f.Set(vhostuser.RemMemReg, regionPayload(m))
}

func regionPayload(m *Memory) []byte {
	return U64(0, m.GPA, uint64(len(m.Bytes)), m.User, 0)
}

// StartRing sets up ring i in m and enables it. It makes the ring's eventfds.
func (f *Frontend) StartRing(m *Memory, i int, r *Ring, base uint16) (err error) {
	if r.Kick == nil {
		if r.Kick, err = NewEvent(); err != nil {
			return err
		}
		if r.Call, err = NewEvent(); err != nil {
			return err
		}
	}
	f.rings[i] = r
	idx := uint32(i)
	addr := append(U32s(idx, 0), U64(m.UserOf(r.Desc), m.UserOf(r.Used), m.UserOf(r.Avail), r.Used)...)
	return errors.Join(
		f.Set(vhostuser.SetVringCall, U64(uint64(i)), r.Call.fd),
		f.Set(vhostuser.SetVringNum, U32s(idx, uint32(r.Size))),
		f.Set(vhostuser.SetVringBase, U32s(idx, uint32(base))),
		f.Set(vhostuser.SetVringAddr, addr),
		f.Set(vhostuser.SetVringKick, U64(uint64(i)), r.Kick.fd),
		f.Set(vhostuser.SetVringEnable, U32s(idx, 1)))
}

// StopRing disables ring i and returns its next available index.
func (f *Frontend) StopRing(i int) (uint16, error) {
	if err := f.Send(vhostuser.SetVringEnable, 0, U32s(uint32(i), 0)); err != nil {
		return 0, err
	}
	p, err := f.Get(vhostuser.GetVringBase, U32s(uint32(i), 0))
	if err != nil {
		return 0, err
	}
	if len(p) != 8 || le.Uint32(p) != uint32(i) {
		return 0, fmt.Errorf("GET_VRING_BASE of ring %d answered % x", i, p)
	}
	return uint16(le.Uint32(p[4:])), nil
}
