package limit

import (
	"encoding"
	"encoding/json"
	"strconv"
)

// In JSON a limit is a number, of bytes for memory, in which 0 takes a limit of memory or a cap
// away; or a string of the words that people write.

// UnmarshalJSON implements json.Unmarshaler.
func (m *Memory) UnmarshalJSON(b []byte) error { return decode(b, (*uint64)(m), m) }

// UnmarshalJSON implements json.Unmarshaler.
func (s *Share) UnmarshalJSON(b []byte) error { return decode(b, (*uint32)(s), s) }

// UnmarshalJSON implements json.Unmarshaler.
func (c *Cap) UnmarshalJSON(b []byte) error { return decode(b, (*uint32)(c), c) }

// UnmarshalJSON implements json.Unmarshaler.
func (s *Sessions) UnmarshalJSON(b []byte) error { return decode(b, (*uint32)(s), s) }

// MarshalJSON implements json.Marshaler.
func (m Memory) MarshalJSON() ([]byte, error) { return strconv.AppendUint(nil, uint64(m), 10), nil }

// MarshalJSON implements json.Marshaler.
func (s Share) MarshalJSON() ([]byte, error) { return strconv.AppendUint(nil, uint64(s), 10), nil }

// MarshalJSON implements json.Marshaler.
func (c Cap) MarshalJSON() ([]byte, error) { return strconv.AppendUint(nil, uint64(c), 10), nil }

// MarshalJSON implements json.Marshaler.
func (s Sessions) MarshalJSON() ([]byte, error) { return strconv.AppendUint(nil, uint64(s), 10), nil }

func decode[N any, W encoding.TextUnmarshaler](b []byte, number *N, words W) error {
	if len(b) == 0 || b[0] != '"' {
		return json.Unmarshal(b, number)
	}
	var text string
	if err := json.Unmarshal(b, &text); err != nil {
		return err
	}
	return words.UnmarshalText([]byte(text))
}
