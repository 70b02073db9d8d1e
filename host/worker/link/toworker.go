package link

import (
	"math"

	"golang.org/x/sys/unix"
)

// Configure gives a worker its session. It is the first message but for Warm. The answer is the session's end, or with CarrierLeased
// Started, with Config.Adopt Adopted.
type Configure struct {
	forWorker
	Config Config
	// Connection is the guest's, with Config.Adopt the stream from the worker that has the session. With CarrierLeased the guest has none.
	Connection File
}

func (Configure) kind() kind { return kindConfigure }

func (m Configure) encode(e *encoder) {
	e.config(m.Config)
	e.file(m.Connection)
}

func decodeConfigure(d *decoder) ToWorker {
	m := Configure{Config: d.config(), Connection: d.file()}
	want, err := m.Config.takesConnection()
	if err != nil {
		d.refuse("%w", err)
	}
	if got := m.Connection.FD() >= 0; got != want {
		d.refuse("carrier %q, adopt %v, connection %v", m.Config.Carrier, m.Config.Adopt, got)
	}
	return m
}

// Warm has the worker get ready for the Configure that will follow some time.
type Warm struct {
	forWorker
	Config Config
}

func (Warm) kind() kind          { return kindWarm }
func (m Warm) encode(e *encoder) { e.config(m.Config) }

func decodeWarm(d *decoder) ToWorker { return Warm{Config: d.config()} }

// config appends a configuration, as JSON: nothing reads it but the same program.
func (e *encoder) config(c Config) {
	b, err := c.Encode()
	if err != nil {
		e.err = err
	}
	e.bytes(b)
}

