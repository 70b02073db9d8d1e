package limit

import (
	"cmp"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Bounds of what a vGPU's programs may take of the host besides its GPU.
const (
	LeastHostMemory = 64 << 20
	// Of which a session may have half: all kernels of PyTorch 2.5.1, loaded at once, take 1.5 GiB.
	DefaultHostMemory = 16 << 30
)

// HostMemory is what the requests of a vGPU's CUDA programs may make the host hold, in bytes:
// modules and links, what is recorded to rebuild a session, bytes on their way, managed memory of
// network sessions for which the GPU has no room. 0 is the default.
type HostMemory uint64

// UserSessions is how many CUDA processes one user of the guest may run at once, root excepted. 0,
// written half, is half of all.
type UserSessions uint32

// half is the word for a user's half of the sessions.
const half = "half"

// Check says what is wrong with a limit of host memory.
func (m HostMemory) Check() error {
	if m != 0 && m < LeastHostMemory {
		return wrong("%s of host memory is less than a CUDA program's modules need: use %s or more", human(uint64(m)), human(LeastHostMemory))
	}
	return nil
}

// Fits says what is wrong with a limit on a host that has so many bytes of memory; 0: not known.
// The default is taken everywhere.
func (m HostMemory) Fits(host uint64) error {
	if host != 0 && m > DefaultHostMemory && uint64(m) > host {
		return wrong("%s of host memory is more than this host has: %s", human(uint64(m)), human(host))
	}
	return nil
}

// OfHost is the memory of this machine in bytes; 0: the kernel does not say.
func OfHost() uint64 {
	var host unix.Sysinfo_t
	if unix.Sysinfo(&host) != nil {
		return 0
	}
	return host.Totalram * uint64(host.Unit)
}

// Check says what is wrong with a number of sessions.
func (s UserSessions) Check() error {
	if s == 0 {
		return nil
	}
	return Sessions(s).Check()
}

// Of is how many sessions of all a user may have.
func (s UserSessions) Of(all Sessions) int { return cmp.Or(int(s), (int(all)+1)/2) }

// PerSession is the most of a vGPU's host memory that one session may have.
func (m HostMemory) PerSession() uint64 { return uint64(m) / 2 }

// UnmarshalText implements encoding.TextUnmarshaler.
func (m *HostMemory) UnmarshalText(b []byte) error {
	n, err := ParseSize(string(b))
	if err != nil {
		return err
	}
	*m = HostMemory(n)
	return m.Check()
}

// UnmarshalText implements encoding.TextUnmarshaler.
func (s *UserSessions) UnmarshalText(b []byte) error {
	if strings.TrimSpace(string(b)) == half {
		*s = 0
		return nil
	}
	return (*Sessions)(s).UnmarshalText(b)
}

func (m HostMemory) String() string { return FormatSize(uint64(m)) }

func (s UserSessions) String() string {
	if s == 0 {
		return half
	}
	return strconv.FormatUint(uint64(s), 10)
}

// MarshalText implements encoding.TextMarshaler.
func (m HostMemory) MarshalText() ([]byte, error) { return []byte(m.String()), nil }

// MarshalText implements encoding.TextMarshaler.
func (s UserSessions) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalJSON implements json.Unmarshaler.
func (m *HostMemory) UnmarshalJSON(b []byte) error { return decode(b, (*uint64)(m), m) }

// UnmarshalJSON implements json.Unmarshaler.
func (s *UserSessions) UnmarshalJSON(b []byte) error { return decode(b, (*uint32)(s), s) }

// MarshalJSON implements json.Marshaler.
func (m HostMemory) MarshalJSON() ([]byte, error) { return strconv.AppendUint(nil, uint64(m), 10), nil }

// MarshalJSON implements json.Marshaler.
func (s UserSessions) MarshalJSON() ([]byte, error) {
	return strconv.AppendUint(nil, uint64(s), 10), nil
}
