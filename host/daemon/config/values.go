package config

import (
	"fmt"
	"strings"
	"time"

	"causeway/host/daemon/api"
)

// Size is a number of bytes, written as "16GiB". 0 is written as "".
type Size uint64

// UnmarshalText implements encoding.TextUnmarshaler.
func (s *Size) UnmarshalText(b []byte) error {
	text := strings.TrimSpace(string(b))
	if text == "" {
		*s = 0
		return nil
	}
	n, err := api.ParseSize(text)
	*s = Size(n)
	return err
}

// MarshalText implements encoding.TextMarshaler.
func (s Size) MarshalText() ([]byte, error) {
	if s == 0 {
		return nil, nil
	}
	return []byte(s.String()), nil
}

func (s Size) String() string { return api.FormatSize(uint64(s)) }

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
