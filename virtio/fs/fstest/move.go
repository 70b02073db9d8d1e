package fstest

import (
	"errors"
	"fmt"
	"io"
	"os"

	"causeway/vhostuser"
	"causeway/vhostuser/vhosttest"
)

// ErrRefused says that the device did not save or load its state.
var ErrRefused = errors.New("the device refuses")

// Directions of SET_DEVICE_STATE_FD.
const (
	stateSave = iota
	stateLoad
)

// Save asks the device for its state, as QEMU does when the rings have stopped.
func (g *Guest) Save() ([]byte, error) {
	r, err := begin(g.Front, stateSave)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	b, err := io.ReadAll(r)
	return b, errors.Join(err, check(g.Front))
}

// SaveSome takes the first n bytes of the state, and gives up as QEMU does whose migration is
// cancelled. It reports whether the device noticed.
func (g *Guest) SaveSome(n int) error {
	r, err := begin(g.Front, stateSave)
	if err != nil {
		return err
	}
	_, err = io.ReadFull(r, make([]byte, n))
	_ = r.Close()
	if err != nil {
		return err
	}
	return check(g.Front)
}

// LoadSome gives the device at a socket a part of a state, and goes away as QEMU does that is
// killed.
func LoadSome(socket string, part []byte) error {
	f, err := Await(socket)
	if err != nil {
		return err
	}
	defer f.Close()
	w, err := begin(f, stateLoad)
	if err != nil {
		return err
	}
	_, err = w.Write(part)
	f.Close() // before the end of the state
	return errors.Join(err, w.Close())
}

// Move goes to the device at another socket, which loads state, with memory and stopped rings. The
// connection to the device that the guest came from is returned; with an error the guest has stayed
// there.
func (g *Guest) Move(socket string, state []byte) (left *vhosttest.Frontend, err error) {
	f, err := Await(socket)
	if err != nil {
		return nil, err
	}
	return g.MoveTo(f, state)
}

// Await connects to a device as a QEMU does that waits for a VM.
func Await(socket string) (*vhosttest.Frontend, error) {
	f, err := vhosttest.Dial(socket)
	if err != nil {
		return nil, err
	}
	if err := f.Handshake(); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// MoveTo is Move to where somebody waits, who is gone after an error.
func (g *Guest) MoveTo(f *vhosttest.Frontend, state []byte) (left *vhosttest.Frontend, err error) {
	if err := load(f, state); err != nil {
		f.Close()
		return nil, err
	}
	if err := f.AddMemory(g.Mem); err != nil {
		f.Close()
		return nil, err
	}
	for _, q := range g.queues {
		if err := q.renew(); err != nil {
			return nil, err
		}
	}
	left, g.Front = g.Front, f
	return left, nil
}

// renew gives a queue events of its own: those that it has are the other connection's.
func (q *queue) renew() (err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	r := *q.ring
	if r.Kick, err = vhosttest.NewEvent(); err != nil {
		return err
	}
	if r.Call, err = vhosttest.NewEvent(); err != nil {
		return err
	}
	q.ring = &r
	return nil
}

func load(f *vhosttest.Frontend, state []byte) error {
	w, err := begin(f, stateLoad)
	if err != nil {
		return err
	}
	_, _ = w.Write(state) // a device that refuses need not read all of it
	_ = w.Close()
	return check(f)
}

// begin hands the device its end of a pipe and returns the other.
func begin(f *vhosttest.Frontend, direction uint32) (*os.File, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	ours, theirs := r, w
	if direction == stateLoad {
		ours, theirs = w, r
	}
	n, err := f.GetU64(vhostuser.SetDeviceStateFD, vhosttest.U32s(direction, 0), int(theirs.Fd()))
	_ = theirs.Close()
	if err == nil && n&0xff != 0 {
		err = fmt.Errorf("%w: SET_DEVICE_STATE_FD = %#x", ErrRefused, n)
	}
	if err != nil {
		_ = ours.Close()
		return nil, err
	}
	return ours, nil
}

// check asks how the transfer ended.
func check(f *vhosttest.Frontend) error {
	n, err := f.GetU64(vhostuser.CheckDeviceState, nil)
	if err == nil && n != 0 {
		err = fmt.Errorf("%w: CHECK_DEVICE_STATE = %d", ErrRefused, n)
	}
	return err
}
