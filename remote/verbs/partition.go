package verbs

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// Partition is an entry of a port's table of P_Keys: fifteen bits that name a partition of the
// fabric, and one that says whether the port is a full member of it. Limited members reach full
// ones alone. 0 is none, and where one is wished for the table's first.
type Partition uint16

// fullMember is the bit of full members.
const fullMember = 0x8000

// ErrPartition: it is not written as one.
var ErrPartition = errors.New(`write the partition's key as in "0x8001"`)

// ParsePartition reads a key as operators write it; empty: the table's first.
func ParsePartition(s string) (Partition, error) {
	if s == "" {
		return 0, nil
	}
	digits, found := strings.CutPrefix(s, "0x")
	n, err := strconv.ParseUint(digits, 16, 16)
	if !found || err != nil || !Partition(n).valid() {
		return 0, fmt.Errorf("%w: %q", ErrPartition, s)
	}
	return Partition(n), nil
}

// valid reports whether it names a partition: an entry that names none is empty.
func (p Partition) valid() bool { return p&^fullMember != 0 }

// Same reports whether both name one partition.
func (p Partition) Same(o Partition) bool { return p.valid() && p&^fullMember == o&^fullMember }

// Full reports whether it is that of a full member.
func (p Partition) Full() bool { return p&fullMember != 0 }

// Reaches reports whether packets of one get to the other.
func (p Partition) Reaches(o Partition) bool { return p.Same(o) && (p.Full() || o.Full()) }

// String is the key, as people write it.
func (p Partition) String() string { return fmt.Sprintf("0x%04x", uint16(p)) }
