package shm

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"causeway/remote"
	"causeway/remote/sys"
)

// RegionState is a region of a session that moves to another process.
type RegionState struct {
	ID       uint32
	VA, Size uint64
	Offset   uint64
	Shared   bool
	Part     uint64
}

// Declared is the region as the guest described it.
func (r RegionState) Declared() remote.Declared {
	return remote.Declared{VA: r.VA, Size: r.Size, Offset: r.Offset, Shared: r.Shared, Part: r.Part}
}

// UnixState is what AdoptUnix needs besides descriptors.
type UnixState struct {
	Head    uint64
	PID     uint32
	Regions []RegionState
}

// Freeze stops receiving, so that another process can go on with the connection. What the guest
// sends waits in the socket. If the guest is gone already it fails.
func (u *Unix) Freeze() error {
	if err := u.conn.SetReadDeadline(time.Unix(1, 0)); err != nil {
		return err
	}
	u.wg.Wait()
	select {
	case <-u.done:
		return remote.ErrClosed
	default:
		return nil
	}
}

// Thaw undoes Freeze.
func (u *Unix) Thaw() {
	_ = u.conn.SetReadDeadline(time.Time{})
	u.wg.Go(u.routineReceive)
}

// State describes a frozen session: descriptors are the connection, the doorbell, and the regions'
// memfds in order of UnixState.Regions. They still belong to u.
func (u *Unix) State() (UnixState, []int, error) {
	s := UnixState{Head: u.ring.Head(), PID: u.pid}
	conn, err := u.conn.File() // a duplicate that lives as long as u: this process is about to end
	if err != nil {
		return s, nil, err
	}
	files := []int{int(conn.Fd()), u.bell.FD()}
	u.files0 = append(u.files0, conn)
	u.mu.Lock()
	defer u.mu.Unlock()
	for id, list := range u.files {
		d, err := u.mem.declared(id)
		if err != nil {
			return s, nil, err
		}
		s.Regions = append(s.Regions, RegionState{ID: id, VA: d.VA, Size: d.Size, Offset: d.Offset, Shared: d.Shared, Part: d.Part})
		files = append(files, list...)
	}
	return s, files, nil
}

// AdoptUnix takes over a session that another process described. Files are taken over, also when it
// fails. The guest is not listened to before Thaw.
func AdoptUnix(s UnixState, files []int) (*Unix, error) {
	want := uint64(2)
	for _, r := range s.Regions {
		want += min(fileCount(r.Declared()), uint64(len(files))+1) // whose sum does not wrap
	}
	if uint64(len(files)) != want || !slices.ContainsFunc(s.Regions, func(r RegionState) bool { return r.ID == 0 }) {
		sys.CloseAll(files)
		return nil, fmt.Errorf("state of %d regions with %d descriptors", len(s.Regions), len(files))
	}
	conn, err := sys.UnixConn(files[0], "guest's connection")
	if err != nil {
		sys.CloseAll(files[1:])
		return nil, err
	}
	u := newUnix(conn)
	u.pid = s.PID
	rest := files[2:]
	for _, r := range s.Regions {
		n := fileCount(r.Declared())
		mine := rest[:n]
		rest = rest[n:]
		if err := u.declare(r.ID, r.Declared(), mine); err != nil {
			sys.CloseAll(rest)
			return nil, errors.Join(err, unix.Close(files[1]), u.release())
		}
	}
	if err := u.attach(files[1], s.Head, false); err != nil {
		return nil, errors.Join(err, u.release())
	}
	return u, nil
}

// declared returns a region's description.
func (m *Memory) declared(id uint32) (remote.Declared, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	r, ok := m.regions[id]
	if !ok {
		return remote.Declared{}, fmt.Errorf("region %d: %w", id, remote.ErrUnknownRegion)
	}
	return r.Declared, nil
}

// Regions lists what was declared and can be reached.
func (m *Memory) Regions() []RegionState { return m.list(false) }

// Declared lists what was declared, also what has no pages yet, or again.
func (m *Memory) Declared() []RegionState { return m.list(true) }

func (m *Memory) list(all bool) []RegionState {
	m.mu.Lock()
	defer m.mu.Unlock()
	var rs []RegionState
	for id, r := range m.regions {
		if all || r.runs != nil {
			rs = append(rs, RegionState{ID: id, VA: r.VA, Size: r.Size})
		}
	}
	return rs
}
