package link

import (
	"encoding/json"
	"math"
	"time"

	"golang.org/x/sys/unix"
)

// Configure gives a worker its session. It is the first message but for Warm. The answer is the
// session's end, or with CarrierVirtiofs Started, with Config.Adopt Adopted. With Config.Parked
// Start comes next, with the doorbell: Started says that the driver has, and Adopted follows.
type Configure struct {
	forWorker
	Config Config
	// Connection is the guest's, with Config.Adopt the stream from the worker that has the session.
	// With CarrierVirtiofs the guest has none.
	Connection File
}

func (m *Configure) fields(c *coder) {
	c.config(&m.Config)
	c.file(&m.Connection)
	want, err := m.Config.takesConnection()
	got := m.Connection.FD() >= 0
	c.check(err == nil, "%w", err)
	c.check(got == want, "carrier %q, adopt %v, connection %v", m.Config.Carrier, m.Config.Adopt, got)
}

// Warm has the worker get ready for the Configure that will follow some time.
type Warm struct {
	forWorker
	Config Config
}

func (m *Warm) fields(c *coder) { c.config(&m.Config) }

// config is a configuration, as JSON: nothing reads it but the same program.
func (c *coder) config(v *Config) {
	var err error
	if c.reading {
		*v, err = DecodeConfig(c.take(len(c.b)))
	} else {
		var b []byte
		b, err = v.Encode()
		c.array(b)
	}
	if err != nil {
		c.refuse("%w", err)
	}
}

// MemoryRegion is a part of a VM's memory: Size bytes at GPA, at Offset of the file that backs it.
type MemoryRegion struct {
	GPA, Size, Offset uint64
}

// BackedMemory is a part of a VM's memory and its file.
type BackedMemory struct {
	MemoryRegion
	File int
}

// memorySize is a MemoryRegion on the wire.
const memorySize = 24

// AddMemory tells of parts of the VM's memory.
type AddMemory struct {
	forWorker
	Memory []BackedMemory
}

func (m *AddMemory) fields(c *coder) {
	elements(c, &m.Memory, len(c.b)/memorySize, func(r *BackedMemory) {
		c.span(&r.GPA, &r.Size)
		c.u64(&r.Offset)
		c.check(r.Size <= math.MaxInt64 && r.Offset <= math.MaxInt64-r.Size, "%#x bytes at %#x of a file", r.Size, r.Offset)
		c.descriptor(&r.File)
	})
}

// RemoveMemory says that the part of the VM's memory at a guest-physical address is gone.
type RemoveMemory struct {
	forWorker
	GPA uint64
}

func (m *RemoveMemory) fields(c *coder) { c.u64(&m.GPA) }

// AddRegion declares memory of the guest process: Size bytes that are at VA there.
type AddRegion struct {
	forWorker
	Region   uint32
	VA, Size uint64
}

func (m *AddRegion) fields(c *coder) {
	c.u32(&m.Region)
	c.pages(&m.VA, &m.Size)
}

// Range is a range of guest-physical memory.
type Range struct{ GPA, Size uint64 }

// rangeSize is a Range on the wire.
const rangeSize = 16

// AddPages lists the pages of a region from byte At of it on. With Last all of them are there now.
type AddPages struct {
	forWorker
	Region uint32
	At     uint64
	Last   bool
	Ranges []Range
}

func (m *AddPages) fields(c *coder) {
	c.u32(&m.Region)
	c.u64(&m.At)
	c.flag(&m.Last)
	c.check(m.At%pageSize == 0, "pages at byte %#x", m.At)
	elements(c, &m.Ranges, len(c.b)/rangeSize, func(r *Range) { c.pages(&r.GPA, &r.Size) })
}

// EndRegion says that a region is not used any more. Answer: RegionEnded.
type EndRegion struct {
	forWorker
	Region uint32
}

func (m *EndRegion) fields(c *coder) { c.u32(&m.Region) }

