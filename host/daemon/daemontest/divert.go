package daemontest

import (
	"encoding/json"
	"net/http"
	"os"
	"strings"
	"time"

	"causeway/host/api"
	"causeway/host/daemon/lease"
)

// DivertEnv names a file that says what becomes of a move to another GPU server; without one, or
// with nothing in it, the programs go. "refuse": they do not. "lost": they go, and "vain": they do
// not, and the answer is lost either way. "wait": neither is decided until the file says something
// else.
const DivertEnv = "FAKE_DEVICE_DIVERT"

func divertWord() string {
	b, _ := os.ReadFile(os.Getenv(DivertEnv))
	return strings.TrimSpace(string(b))
}

// goesBy notes the lease that it begins with.
func (d *device) goesBy(file string) {
	if f, err := lease.Read(file); err == nil && f.Upstream != nil {
		d.status.Lease = f.ID
	}
}

// divert has its programs, of which there are none, go by another lease.
func (d *device) divert(w http.ResponseWriter, r *http.Request) {
	var c api.Diversion
	_ = json.NewDecoder(r.Body).Decode(&c)
	d.mu.Lock()
	d.status.Next = c.To.Lease
	d.mu.Unlock()
	word := divertWord()
	for word == "wait" {
		time.Sleep(5 * time.Millisecond)
		word = divertWord()
	}
	d.mu.Lock()
	d.status.Next = (api.Status{}).Next
	if word == "" || word == "lost" {
		d.status.Lease = c.To.Lease
	}
	n := len(d.status.Sessions)
	d.mu.Unlock()
	switch word {
	case "lost", "vain":
		panic(http.ErrAbortHandler)
	case "refuse":
		w.WriteHeader(http.StatusConflict)
		_ = json.NewEncoder(w).Encode(api.Error{Text: "a program stays"})
	default:
		did := api.Relocated{UUID: c.To.UUID, Sessions: n, Nanos: 1}
		if c.Throttle { // as if that had been needed
			did.Held = 20
		}
		_ = json.NewEncoder(w).Encode(did)
	}
}
