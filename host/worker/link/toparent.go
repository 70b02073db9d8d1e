package link

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"causeway/host/worker/offer"
	"causeway/remote"
)

// Status is how something that the parent asked for ended.
type Status struct {
	Errno unix.Errno // 0: it was done
	Text  string     // why it was not, at most 4096 bytes
}

// StatusOf is success for nil, and errno with the error's text otherwise.
func StatusOf(errno unix.Errno, err error) Status {
	if err == nil {
		return Status{}
	}
	return Status{errno, err.Error()}
}

// Err is the error that a status tells of, nil for success.
func (s Status) Err() error {
	if s.Errno == 0 {
		return nil
	}
	return fmt.Errorf("%s (%w)", s.Text, os.NewSyscallError("worker", s.Errno))
}

func (s *Status) fields(c *coder) {
	c.errno(&s.Errno)
	c.text(&s.Text, maxText)
}

// Started answers Start. It comes by itself when a session does not come to be.
type Started struct {
	forParent
	Status
}

func (m *Started) fields(c *coder) { m.Status.fields(c) }

// Wake says that the guest thread that sleeps for a slot is to be woken; remote.SlotCount stands
// for those that wait for room in the ring.
type Wake struct {
	forParent
	Slot uint32
}

func (m *Wake) fields(c *coder) {
	c.u32(&m.Slot)
	c.check(m.Slot <= remote.SlotCount, "slot %d", m.Slot)
}

// RegionEnded answers EndRegion: the worker has let go of a region.
type RegionEnded struct {
	forParent
	Region uint32
}

func (m *RegionEnded) fields(c *coder) { c.u32(&m.Region) }

// Parked answers Park, by its number. Without success the session runs on: the GPU did not let go
// in time.
type Parked struct {
	forParent
	Number uint64
	Status
}

func (m *Parked) fields(c *coder) {
	c.u64(&m.Number)
	m.Status.fields(c)
}

// Probed answers Probe: success, or what of the session cannot be rebuilt elsewhere.
type Probed struct {
	forParent
	Status
}

func (m *Probed) fields(c *coder) { m.Status.fields(c) }

// Exported answers Export. The session stays parked either way. Waiting: the guest had submitted
// more when it was parked.
type Exported struct {
	forParent
	Waiting bool
	Status
}

func (m *Exported) fields(c *coder) {
	c.flag(&m.Waiting)
	m.Status.fields(c)
}

// Copied answers Copy, by its number: a round looked at so many bytes and sent so many, Cut before
// its end. Total is how many bytes were written to its stream so far.
type Copied struct {
	forParent
	Number              uint64
	Looked, Sent, Total uint64
	Cut                 bool
	Status
}

func (m *Copied) fields(c *coder) {
	c.u64(&m.Number)
	c.u64(&m.Looked)
	c.u64(&m.Sent)
	c.u64(&m.Total)
	c.flag(&m.Cut)
	m.Status.fields(c)
}

// Rebuilt answers Rebuild. After success its sender exits.
type Rebuilt struct {
	forParent
	Status
}

func (m *Rebuilt) fields(c *coder) { m.Status.fields(c) }

// Adopted says whether a new worker runs the session now.
type Adopted struct {
	forParent
	Status
}

func (m *Adopted) fields(c *coder) { m.Status.fields(c) }

// Want asks for room for so many bytes of the GPU's memory, which the limit allows and the room
// does not. Answer: Room with the same number.
type Want struct {
	forParent
	Number, Bytes uint64
}

func (m *Want) fields(c *coder) {
	c.u64(&m.Number)
	c.u64(&m.Bytes)
}

// Beginnings is how many sessions a worker may begin at its GPU server: one, and those whose
// connection was lost before they had begun there.
const Beginnings = 8

// Connect asks for a connection to the GPU server of Config.Relay: a worker has no network of its
// own. It names a session that begins; with Again the last that it named goes on over another
// connection. Lease is that of Divert; zero: of Config.Relay. Answer: Connected.
type Connect struct {
	forParent
	Session remote.SessionID
	Lease   remote.LeaseID
	Again   bool
	Ready   bool // of remote.Preface
}

func (m *Connect) fields(c *coder) {
	c.array(m.Session[:])
	c.array(m.Lease[:])
	c.flag(&m.Again)
	c.flag(&m.Ready)
}

// Carried says what a session's frames go over between this host and the other, for the user.
type Carried struct {
	forParent
	Over string
}

func (m *Carried) fields(c *coder) { c.text(&m.Over, maxText) }

// Offer shares something with other workers of the virtual GPU, under a token: bytes, and perhaps a
// descriptor. Answer: Answer.
type Offer struct {
	forParent
	Request uint64
	Token   offer.Token
	Memory  offer.Memory
	Blob    []byte // at most offer.MaxBlob
	File    File
}

func (m *Offer) fields(c *coder) {
	c.u64(&m.Request)
	c.array(m.Token[:])
	c.u64(&m.Memory.Bytes)
	c.u64(&m.Memory.Of)
	c.flag(&m.Memory.Lasting)
	c.check(m.Memory.Bytes <= offer.MaxMemory, "%d bytes of memory", m.Memory.Bytes)
	c.rest(&m.Blob)
	c.file(&m.File)
}

// Redeem asks what a token names; with Await, of a session that is rebuilt with others, once one of
// them offers that; with Look only whether who offers it has it still, which opens nothing. Answer:
// Answer.
type Redeem struct {
	forParent
	Request     uint64
	Token       offer.Token
	Await, Look bool
}

func (m *Redeem) fields(c *coder) {
	c.u64(&m.Request)
	c.array(m.Token[:])
	c.flag(&m.Await)
	c.flag(&m.Look)
}

// Withdraw ends an Offer. Answer: Answer, once what others have open of it is counted.
type Withdraw struct {
	forParent
	Request uint64
	Token   offer.Token
}

func (m *Withdraw) fields(c *coder) {
	c.u64(&m.Request)
	c.array(m.Token[:])
}

// LetGo says that a worker has memory no more that it had by a Redeem. Answer: Answer.
type LetGo struct {
	forParent
	Request uint64
	Token   offer.Token
}

func (m *LetGo) fields(c *coder) {
	c.u64(&m.Request)
	c.array(m.Token[:])
}

// Use is who the guest process is, and what device memory it has allocated.
type Use struct {
	PID     uint32 // as the guest counts; 0: it has not said yet
	Program string // at most 4096 bytes
	Devices []DeviceUse
}

// DeviceUse is device memory in use.
type DeviceUse struct {
	UUID  [16]byte
	Bytes uint64
}

// deviceSize is a DeviceUse on the wire.
const deviceSize = 24

// Measured answers Measure.
type Measured struct {
	forParent
	Use Use
}

func (m *Measured) fields(c *coder) {
	n := uint32(len(m.Use.Devices))
	c.u32(&m.Use.PID)
	c.u32(&n)
	if n > maxDevices {
		c.refuse("%d devices", n)
		return
	}
	elements(c, &m.Use.Devices, int(n), func(u *DeviceUse) {
		c.array(u.UUID[:])
		c.u64(&u.Bytes)
	})
	c.text(&m.Use.Program, maxProgram)
}

// Rehearses says that another server's session is only to be tried in this worker, which ends then.
type Rehearses struct{ forParent }

func (*Rehearses) fields(*coder) {}

// Diverted answers Divert, Rehearse and Settle, by its number: of two that wait the later may be
// answered first.
type Diverted struct {
	forParent
	Number uint64
	Status
}

func (m *Diverted) fields(c *coder) {
	c.u64(&m.Number)
	m.Status.fields(c)
}