// Start says that all of region 0 is there. Answer: Started.
type Start struct {
	forWorker
	Doorbell File // to poll and drain: a sys.Bell, or an eventfd
	// With Config.Parked: the memory of a session that was exported with some; perhaps none.
	Memory []File
}

func (m *Start) fields(c *coder) {
	c.file(&m.Doorbell)
	c.others(&m.Memory)
}

// Park has the worker let go of all guest memory within Limit, of which the GPU may take Patience
// to end what it does. Answer: Parked with the same number.
type Park struct {
	forWorker
	Number          uint64
	Limit, Patience time.Duration
	Standing        bool // the guest stands: what waits for its functions waits in vain
}

func (m *Park) fields(c *coder) {
	c.u64(&m.Number)
	for _, d := range []*time.Duration{&m.Limit, &m.Patience} {
		n := uint64(*d)
		c.u64(&n)
		*d = time.Duration(n)
		c.check(*d >= 0, "a limit of %v", *d)
	}
	c.flag(&m.Standing)
}

// Probe asks whether the session could move now, with OtherModel to another model of GPU; Together:
// with all sessions that it shares with. Answer: Probed, when the consumer has time.
type Probe struct {
	forWorker
	OtherModel, Together bool
}

func (m *Probe) fields(c *coder) {
	c.flag(&m.OtherModel)
	c.flag(&m.Together)
}

// Export has a parked worker write its session to a stream socket, and stay as it is. Answer:
// Exported. Ahead: without the memory that rounds of Copy brought, which ends them. Together: all
// sessions that it shares with are exported as well.
type Export struct {
	forWorker
	Ahead    bool
	Together bool
	Stream   File
	Memory   []File // take the memory, which is not in the stream then (package bulk); perhaps none
}

func (m *Export) fields(c *coder) {
	c.flag(&m.Ahead)
	c.flag(&m.Together)
	c.file(&m.Stream)
	c.others(&m.Memory)
}

// Copy has the worker write a round of its session's memory, while that goes on, to a stream
// socket; without one, to that of the round before. With one what earlier rounds brought is
// forgotten. Rehearsal: instead, what the session is made of, without its memory, to a stream of
// its own. Answer: Copied with the same number, when the round is over. A relay does so on the way
// of Divert.Ahead, and has no stream.
type Copy struct {
	forWorker
	Number    uint64
	Rehearsal bool
	Stream    File
}

func (m *Copy) fields(c *coder) {
	c.u64(&m.Number)
	c.flag(&m.Rehearsal)
	c.file(&m.Stream)
}

// CutCopy ends a round that is under way early, if one is; with Over there will be no other.
type CutCopy struct {
	forWorker
	Over bool
}

func (m *CutCopy) fields(c *coder) { c.flag(&m.Over) }

// MostThrottle is for how many hundredths of the time a session's work can be held back.
const MostThrottle = 99

// Throttle has the worker hold its session's GPU work back for so many hundredths of the time,
// until it says 0.
type Throttle struct {
	forWorker
	Share uint32
}

func (m *Throttle) fields(c *coder) {
	c.u32(&m.Share)
	c.check(m.Share <= MostThrottle, "%d hundredths", m.Share)
}

// Room answers Want: there is room now, though others may be faster, or there is none to be had.
type Room struct {
	forWorker
	Number  uint64
	Granted bool
}

func (m *Room) fields(c *coder) {
	c.u64(&m.Number)
	c.flag(&m.Granted)
}

// Resume ends a park: the loans are back.
type Resume struct{ forWorker }

func (*Resume) fields(*coder) {}

// Rebuild moves the session to another worker, at the other end of a stream socket; with Elsewhere
// on another GPU. Answer: Rebuilt.
type Rebuild struct {
	forWorker
	Elsewhere bool
	Successor File
}

func (m *Rebuild) fields(c *coder) {
	c.flag(&m.Elsewhere)
	c.file(&m.Successor)
}

// Quit ends the session.
type Quit struct{ forWorker }

func (*Quit) fields(*coder) {}

// Measure asks who the guest process is, and what it uses. Answer: Measured, when the consumer has
// time.
type Measure struct{ forWorker }

