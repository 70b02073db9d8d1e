package schedule

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// Socket is the scheduler's, below the run directory.
const Socket = "scheduler.sock"

// maxPacket bounds a message, either way.
const maxPacket = 128 << 10

// Bounds on what one scheduler serves.
const (
	MaxShares   = 1024 // virtual GPUs
	MaxSessions = 4096 // of one virtual GPU
	maxText     = 256
	maxPeriod   = time.Hour // of an account
)

// Operations of a request.
const (
	opJoin    = "join"    // GPU, Key, Weight, Cap, Soft
	opLimits  = "limits"  // Weight, Cap
	opAdd     = "add"     // Session; files: grant, usage, bell
	opRemove  = "remove"  // Session
	opAccount = "account" // Card, Period
	opStatus  = "status"  // needs no join
)

// request is what a client asks.
type request struct {
	Op      string `json:"op"`
	GPU     string `json:"gpu,omitempty"`
	Key     string `json:"key,omitempty"`
	Weight  uint32 `json:"weight,omitempty"`
	Cap     uint32 `json:"cap,omitempty"`
	Session uint64 `json:"session,omitempty"`
	Soft    bool   `json:"soft,omitempty"`
	// Card is how long the GPU worked for the virtual GPU in the last Period, by its driver's
	// account.
	Card   time.Duration `json:"card_ns,omitempty"`
	Period time.Duration `json:"period_ns,omitempty"`
}

// answer is what the server says to each request, in turn.
type answer struct {
	Error  string  `json:"error,omitempty"`
	Status *Status `json:"status,omitempty"`
	// Charged is what an account made the virtual GPU pay for beyond what was counted.
	Charged time.Duration `json:"charged_ns,omitempty"`
}

// Status is what a scheduler knows of all GPUs.
type Status struct {
	GPUs []GPUStatus `json:"gpus"`
}

// GPUStatus is one GPU.
type GPUStatus struct {
	GPU    string        `json:"gpu"`
	Shares []ShareStatus `json:"shares"`
}

// ShareStatus is one virtual GPU. Times are totals since it joined: shares of a second are
// differences of two readings.
type ShareStatus struct {
	Key       string        `json:"key"`
	Share     uint32        `json:"share"`
	Cap       uint32        `json:"cap,omitempty"`
	Sessions  int           `json:"sessions"`
	Mode      string        `json:"mode"` // closed, metered, free
	Active    bool          `json:"active"`
	Throttled bool          `json:"throttled,omitempty"` // by its cap
	Held      time.Duration `json:"held_ns"`             // it had the GPU
	Busy      time.Duration `json:"busy_ns"`             // as its workers measured; not while free
	// The GPU worked for it, by its driver's account.
	Card time.Duration `json:"card_ns"`
	// Of Held or Busy: what only that account showed.
	Charged time.Duration `json:"charged_ns"`
	// Its sessions stood still for want of a grant, together.
	Waited time.Duration `json:"waited_ns"`
	// Part of the GPU's time that it held in the last second, 0 to 1.
	Recent float64 `json:"recent"`
}

// ErrRequest says that a request makes no sense.
var ErrRequest = errors.New("bad request to the scheduler")

// decodeRequest is the one reader of requests.
func decodeRequest(b []byte) (request, error) {
	var r request
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(&r); err != nil {
		return r, fmt.Errorf("%w: %v", ErrRequest, err)
	}
	switch {
	case d.More():
		return r, fmt.Errorf("%w: more than one", ErrRequest)
	case len(r.GPU) > maxText || len(r.Key) > maxText:
		return r, fmt.Errorf("%w: a name is too long", ErrRequest)
	case r.Cap > 100:
		return r, fmt.Errorf("%w: a cap of %d %%", ErrRequest, r.Cap)
	case r.Weight > 1_000_000:
		return r, fmt.Errorf("%w: a weight of %d", ErrRequest, r.Weight)
	case r.Card < 0 || r.Period < 0 || r.Period > maxPeriod || r.Op == opAccount && r.Period == 0:
		return r, fmt.Errorf("%w: %v of a period of %v", ErrRequest, r.Card, r.Period)
	}
	switch r.Op {
	case opJoin:
		if r.GPU == "" || r.Key == "" {
			return r, fmt.Errorf("%w: who joins which GPU?", ErrRequest)
		}
	case opLimits, opAdd, opRemove, opAccount, opStatus:
	default:
		return r, fmt.Errorf("%w: %q is no operation", ErrRequest, r.Op)
	}
	return r, nil
}
