package shm

import (
	"errors"
	"testing"

	"causeway/remote"
)

// TestExpose: what a region's bytes were given to hears of the end before the bytes go, whatever
// ends it, and once.
func TestExpose(t *testing.T) {
	fd := testFile(t, 2)
	runs := []Run{{FD: fd, Size: 2 * pageSize}}
	for name, end := range map[string]func(m *Memory) error{
		"region": func(m *Memory) error { return m.End(3) }, "park": (*Memory).Detach, "session": (*Memory).Close,
		"mapping": func(m *Memory) error { return m.Unmap(3) },
		"other pages": func(m *Memory) error {
			return m.SetRuns(3, []Run{{FD: fd, Offset: pageSize, Size: pageSize}, {FD: fd, Size: pageSize}})
		},
	} {
		m := NewMemory()
		m.Watch(&seen{})
		if err := errors.Join(m.Declare(3, remote.Declared{VA: 1 << 40, Size: 2 * pageSize}, nil), m.SetRuns(3, runs)); err != nil {
			t.Fatal(err)
		}
		revoked, there := 0, byte(0)
		expose := func() error {
			return m.Expose(3, func(mem []byte) (func(), error) {
				return func() { revoked, there = revoked+1, mem[0] }, nil
			})
		}
		if err := expose(); err != nil {
			t.Fatal(err)
		}
		if err := expose(); err == nil {
			t.Errorf("%s: a region is exposed twice", name)
		}
		if err := end(m); err != nil || revoked != 1 || there != 'a' {
			t.Errorf("%s: %v, revoked %d times, with %q there", name, err, revoked, there)
		}
		if err := expose(); (err == nil) != (name == "other pages" || name == "mapping") {
			t.Errorf("%s: exposed afterwards: %v", name, err)
		}
		if name == "park" {
			if err := errors.Join(m.Attach(), expose()); err != nil {
				t.Error(err)
			}
		}
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	}
	m := NewMemory()
	if err := errors.Join(m.Declare(3, remote.Declared{VA: 1 << 40, Size: 2 * pageSize}, nil), m.SetRuns(3, runs)); err != nil {
		t.Fatal(err)
	}
	no := errors.New("no")
	if err := m.Expose(3, func([]byte) (func(), error) { return nil, no }); !errors.Is(err, no) {
		t.Error(err)
	}
	if err := m.Expose(4, nil); !errors.Is(err, remote.ErrUnknownRegion) {
		t.Error(err)
	}
	if err := m.Close(); err != nil {
		t.Error(err)
	}
}

type seen struct{}

func (*seen) Declared(uint32, remote.Declared) {}
func (*seen) Dropped(uint32)                   {}

// onDrop is a watcher that hears of regions' ends.
type onDrop func(id uint32)

func (onDrop) Declared(uint32, remote.Declared) {}
func (f onDrop) Dropped(id uint32)              { f(id) }

// TestDroppedIsConcealed: who is told that nothing of a region can be reached any more is told so
// when that is true.
func TestDroppedIsConcealed(t *testing.T) {
	m := NewMemory()
	revoked, dropped := false, false
	m.Watch(onDrop(func(id uint32) {
		if dropped = true; id != 3 || !revoked {
			t.Errorf("region %d is dropped, and what it was exposed to is revoked: %v", id, revoked)
		}
	}))
	runs := []Run{{FD: testFile(t, 1), Size: pageSize}}
	if err := errors.Join(m.Declare(3, remote.Declared{VA: 1 << 40, Size: pageSize}, nil), m.SetRuns(3, runs)); err != nil {
		t.Fatal(err)
	}
	if err := m.Expose(3, func([]byte) (func(), error) { return func() { revoked = true }, nil }); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(m.End(3), m.Close()); err != nil || !dropped {
		t.Errorf("%v, or nobody was told", err)
	}
}
