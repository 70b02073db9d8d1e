package device

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"golang.org/x/sys/unix"

	"causeway/host/worker/link"
)

/*
Where a driver chooses addresses by itself, a session that is rebuilt elsewhere may come out
another. So all that it is made of is made once at the other host before its VM stops, by a worker
of its own there, in a stream of its own. What that finds keeps the VM here, by name; where it finds
nothing out, for want of room above all, nothing is promised, and the VM moves as without.
*/

// rehearses are streams for which the destination makes a session for nothing but to see whether it
// can.
const rehearses = 1 // flag of copyOpen

// openRehearsal begins the stream for one, of a stream that is new. theirs is the worker's end, for
// roundOf; -1: there is none.
func (o *copyOut) openRehearsal(x *outStream) (theirs int, err error) {
	if x.s.base == 0 {
		return -1, nil
	}
	ours, theirs, err := streamPair()
	if err != nil {
		return -1, err
	}
	r := &outStream{s: x.s, proc: x.proc, conn: ours, moved: make(chan struct{}), answer: make(chan error, 1)}
	o.mu.Lock()
	o.last++
	r.id = o.last
	o.mu.Unlock()
	x.mu.Lock()
	x.rehearsal = r
	x.mu.Unlock()
	if err := o.write(copyOpen, r.id, r.opening(rehearses)); err != nil {
		r.fail(err)
		_ = unix.Close(theirs)
		return -1, err
	}
	go o.routinePump(r)
	return theirs, nil
}

func (o *copyOut) notRehearsed(x *outStream, why error) {
	x.s.log.Info("it is not rehearsed at the other host", "reason", why)
}

// rehearse has the other host make what the session is made of. x.busy is held.
func (o *copyOut) rehearse(x *outStream, theirs int) error {
	r := x.rehearsed()
	did, err := o.tell(x, link.Copy{Rehearsal: true, Stream: link.FileOf(theirs)})
	if err == nil && did == nil {
		err = errCopyOver
	}
	if err != nil {
		o.endRehearsal(r, err)
	}
	return err
}

func (o *copyOut) endRehearsal(r *outStream, why error) {
	r.fail(why)
	_ = o.write(copyDrop, r.id, nil)
}

// opening is the body of copyOpen.
func (x *outStream) opening(flags uint32) []byte {
	b := append([]byte(nil), x.token[:]...)
	for _, n := range []uint32{x.s.caller.UID, x.s.caller.GID, x.s.caller.PID} {
		b = binary.LittleEndian.AppendUint32(b, n)
	}
	b = binary.LittleEndian.AppendUint64(b, x.s.base)
	return binary.LittleEndian.AppendUint32(b, flags)
}

// rehearsed is the rehearsal, nil: none was begun.
func (x *outStream) rehearsed() *outStream {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.rehearsal
}

// known reports whether the other side has said all that it will of whether the session can be
// there.
func (x *outStream) known() bool {
	r := x.rehearsed()
	return r == nil || r.why() != nil
}

// ends hears how the rehearsal of x ended. cannot: the session cannot be there what it is here.
// copyOut.mu is held.
func (x *outStream) ends(why error, cannot bool) {
	switch {
	case cannot:
		x.fail(why)
		x.cannot = fmt.Sprintf("%s cannot be rebuilt there: %v", x.s.peer(), why)
		x.s.mu.Lock()
		x.s.elsewhere = why.Error()
		x.s.mu.Unlock()
		x.s.log.Warn("it cannot be rebuilt at the other host", "error", why)
	case why != nil:
		x.s.log.Info("whether it can be rebuilt at the other host is not known", "reason", why)
	}
	if why == nil {
		why = errRehearsed
	}
	x.rehearsed().fail(why) // there is nothing more to wait for
}

// errRehearsed ends a rehearsal that went well.
var errRehearsed = errors.New("rehearsed")

// known has sessions that could not be rebuilt at one host be asked anew.
func (o *copyOut) known() {
	for _, s := range o.d.all() {
		s.mu.Lock()
		s.elsewhere = ""
		s.mu.Unlock()
	}
}

// routineRehearsal tells the source how a rehearsal ends.
func (d *Device) routineRehearsal(to io.Writer, stream uint32, a *arrival) {
	err := a.adopted()
	kind := uint32(copyRehearsed)
	if err != nil {
		if kind = copyRefused; errors.Is(err, unix.EADDRNOTAVAIL) {
			kind = copyCannot
		}
	}
	_ = answer(to, kind, stream, err) // a source that is gone needs none
	d.in.unclaimed(func(x *arrival) bool { return x == a })
}
