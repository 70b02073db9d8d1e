package link

import (
	"fmt"

	"causeway/host/worker/share"
	"causeway/remote/sys"
)

// kind is the number of a kind of message on the wire.
type kind uint32

// Kinds that the parent sends.
const (
	kindConfigure kind = iota + 1
	kindWarm
	kindAddMemory
	kindRemoveMemory
	kindAddRegion
	kindAddPages
	kindEndRegion
	kindStart
	kindPark
	kindResume
	kindRebuild
	kindQuit
	kindMeasure
	kindAnswer
	kindSharePages
	kindSetLimit
	kindLeave
)

// Kinds that the worker sends.
const (
	kindStarted kind = iota + 101
	kindWake
	kindRegionEnded
	kindParked
	kindRebuilt
	kindAdopted
	kindOffer
	kindRedeem
	kindWithdraw
	kindMeasured
)

// Bounds.
const (
	// MaxConfig is the most bytes of a configuration.
	MaxConfig = 64 << 10
	// MaxRanges is the most that one AddPages lists: what one READ of a guest can be made of, with room to spare.
	MaxRanges = 4096

	maxText    = 4096 // bytes of an error's text
	maxProgram = 4096 // bytes of a program's name
	maxDevices = 256  // that one session can use
	maxPages   = 16   // that one SharePages hands over

	// maxPacket holds the longest kind, AddPages.
	maxPacket = headerSize + 16 + MaxRanges*rangeSize
)

// definition is what a kind of message looks like.
type definition[M Message] struct {
	name      string
	fixed     int // bytes of its fields
	tail      int // most bytes of the one of variable length that comes last
	unit      int // which its length is a multiple of; 0: of 1
	files     int // fewest descriptors
	mostFiles int
	decode    func(*decoder) M
}

// table defines the kinds of a direction.
type table[M Message] map[kind]definition[M]

// fits says what is wrong with a packet of so many bytes behind the header, and descriptors.
func (d definition[M]) fits(size, files int) error {
	switch tail := size - d.fixed; {
	case tail < 0, tail > d.tail, d.unit > 0 && tail%d.unit != 0:
		return fmt.Errorf("%d bytes", size)
	case files < d.files, files > d.mostFiles:
		return fmt.Errorf("%d descriptors", files)
	}
	return nil
}

// Name is a message's kind, for errors and logs.
func Name(m Message) string {
	if d, ok := toWorker[m.kind()]; ok {
		return d.name
	}
	return toParent[m.kind()].name
}

// toWorker defines what a parent sends.
var toWorker = table[ToWorker]{
	kindConfigure:    {name: "configure", tail: MaxConfig, mostFiles: 1, decode: decodeConfigure},
	kindWarm:         {name: "warm", tail: MaxConfig, decode: decodeWarm},
	kindAddMemory:    {name: "add memory", tail: sys.MaxRights * memorySize, unit: memorySize, mostFiles: sys.MaxRights, decode: decodeAddMemory},
	kindRemoveMemory: {name: "remove memory", fixed: 8, decode: func(d *decoder) ToWorker { return RemoveMemory{GPA: d.u64()} }},
	kindAddRegion:    {name: "add region", fixed: 4 + 16, decode: decodeAddRegion},
	kindAddPages:     {name: "add pages", fixed: 4 + 8 + 4, tail: MaxRanges * rangeSize, unit: rangeSize, decode: decodeAddPages},
	kindEndRegion:    {name: "end region", fixed: 4, decode: func(d *decoder) ToWorker { return EndRegion{Region: d.u32()} }},
	kindStart:        {name: "start", files: 1, mostFiles: 1, decode: func(d *decoder) ToWorker { return Start{Doorbell: d.file()} }},
	kindPark:         {name: "park", fixed: 8, decode: func(d *decoder) ToWorker { return Park{Number: d.u64()} }},
	kindResume:       {name: "resume", decode: func(*decoder) ToWorker { return Resume{} }},
	kindRebuild:      {name: "rebuild", files: 1, mostFiles: 1, decode: func(d *decoder) ToWorker { return Rebuild{Successor: d.file()} }},
	kindQuit:         {name: "quit", decode: func(*decoder) ToWorker { return Quit{} }},
	kindMeasure:      {name: "measure", decode: func(*decoder) ToWorker { return Measure{} }},
	kindAnswer:       {name: "answer", fixed: 8 + 4, tail: share.MaxBlob, mostFiles: 1, decode: decodeAnswer},
	kindSharePages:   {name: "share pages", tail: maxPages, files: 1, mostFiles: maxPages, decode: decodeSharePages},
	kindSetLimit:     {name: "set limit", fixed: 8, decode: func(d *decoder) ToWorker { return SetLimit{Bytes: d.u64()} }},
	kindLeave:        {name: "leave", decode: func(*decoder) ToWorker { return Leave{} }},
}

// toParent defines what a worker sends.
var toParent = table[ToParent]{
	kindStarted:     {name: "started", fixed: 4, tail: maxText, decode: func(d *decoder) ToParent { return Started{Status: d.status()} }},
	kindWake:        {name: "wake", fixed: 4, decode: decodeWake},
	kindRegionEnded: {name: "region ended", fixed: 4, decode: func(d *decoder) ToParent { return RegionEnded{Region: d.u32()} }},
	kindParked:      {name: "parked", fixed: 8, decode: func(d *decoder) ToParent { return Parked{Number: d.u64()} }},
	kindRebuilt:     {name: "rebuilt", fixed: 4, tail: maxText, decode: func(d *decoder) ToParent { return Rebuilt{Status: d.status()} }},
	kindAdopted:     {name: "adopted", fixed: 4, tail: maxText, decode: func(d *decoder) ToParent { return Adopted{Status: d.status()} }},
	kindOffer:       {name: "offer", fixed: 8 + share.TokenSize, tail: share.MaxBlob, mostFiles: 1, decode: decodeOffer},
	kindRedeem:      {name: "redeem", fixed: 8 + share.TokenSize, decode: func(d *decoder) ToParent { return Redeem{Request: d.u64(), Token: d.token()} }},
	kindWithdraw:    {name: "withdraw", fixed: share.TokenSize, decode: func(d *decoder) ToParent { return Withdraw{Token: d.token()} }},
	kindMeasured:    {name: "measured", fixed: 4 + 4, tail: maxDevices*deviceSize + maxProgram, decode: decodeMeasured},
}