func (*Measure) fields(*coder) {}

// Answer is that to an Offer or a Redeem, by its number.
type Answer struct {
	forWorker
	Request uint64
	Errno   unix.Errno // 0: it was done
	File    File       // of Redeem, perhaps
	Blob    []byte     // of Redeem
}

func (m *Answer) fields(c *coder) {
	c.u64(&m.Request)
	c.errno(&m.Errno)
	c.rest(&m.Blob)
	c.file(&m.File)
}

// SharePages hands pages to the worker. One comes right after a Configure that announced it
// (Config.Shared), others at any time later.
type SharePages struct {
	forWorker
	Pages []Page
}

func (m *SharePages) fields(c *coder) {
	elements(c, &m.Pages, len(c.b), func(p *Page) {
		k := [1]byte{byte(p.Kind)}
		c.array(k[:])
		p.Kind = PageKind(k[0])
		c.check(p.Kind > 0 && p.Kind < pageKinds, "page of unknown kind %d", p.Kind)
		c.descriptor(&p.File)
	})
}

// SetLimit says that the virtual GPU's memory limit is so many bytes, 0: none; or that what it uses
// has passed that either way.
type SetLimit struct {
	forWorker
	Bytes uint64
}

func (m *SetLimit) fields(c *coder) { c.u64(&m.Bytes) }

// Leave says that the parent ends as it should: a Tied worker goes on without it.
type Leave struct{ forWorker }

func (*Leave) fields(*coder) {}

// Reconnected gives a worker whose session came by a lease another connection to go on over, of
// which the preface has been read.
type Reconnected struct {
	forWorker
	Connection File
}

func (m *Reconnected) fields(c *coder) { c.file(&m.Connection) }

// Connected answers Connect: a connection that has begun with a session's preface, and success; or
// why there is none.
type Connected struct {
	forWorker
	Connection File
	Status
}

func (m *Connected) fields(c *coder) {
	m.Status.fields(c)
	c.file(&m.Connection)
}

// Divert has a relay get its session to another GPU server too. The session stands still until
// Settle. Answer: Diverted with the same number, with success once that server has all of it, else
// with the reason for which the session goes on where it was. Ahead: the session runs on, and that
// server awaits it; Copy has its memory go there, a round at a time, and Divert without Ahead the
// rest. ENOSYS in the answer to it: one of the servers knows of no rounds, nothing has begun, and
// Divert alone may do.
type Divert struct {
	forWorker
	Number uint64
	Ahead  bool
	To     Relay
}

func (m *Divert) fields(c *coder) {
	c.u64(&m.Number)
	c.flag(&m.Ahead)
	c.relay(&m.To)
}

// relay is another GPU server, as JSON, and the rest of the message.
func (c *coder) relay(to *Relay) {
	var err error
	if c.reading {
		err = json.Unmarshal(c.take(len(c.b)), to)
	} else {
		var b []byte
		b, err = json.Marshal(to)
		c.array(b)
	}
	if err != nil {
		c.refuse("%w", err)
	}
	c.check(!to.Lease.IsZero() && len(to.Addresses) > 0, "a GPU server without lease or addresses")
}

// Rehearse has another GPU server make once what a relay's session is made of, which runs on, and
// of which nothing is there afterwards. Answer: Diverted with the same number: success says that it
// can be made there, EADDRNOTAVAIL what of it cannot, and any other error that it is not known.
// Divert and Settle may come next.
type Rehearse struct {
	forWorker
	Number uint64
	To     Relay
}

func (m *Rehearse) fields(c *coder) {
	c.u64(&m.Number)
	c.relay(&m.To)
}

// Settle has the session of a relay go on at the other server, or where it was, which also ends a
// Divert that is under way. Answer: Diverted with the same number; with an error it does not go on
// at the other server.
type Settle struct {
	forWorker
	Number uint64
	Goes   bool
}

func (m *Settle) fields(c *coder) {
	c.u64(&m.Number)
	c.flag(&m.Goes)
}
