package limit

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// Bounds.
const (
	LeastMemory     = 1 << 20 // of any GPU; LeastOn is what a context of a real one needs
	DefaultShare    = 100
	MostShare       = 10000
	MostCap         = 100
	DefaultSessions = 64
	MostSessions    = 1000
)

// none takes a limit away.
const none = "none"

// ErrLimit says that a limit makes no sense.
var ErrLimit = errors.New("limit out of range")

// badLimit is a sentence that is an ErrLimit.
type badLimit struct{ text string }

func (e *badLimit) Error() string        { return e.text }
func (e *badLimit) Is(target error) bool { return target == ErrLimit }

func wrong(format string, args ...any) error {
	return &badLimit{fmt.Sprintf(format, args...)}
}

// Memory is a limit of GPU memory in bytes, contexts included. 0, written none, is the whole GPU.
type Memory uint64

// Share is the part of a GPU's time that a vGPU gets while several want it, relative to theirs.
type Share uint32

// Cap is the most per cent of a GPU's time. 0, written none, is no cap.
type Cap uint32

// Sessions is how many CUDA processes may run at once.
type Sessions uint32

// Check says what is wrong with a limit of memory on any GPU.
func (m Memory) Check() error {
	if m != 0 && m < LeastMemory {
		return wrong("%s of GPU memory is less than any program needs: use %s or more, or none for the whole GPU", human(uint64(m)), human(LeastMemory))
	}
	return nil
}

// Check says what is wrong with a share.
func (s Share) Check() error {
	if s < 1 || s > MostShare {
		return wrong("a share of %d: use 1 to %d; it is relative to others', who have %d unless they say so", s, MostShare, DefaultShare)
	}
	return nil
}

// Check says what is wrong with a cap.
func (c Cap) Check() error {
	if c > MostCap {
		return wrong("a cap of %d %%: use 1 to %d, or none", c, MostCap)
	}
	return nil
}

// Check says what is wrong with a number of sessions.
func (s Sessions) Check() error {
	if s < 1 || s > MostSessions {
		return wrong("%d sessions: use 1 to %d", s, MostSessions)
	}
	return nil
}

// UnmarshalText implements encoding.TextUnmarshaler.
func (m *Memory) UnmarshalText(b []byte) error {
	text := strings.TrimSpace(string(b))
	switch {
	case text == none:
		*m = 0
		return nil
	case strings.Trim(text, "0") == "":
		return wrong("%q: write a size as in 16GiB, or none for the whole GPU", b)
	}
	n, err := ParseSize(text)
	if err != nil {
		return err
	}
	*m = Memory(n)
	return m.Check()
}

// UnmarshalText implements encoding.TextUnmarshaler.
func (s *Share) UnmarshalText(b []byte) error {
	n, err := number(b, "a share", fmt.Sprintf("use 1 to %d, as in %d", MostShare, DefaultShare))
	*s = Share(n)
	if err != nil {
		return err
	}
	return s.Check()
}

// UnmarshalText implements encoding.TextUnmarshaler.
func (c *Cap) UnmarshalText(b []byte) error {
	text := strings.TrimSpace(string(b))
	if text == none {
		*c = 0
		return nil
	}
	how := fmt.Sprintf("use 1 to %d per cent, or none", MostCap)
	n, err := number([]byte(strings.TrimSpace(strings.TrimSuffix(text, "%"))), "a cap", how)
	if err == nil && n == 0 {
		err = wrong("a cap of 0 would let nothing run: %s", how)
	}
	*c = Cap(n)
	if err != nil {
		return err
	}
	return c.Check()
}

// UnmarshalText implements encoding.TextUnmarshaler.
func (s *Sessions) UnmarshalText(b []byte) error {
	n, err := number(b, "a number of CUDA processes", fmt.Sprintf("use 1 to %d", MostSessions))
	*s = Sessions(n)
	if err != nil {
		return err
	}
	return s.Check()
}

func number(b []byte, what, how string) (uint32, error) {
	n, err := strconv.ParseUint(strings.TrimSpace(string(b)), 10, 32)
	if err != nil {
		return 0, wrong("%q is not %s: %s", b, what, how)
	}
	return uint32(n), nil
}

func (m Memory) String() string {
	if m == 0 {
		return none
	}
	return FormatSize(uint64(m))
}

func (c Cap) String() string {
	if c == 0 {
		return none
	}
	return strconv.FormatUint(uint64(c), 10)
}

func (s Share) String() string    { return strconv.FormatUint(uint64(s), 10) }
func (s Sessions) String() string { return strconv.FormatUint(uint64(s), 10) }

// MarshalText implements encoding.TextMarshaler.
func (m Memory) MarshalText() ([]byte, error) { return []byte(m.String()), nil }

// MarshalText implements encoding.TextMarshaler.
func (s Share) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// MarshalText implements encoding.TextMarshaler.
func (c Cap) MarshalText() ([]byte, error) { return []byte(c.String()), nil }

// MarshalText implements encoding.TextMarshaler.
func (s Sessions) MarshalText() ([]byte, error) { return []byte(s.String()), nil }
