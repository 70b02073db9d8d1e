package link

import (
	"fmt"
	"reflect"

	"causeway/host/worker/bulk"
	"causeway/host/worker/offer"
	"causeway/remote/sys"
)

// kind is the number of a kind of message on the wire.
type kind uint32

// Bounds.
const (
	// MaxConfig is the most bytes of a configuration.
	MaxConfig = 64 << 10
	// MaxRanges is the most that one AddPages lists: what one READ of a guest can be made of, with
	// room to spare.
	MaxRanges = 4096

	maxText    = 4096 // bytes of an error's text
	maxProgram = 4096 // bytes of a program's name
	maxDevices = 256  // that one session can use
	maxPages   = 16   // that one SharePages hands over

	// maxPacket holds the longest kind, AddPages.
	maxPacket = headerSize + 16 + MaxRanges*rangeSize
)

// shape is what a kind of message looks like.
type shape struct {
	fixed     int // bytes of its fields
	tail      int // most bytes of the one of variable length that comes last
	unit      int // which its length is a multiple of; 0: of 1
	files     int // fewest descriptors
	mostFiles int
}

// definition is a kind of message.
type definition[M Message] struct {
	shape
	name   string
	number kind
	is     reflect.Type
	encode func(M, *coder)
	decode func(*coder) M
}

// define is the definition of T, whose fields method goes through its fields.
func define[M Message, T any, P interface {
	*T
	fields(*coder)
}](name string, s shape) definition[M] {
	return definition[M]{
		shape: s, name: name, is: reflect.TypeFor[T](),
		encode: func(m M, c *coder) {
			v := any(m).(T)
			P(&v).fields(c)
		},
		decode: func(c *coder) M {
			var v T
			P(&v).fields(c)
			return any(v).(M)
		},
	}
}

// table defines the kinds of a direction.
type table[M Message] struct {
	numbers map[kind]*definition[M]
	types   map[reflect.Type]*definition[M]
}

// number makes a table of kinds in the order of their numbers, from one on.
func number[M Message](first kind, list ...definition[M]) table[M] {
	t := table[M]{map[kind]*definition[M]{}, map[reflect.Type]*definition[M]{}}
	for i := range list {
		d := &list[i]
		d.number = first + kind(i)
		t.numbers[d.number], t.types[d.is] = d, d
	}
	return t
}

// fits says what is wrong with a packet of so many bytes behind the header, and descriptors.
func (s shape) fits(size, files int) error {
	switch tail := size - s.fixed; {
	case tail < 0, tail > s.tail, s.unit > 0 && tail%s.unit != 0:
		return fmt.Errorf("%d bytes", size)
	case files < s.files, files > s.mostFiles:
		return fmt.Errorf("%d descriptors", files)
	}
	return nil
}

// Name is a message's kind, for errors and logs.
func Name(m Message) string {
	if d := toWorker.types[reflect.TypeOf(m)]; d != nil {
		return d.name
	}
	return toParent.types[reflect.TypeOf(m)].name
}

// toWorker defines what a parent sends.
var toWorker = number(1,
	define[ToWorker, Configure]("configure", shape{tail: MaxConfig, mostFiles: 1}),
	define[ToWorker, Warm]("warm", shape{tail: MaxConfig}),
	define[ToWorker, AddMemory]("add memory", shape{tail: sys.MaxRights * memorySize, unit: memorySize, mostFiles: sys.MaxRights}),
	define[ToWorker, RemoveMemory]("remove memory", shape{fixed: 8}),
	define[ToWorker, AddRegion]("add region", shape{fixed: 4 + 16}),
	define[ToWorker, AddPages]("add pages", shape{fixed: 4 + 8 + 4, tail: MaxRanges * rangeSize, unit: rangeSize}),
	define[ToWorker, EndRegion]("end region", shape{fixed: 4}),
	define[ToWorker, Start]("start", shape{files: 1, mostFiles: 1 + bulk.MostThreads}),
	define[ToWorker, Park]("park", shape{fixed: 8 + 8 + 8 + 4}),
	define[ToWorker, Resume]("resume", shape{}),
	define[ToWorker, Rebuild]("rebuild", shape{fixed: 4, files: 1, mostFiles: 1}),
	define[ToWorker, Quit]("quit", shape{}),
	define[ToWorker, Measure]("measure", shape{}),
	define[ToWorker, Answer]("answer", shape{fixed: 8 + 4, tail: offer.MaxBlob, mostFiles: 1}),
	define[ToWorker, SharePages]("share pages", shape{tail: maxPages, files: 1, mostFiles: maxPages}),
	define[ToWorker, SetLimit]("set limit", shape{fixed: 8}),
	define[ToWorker, Leave]("leave", shape{}),
	define[ToWorker, Probe]("probe", shape{fixed: 8}),
	define[ToWorker, Export]("export", shape{fixed: 8, files: 1, mostFiles: 1 + bulk.MostThreads}),
	define[ToWorker, Copy]("copy", shape{fixed: 12, mostFiles: 1}),
	define[ToWorker, CutCopy]("cut copy", shape{fixed: 4}),
	define[ToWorker, Room]("room", shape{fixed: 8 + 4}),
	define[ToWorker, Connected]("connected", shape{fixed: 4, tail: maxText, mostFiles: 1}),
	define[ToWorker, Throttle]("throttle", shape{fixed: 4}),
	define[ToWorker, Reconnected]("reconnected", shape{files: 1, mostFiles: 1}),
	define[ToWorker, Divert]("divert", shape{fixed: 8 + 4, tail: MaxConfig}),
	define[ToWorker, Settle]("settle", shape{fixed: 8 + 4}),
	define[ToWorker, Rehearse]("rehearse", shape{fixed: 8, tail: MaxConfig}),
)

// toParent defines what a worker sends.
var toParent = number(101,
	define[ToParent, Started]("started", shape{fixed: 4, tail: maxText}),
	define[ToParent, Wake]("wake", shape{fixed: 4}),
	define[ToParent, RegionEnded]("region ended", shape{fixed: 4}),
	define[ToParent, Parked]("parked", shape{fixed: 8 + 4, tail: maxText}),
	define[ToParent, Rebuilt]("rebuilt", shape{fixed: 4, tail: maxText}),
	define[ToParent, Adopted]("adopted", shape{fixed: 4, tail: maxText}),
	define[ToParent, Offer]("offer", shape{fixed: 8 + offer.TokenSize + 16 + 4, tail: offer.MaxBlob, mostFiles: 1}),
	define[ToParent, Redeem]("redeem", shape{fixed: 8 + offer.TokenSize + 8}),
	define[ToParent, Withdraw]("withdraw", shape{fixed: 8 + offer.TokenSize}),
	define[ToParent, Measured]("measured", shape{fixed: 4 + 4, tail: maxDevices*deviceSize + maxProgram}),
	define[ToParent, Probed]("probed", shape{fixed: 4, tail: maxText}),
	define[ToParent, Exported]("exported", shape{fixed: 4 + 4, tail: maxText}),
	define[ToParent, Copied]("copied", shape{fixed: 4*8 + 4 + 4, tail: maxText}),
	define[ToParent, Want]("want", shape{fixed: 8 + 8}),
	define[ToParent, Connect]("connect", shape{fixed: 16 + 16 + 4 + 4}),
	define[ToParent, Carried]("carried", shape{tail: maxText}),
	define[ToParent, LetGo]("let go", shape{fixed: 8 + offer.TokenSize}),
	define[ToParent, Diverted]("diverted", shape{fixed: 8 + 4, tail: maxText}),
	define[ToParent, Rehearses]("rehearses", shape{}),
)
