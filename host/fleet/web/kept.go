package web

import (
	"sync"
	"time"
)

// kept has what is sent made once for all who ask, and not for each: a fleet's page is megabytes,
// and who asks often, or reads slowly, is not to have the server work or keep more for that. Its
// methods may be called from any goroutine.
type kept struct {
	mu sync.Mutex
	by map[string]*text // by what it is of
}

// text is made of a look at the fleet, at a time. Nobody changes it.
type text struct {
	look uint64
	at   time.Time
	b    []byte
}

// keepFor is how long a text holds that says how long ago something was.
const keepFor = time.Second

// made is the text of an overview. One who asks has it made, others wait for that.
func (k *kept) made(of string, seen Seen, now time.Time, do func(Seen) ([]byte, error)) ([]byte, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if t := k.by[of]; t != nil && t.look == seen.look && now.Sub(t.at).Abs() < keepFor {
		return t.b, nil
	}
	b, err := do(seen)
	if err != nil {
		return nil, err
	}
	if k.by == nil {
		k.by = map[string]*text{}
	}
	k.by[of] = &text{seen.look, now, b}
	return b, nil
}
