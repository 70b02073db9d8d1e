package link

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"causeway/host/worker/share"
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

func (s Status) encode(e *encoder) {
	e.u32(uint32(s.Errno))
	e.text(s.Text, maxText)
}

func (d *decoder) status() Status { return Status{unix.Errno(d.u32()), d.text()} }

// Started answers Start. It comes by itself when a session does not come to be.
type Started struct {
	forParent
	Status
}

func (Started) kind() kind          { return kindStarted }
func (m Started) encode(e *encoder) { m.Status.encode(e) }

// Wake says that the guest thread that sleeps for a slot is to be woken; remote.SlotCount stands for those that wait for room in the ring.
type Wake struct {
	forParent
	Slot uint32
}

func (Wake) kind() kind          { return kindWake }
func (m Wake) encode(e *encoder) { e.u32(m.Slot) }

func decodeWake(d *decoder) ToParent {
	m := Wake{Slot: d.u32()}
	if m.Slot > remote.SlotCount {
		d.refuse("slot %d", m.Slot)
	}
	return m
}

// RegionEnded answers EndRegion: the worker has let go of a region.
type RegionEnded struct {
	forParent
	Region uint32
}

func (RegionEnded) kind() kind          { return kindRegionEnded }
func (m RegionEnded) encode(e *encoder) { e.u32(m.Region) }

// Parked answers Park, by its number.
type Parked struct {
	forParent
	Number uint64
}

func (Parked) kind() kind          { return kindParked }
func (m Parked) encode(e *encoder) { e.u64(m.Number) }

// Rebuilt answers Rebuild. After success its sender exits.
type Rebuilt struct {
	forParent
	Status
}

func (Rebuilt) kind() kind          { return kindRebuilt }
func (m Rebuilt) encode(e *encoder) { m.Status.encode(e) }

// Adopted says whether a new worker runs the session now.
type Adopted struct {
	forParent
	Status
}

func (Adopted) kind() kind          { return kindAdopted }
func (m Adopted) encode(e *encoder) { m.Status.encode(e) }

// Offer shares something with other workers of the virtual GPU, under a token: bytes, and perhaps a descriptor. Answer: Answer.
type Offer struct {
	forParent
	Request uint64
	Token   share.Token
	Blob    []byte // at most share.MaxBlob
	File    File
}

func (Offer) kind() kind { return kindOffer }

func (m Offer) encode(e *encoder) {
	e.u64(m.Request)
	e.bytes(m.Token[:])
	e.bytes(m.Blob)
	e.file(m.File)
}

func decodeOffer(d *decoder) ToParent {
	return Offer{Request: d.u64(), Token: d.token(), Blob: d.rest(), File: d.file()}
}

func (d *decoder) token() share.Token { return share.Token(d.take(share.TokenSize)) }

// Redeem asks what a token names. Answer: Answer.
type Redeem struct {
	forParent
	Request uint64
	Token   share.Token
}

func (Redeem) kind() kind { return kindRedeem }

func (m Redeem) encode(e *encoder) {
	e.u64(m.Request)
	e.bytes(m.Token[:])
}

// Withdraw ends an Offer. There is no answer.
type Withdraw struct {
	forParent
	Token share.Token
}

func (Withdraw) kind() kind          { return kindWithdraw }
func (m Withdraw) encode(e *encoder) { e.bytes(m.Token[:]) }

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

func (Measured) kind() kind { return kindMeasured }

func (m Measured) encode(e *encoder) {
	if len(m.Use.Devices) > maxDevices {
		e.err = fmt.Errorf("%d devices", len(m.Use.Devices))
		return
	}
	e.u32(m.Use.PID)
	e.u32(uint32(len(m.Use.Devices)))
	for _, u := range m.Use.Devices {
		e.bytes(u.UUID[:])
		e.u64(u.Bytes)
	}
	e.text(m.Use.Program, maxProgram)
}

func decodeMeasured(d *decoder) ToParent {
	m := Measured{Use: Use{PID: d.u32()}}
	n := d.u32()
	if n > maxDevices {
		d.refuse("%d devices", n)
		return m
	}
	for range n {
		m.Use.Devices = append(m.Use.Devices, DeviceUse{[16]byte(d.take(16)), d.u64()})
	}
	if m.Use.Program = d.text(); len(m.Use.Program) > maxProgram {
		d.refuse("a program's name of %d bytes", len(m.Use.Program))
	}
	return m
}
