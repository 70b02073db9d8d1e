package cuda

import "sync"

// users are the goroutines beside the worker's that have the driver use something: a context, a
// stream, an event. It is ended when none does. They give what the GPU works on; who ends such a
// thing while another thread of the guest waits for it waits too.
type users struct {
	mu     sync.Mutex
	left   sync.Cond // with mu
	n      map[any]int
	resets map[uint32]int // of the devices' primary contexts
}

// enter notes a use of things. The function that it returns ends that.
func (u *users) enter(things ...any) func() {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.enterLocked(things...)
}

func (u *users) enterLocked(things ...any) func() {
	if u.n == nil {
		u.n, u.left.L = map[any]int{}, &u.mu
	}
	for _, t := range things {
		u.n[t]++
	}
	return func() {
		u.mu.Lock()
		defer u.mu.Unlock()
		for _, t := range things {
			if u.n[t]--; u.n[t] == 0 {
				delete(u.n, t)
			}
		}
		u.left.Broadcast()
	}
}

// has reports whether somebody uses something.
func (u *users) has(thing any) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.n[thing] > 0
}

// wait returns when nobody uses something. Worker goroutine: nobody enters meanwhile.
func (u *users) wait(thing any) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for u.n[thing] > 0 {
		u.left.Wait()
	}
}

// primary is the primary context of a device, of which what reads memory of a session while it runs
// has references of its own: nothing but a reset ends it.
type primary struct{ dev uint32 }

// reset has nobody enter a primary context any more who knew it before, and waits for those who are
// in it.
func (u *users) reset(dev uint32) {
	u.mu.Lock()
	if u.resets == nil {
		u.resets = map[uint32]int{}
	}
	u.resets[dev]++
	u.mu.Unlock()
	u.wait(primary{dev})
}

// resetsOf is how often that happened.
func (u *users) resetsOf(dev uint32) int {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.resets[dev]
}

// enterPrimary is enter for a primary context that has been reset so often; false: it is another
// now.
func (u *users) enterPrimary(dev uint32, resets int) (func(), bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.resets[dev] != resets {
		return nil, false
	}
	return u.enterLocked(primary{dev}), true
}
