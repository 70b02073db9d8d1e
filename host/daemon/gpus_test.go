package daemon

import (
	"context"
	"errors"
	"testing"
	"time"

	"causeway/host/api"
)

// reader is a machine that says what the test does.
type reader struct {
	r   Reading
	err error
}

func (m *reader) Read(context.Context) (Reading, error) { return m.r, m.err }
func (m *reader) Close()                                {}

// TestReadingsThatFail: of a reading that fails nobody hears but who asked, nothing that was known
// is forgotten for it, and the next that succeeds serves all.
func TestReadingsThatFail(t *testing.T) {
	broken := errors.New("the driver is gone")
	m := &reader{}
	noted := 0
	b := &gpuBook{spawn: func(f func()) { go f() }, ctx: t.Context(), note: func(r Reading) {
		if noted++; len(r.GPUs) != 1 {
			t.Errorf("%d GPUs are noted", len(r.GPUs))
		}
	}}
	if err := b.open(m, t.TempDir()); err != nil {
		t.Fatal(err)
	}
	for i, err := range []error{nil, broken, broken, nil, broken, nil} {
		before := noted
		if m.err, m.r = err, (Reading{}); err == nil {
			m.r.GPUs = []api.GPU{{ID: "GPU-1"}}
		}
		b.at = time.Time{} // older than any that serves
		r, got := b.read(t.Context())
		if !errors.Is(got, err) || (err == nil) != (len(r.GPUs) == 1) || (err == nil) != (noted > before) || len(b.last.GPUs) != 1 {
			t.Errorf("reading %d: %d GPUs, %v, not %v; noted %v, %d are known", i, len(r.GPUs), got, err, noted > before, len(b.last.GPUs))
		}
	}
}
