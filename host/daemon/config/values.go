package config

import (
	"fmt"
	"strings"
	"time"

	"causeway/host/limit"
)

// Duration is a time, written as "5s".
type Duration time.Duration

// UnmarshalText implements encoding.TextUnmarshaler.
func (d *Duration) UnmarshalText(b []byte) error {
	v, err := time.ParseDuration(string(b))
	if err != nil {
		return fmt.Errorf("%q is no time: write it as in 500ms or 60s", b)
	}
	*d = Duration(v)
	return nil
}

// MarshalText implements encoding.TextMarshaler.
func (d Duration) MarshalText() ([]byte, error) { return []byte(time.Duration(d).String()), nil }

// Of is the time itself.
func (d Duration) Of() time.Duration { return time.Duration(d) }

// HostPart is a part of the host's memory, as in 3/4 or 75%, a size, or none.
type HostPart struct{ limit.Portion }

// UnmarshalText implements encoding.TextUnmarshaler.
func (p *HostPart) UnmarshalText(b []byte) error {
	if strings.TrimSpace(string(b)) == (limit.Memory)(0).String() {
		*p = HostPart{}
		return nil
	}
	return p.Portion.UnmarshalText(b)
}

// Of is the part in bytes of a host with so many; 0: none.
func (p HostPart) Of(host uint64) uint64 {
	if p.Portion.Of == 0 {
		return uint64(p.Size)
	}
	of, part := uint64(p.Portion.Of), uint64(p.Part)
	return host/of*part + host%of*part/of
}
