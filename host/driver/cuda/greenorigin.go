package cuda

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/driver/cuda/bind"
)

/*
A CUdevResource holds words of one process's driver. A session that may move remembers how it came
by each: of which device, and how that was cut. Another process does the same and knows the guest's
bytes for what came of it.
*/

// origin is how a resource came about: words that say of which device, then for each cut in what
// way, and which of what came of it. nil: nobody knows.
type origin []uint64

const (
	cutWords = 4
	mostCuts = 64
)

// ofDevice is a device's own resource of a type.
func ofDevice(dev, kind uint32) origin { return origin{uint64(dev)<<32 | uint64(kind)} }

// cut is the origin of the place'th of what comes of cutting a resource: the rest behind the
// groups.
func (o origin) cut(a *wire.DevSmResourceSplitArgs, place uint32) origin {
	if o == nil || len(o) > mostCuts*cutWords {
		return nil
	}
	return append(slices.Clone(o), uint64(min(a.Room, maxSplit)), uint64(a.Remain&1), uint64(a.Flags)<<32|uint64(a.Least), uint64(place))
}

var errOrigin = errors.New("not how a resource comes about")

// derive makes the resource of an origin in this process.
func (s *session) derive(o origin) (d bind.DevResource, err error) {
	if len(o)%cutWords != 1 || len(o) > 1+mostCuts*cutWords {
		return d, errOrigin
	}
	if res := s.drv.DeviceGetDevResource(uint32(o[0]>>32), &d, uint32(o[0])); res != cuda.Success {
		return d, res
	}
	for o = o[1:]; len(o) > 0; o = o[cutWords:] {
		if o[0] > maxSplit || o[1] > 1 {
			return d, errOrigin
		}
		list, rest := make([]bind.DevResource, o[0]), &bind.DevResource{}
		if o[1] == 0 {
			rest = nil
		}
		n, res := s.drv.DevSmResourceSplitByCount(list, &d, rest, uint32(o[2]>>32), uint32(o[2]))
		if res != cuda.Success {
			return d, res
		}
		list = list[:min(uint64(n), o[0])]
		if rest != nil {
			list = append(list, *rest)
		}
		if o[3] >= uint64(len(list)) {
			return d, errOrigin
		}
		d = list[o[3]]
	}
	return d, nil
}

// smCount is where a resource of multiprocessors says how many they are (cuda.h, CUdevSmResource).
const smCount = 92

// recall has the guest's bytes of a resource mean what comes of its origin here, which must be as
// much.
func (s *session) recall(old bind.DevResource, o origin) error {
	d, err := s.derive(o)
	if err != nil {
		return fmt.Errorf("a part of a device: %w", err)
	}
	if d.Type != old.Type || [4]byte(d.Driver[smCount:]) != [4]byte(old.Driver[smCount:]) {
		return fmt.Errorf("a part of a device has %d multiprocessors, and had %d", binary.LittleEndian.Uint32(d.Driver[smCount:]), binary.LittleEndian.Uint32(old.Driver[smCount:]))
	}
	if s.recalled == nil {
		s.recalled = map[bind.DevResource]bind.DevResource{}
	}
	s.recalled[old] = d
	if res := s.keepResource(old, o); res != cuda.Success {
		return res
	}
	return nil
}

// placeResources notes in the record how the resources of a description came about, or has them
// come about again.
func (s *session) placeResources(c *wire.Call, b []byte) error {
	if !s.arenas.on {
		return nil
	}
	list := make([]bind.DevResource, len(b)/binary.Size(bind.DevResource{}))
	if n, err := binary.Decode(b, binary.LittleEndian, list); err != nil || n != len(b) {
		return nil // which knownResources says
	}
	for _, d := range list {
		if !c.Replay {
			o := s.resources[d]
			c.Placed = append(append(c.Placed, uint64(len(o))), o...)
			continue
		}
		n, ok := c.Place()
		if !ok || n > 1+mostCuts*cutWords {
			return errOrigin
		}
		o, ok := c.Places(int(n))
		if !ok {
			return errOrigin
		}
		if err := s.recall(d, o); err != nil {
			return err
		}
	}
	return nil
}

// resourceTable is all that the guest may name: bytes, and their origin behind its length.
func (s *session) resourceTable() (b []byte) {
	for d, o := range s.resources {
		if o == nil { // which a green context or a description has, or nobody
			continue
		}
		b = append(b, bind.Encode(&d)...)
		b = binary.LittleEndian.AppendUint32(b, uint32(len(o)))
		for _, w := range o {
			b = binary.LittleEndian.AppendUint64(b, w)
		}
	}
	return b
}

// setResources reads a resourceTable.
func (s *session) setResources(r io.Reader) error {
	for range maxResources {
		var d bind.DevResource
		var n uint32
		if err := binary.Read(r, binary.LittleEndian, &d); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("parts of devices: %w", err)
		}
		if err := binary.Read(r, binary.LittleEndian, &n); err != nil || n > 1+mostCuts*cutWords {
			return fmt.Errorf("parts of devices: %w", errors.Join(err, errOrigin))
		}
		o := make(origin, n)
		if err := binary.Read(r, binary.LittleEndian, o); err != nil {
			return fmt.Errorf("parts of devices: %w", err)
		}
		if _, known := s.resources[d]; known {
			continue
		}
		if err := s.recall(d, o); err != nil {
			return err
		}
	}
	return nil
}
