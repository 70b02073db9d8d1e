package device

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"sync"
	"time"

	"causeway/host/api"
)

/*
A migration of a VM with programs that cannot move runs to its end and fails there. QEMU cannot be
told before, but libvirt can call it off: so the device looks, from the moment at which QEMU begins
to log writes until that ends, and says what it finds to whoever waits for it, which is causewayd.
*/

// How often it is looked while a VM moves, first and then. What is seen twice in a row is said: a
// capture may be over in a moment.
const (
	staysFirst = 250 * time.Millisecond
	staysAgain = time.Second
)

// stays is what keeps the VM from the migration that is under way. Device.mu guards it.
type stays struct {
	number uint64 // of migrations of which it was said
	why    string
	told   chan struct{} // closed when it is said; nil: nobody waits
}

// begins hears of a migration that begins, or a snapshot of memory: it looks whether the VM can
// move, as long as that lasts.
func (d *Device) begins(ctx context.Context) {
	d.departing()
	if !d.looking.begin() {
		return
	}
	d.ending.Add(1)
	go func() {
		defer d.ending.Done()
		for !d.looking.over(d.routineStays(ctx)) {
		}
	}()
}

// looking is whether somebody looks already when a migration begins, which may be while who looked
// at the last is about to stop.
type looking struct {
	mu    sync.Mutex
	begun uint64 // migrations
	on    bool
}

// begin notes a migration that begins, and reports whether nobody looks yet.
func (l *looking) begin() (first bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.begun++
	first = !l.on
	l.on = true
	return first
}

// last is the number of the migration that began last.
func (l *looking) last() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.begun
}

// over ends the looking at a migration, unless another has begun since: that is to be looked at.
func (l *looking) over(seen uint64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.on = l.begun != seen
	return !l.on
}

// departing has whoever waits for it hear of a VM that leaves.
func (d *Device) departing() {
	d.handingBegins()
	select {
	case d.departs <- struct{}{}:
	default: // nobody has heard of the last
	}
}

// routineStays looks until what keeps the VM has been said, or no migration is under way. It
// returns the number of the one that it looked at last.
func (d *Device) routineStays(ctx context.Context) uint64 {
	seen := false
	for {
		at := d.looking.last()
		if !d.mem.Logging() {
			return at
		}
		err := d.fs.Movable()
		if err == nil && len(d.all()) > 0 {
			if err = d.handed(); errors.Is(err, errHanding) {
				err = nil
			}
		}
		if err != nil && seen {
			d.log.Warn("a migration begins that will fail", "error", err)
			d.tell(err.Error())
			return at
		}
		nap := staysAgain
		if seen = err != nil; seen {
			nap = staysFirst
		}
		select {
		case <-ctx.Done():
			return at
		case <-time.After(nap):
		}
	}
}

func (d *Device) tell(why string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.stays.number++
	d.stays.why = why
	if d.stays.told != nil {
		close(d.stays.told)
		d.stays.told = nil
	}
}

// serveStays answers GET /v1/stays?after=NUMBER, when a migration with a higher number is under way
// that will fail.
func (d *Device) serveStays(ctx context.Context, w http.ResponseWriter, r *http.Request) {
	after, _ := strconv.ParseUint(r.URL.Query().Get("after"), 10, 64) // nothing: any
	for {
		d.mu.Lock()
		now := api.Stays{Number: d.stays.number, Why: d.stays.why}
		if d.stays.told == nil {
			d.stays.told = make(chan struct{})
		}
		told := d.stays.told
		d.mu.Unlock()
		if now.Number > after && d.mem.Logging() {
			reply(w, now)
			return
		}
		select {
		case <-told:
		case <-r.Context().Done():
			return
		case <-ctx.Done():
			return
		}
	}
}