func (d *decoder) config() Config {
	c, err := DecodeConfig(d.take(len(d.b)))
	if err != nil {
		d.refuse("%w", err)
	}
	return c
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

func (AddMemory) kind() kind { return kindAddMemory }

func (m AddMemory) encode(e *encoder) {
	for _, r := range m.Memory {
		e.u64(r.GPA)
		e.u64(r.Size)
		e.u64(r.Offset)
		e.files = append(e.files, r.File)
	}
}

func decodeAddMemory(d *decoder) ToWorker {
	m := AddMemory{Memory: make([]BackedMemory, 0, len(d.b)/memorySize)}
	if len(d.files) != cap(m.Memory) {
		d.refuse("%d descriptors for %d regions", len(d.files), cap(m.Memory))
	}
	for len(d.b) > 0 && d.err == nil {
		var r MemoryRegion
		r.GPA, r.Size = d.span()
		if r.Offset = d.u64(); r.Offset > math.MaxInt64-r.Size || r.Size > math.MaxInt64 {
			d.refuse("%#x bytes at %#x of a file", r.Size, r.Offset)
		}
		m.Memory = append(m.Memory, BackedMemory{r, d.file().FD()})
	}
	return m
}

// RemoveMemory says that the part of the VM's memory at a guest-physical address is gone.
type RemoveMemory struct {
	forWorker
	GPA uint64
}

func (RemoveMemory) kind() kind          { return kindRemoveMemory }
func (m RemoveMemory) encode(e *encoder) { e.u64(m.GPA) }

// AddRegion declares memory of the guest process: Size bytes that are at VA there.
type AddRegion struct {
	forWorker
	Region   uint32
	VA, Size uint64
}

func (AddRegion) kind() kind { return kindAddRegion }

func (m AddRegion) encode(e *encoder) {
	e.u32(m.Region)
	e.u64(m.VA)
	e.u64(m.Size)
}

func decodeAddRegion(d *decoder) ToWorker {
	m := AddRegion{Region: d.u32()}
	m.VA, m.Size = d.pages()
	return m
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

func (AddPages) kind() kind { return kindAddPages }

func (m AddPages) encode(e *encoder) {
	e.u32(m.Region)
	e.u64(m.At)
	e.flag(m.Last)
	for _, x := range m.Ranges {
		e.u64(x.GPA)
		e.u64(x.Size)
	}
}

func decodeAddPages(d *decoder) ToWorker {
	m := AddPages{Region: d.u32(), At: d.u64(), Last: d.flag()}
	m.Ranges = make([]Range, 0, len(d.b)/rangeSize)
	if m.At%pageSize != 0 {
		d.refuse("pages at byte %#x", m.At)
	}
	for len(d.b) > 0 && d.err == nil {
		gpa, size := d.pages()
		m.Ranges = append(m.Ranges, Range{gpa, size})
	}
	return m
}

// EndRegion says that a region is not used any more. Answer: RegionEnded.
type EndRegion struct {
	forWorker
	Region uint32
}

func (EndRegion) kind() kind          { return kindEndRegion }
func (m EndRegion) encode(e *encoder) { e.u32(m.Region) }

// Start says that all of region 0 is there. Answer: Started.
type Start struct {
	forWorker
	Doorbell File // an eventfd
}

func (Start) kind() kind          { return kindStart }
func (m Start) encode(e *encoder) { e.file(m.Doorbell) }

// Park has the worker let go of all guest memory. Answer: Parked with the same number.
type Park struct {
	forWorker
	Number uint64
}

func (Park) kind() kind          { return kindPark }
func (m Park) encode(e *encoder) { e.u64(m.Number) }

// Resume ends a park: the leases are back.
type Resume struct{ forWorker }

func (Resume) kind() kind      { return kindResume }
func (Resume) encode(*encoder) {}

// Rebuild moves the session to another worker, at the other end of a stream socket. Answer: Rebuilt.
type Rebuild struct {
	forWorker
	Successor File
}

func (Rebuild) kind() kind          { return kindRebuild }
func (m Rebuild) encode(e *encoder) { e.file(m.Successor) }

// Quit ends the session.
type Quit struct{ forWorker }

func (Quit) kind() kind      { return kindQuit }
func (Quit) encode(*encoder) {}

// Measure asks who the guest process is, and what it uses. Answer: Measured, when the consumer has time.
type Measure struct{ forWorker }

func (Measure) kind() kind      { return kindMeasure }
func (Measure) encode(*encoder) {}

// Answer is that to an Offer or a Redeem, by its number.
type Answer struct {
	forWorker
	Request uint64
	Errno   unix.Errno // 0: it was done
	File    File       // of Redeem, perhaps
	Blob    []byte     // of Redeem
}

func (Answer) kind() kind { return kindAnswer }

func (m Answer) encode(e *encoder) {
	e.u64(m.Request)
	e.u32(uint32(m.Errno))
	e.bytes(m.Blob)
	e.file(m.File)
}

func decodeAnswer(d *decoder) ToWorker {
	return Answer{Request: d.u64(), Errno: unix.Errno(d.u32()), Blob: d.rest(), File: d.file()}
}

// SharePages hands pages to the worker. One comes right after a Configure that announced it (Config.Shared), others at any time later.
type SharePages struct {
	forWorker
	Pages []Page
}

func (SharePages) kind() kind { return kindSharePages }

func (m SharePages) encode(e *encoder) {
	for _, p := range m.Pages {
		e.bytes([]byte{byte(p.Kind)})
		e.files = append(e.files, p.File)
	}
}

func decodeSharePages(d *decoder) ToWorker {
	m := SharePages{Pages: make([]Page, 0, len(d.files))}
	if len(d.b) != len(d.files) {
		d.refuse("%d descriptors for %d pages", len(d.files), len(d.b))
	}
	for len(d.b) > 0 && d.err == nil {
		k := PageKind(d.take(1)[0])
		if k == 0 || k >= pageKinds {
			d.refuse("page of unknown kind %d", k)
		}
		m.Pages = append(m.Pages, Page{k, d.file().FD()})
	}
	return m
}

// SetLimit says that the virtual GPU's memory limit is so many bytes, 0: none; or that what it uses has passed that either way.
type SetLimit struct {
	forWorker
	Bytes uint64
}

func (SetLimit) kind() kind          { return kindSetLimit }
func (m SetLimit) encode(e *encoder) { e.u64(m.Bytes) }

// Leave says that the parent ends as it should: a Tied worker goes on without it.
type Leave struct{ forWorker }

func (Leave) kind() kind      { return kindLeave }
func (Leave) encode(*encoder) {}
