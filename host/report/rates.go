package report

import (
	"encoding/json"
	"fmt"
	"io"
	"time"

	"causeway/host/api"
)

// Rates is what happened between two readings, in a second of it.
type Rates struct {
	// share of the time in which the GPU had work; several sessions add up
	Busy     float64 `json:"busy"`
	Wait     float64 `json:"wait"` // share of the time in which work was held back
	CPU      float64 `json:"cpu"`  // of the workers, in cores
	Calls    float64 `json:"calls"`
	Launches float64 `json:"launches"`
	In       float64 `json:"bytes_in"`
	Out      float64 `json:"bytes_out"`
	// Managed memory of which there is more than the GPU has room for: bytes that came to the GPU,
	// and that left it.
	ManagedIn  float64 `json:"managed_in,omitempty"`
	ManagedOut float64 `json:"managed_out,omitempty"`
}

// thrashing is how much managed memory comes and goes for lack of room in a second, if that is much
// of what is at the GPU: a twentieth, so that all of it changes places within twenty seconds. 0: it
// is not, as where a program goes on to other memory, which leaves in one direction or seldom.
func (r *Rates) thrashing(atGPU uint64) float64 {
	const much = 1. / 20
	if r == nil {
		return 0
	}
	turns := min(r.ManagedIn, r.ManagedOut)
	if turns < much*float64(atGPU) {
		return 0
	}
	return turns
}

// Row is a vGPU with its rates.
type Row struct {
	VGPU     api.VGPU     `json:"vgpu"`
	Rates    *Rates       `json:"rates"` // nil: only one reading so far
	Sessions []SessionRow `json:"sessions"`
}

// SessionRow is a process of a guest with its rates.
type SessionRow struct {
	api.Session
	Rates *Rates `json:"rates"`
}

// Meter makes rates of readings that follow each other. Counters come from workers and may lie:
// they never go below zero or beyond what a clock allows here.
type Meter struct {
	at       time.Time
	vgpus    map[string]point
	sessions map[sessionKey]point
}

type sessionKey struct {
	device  string // vGPU and its process
	session uint64
}

// point is what counters were at the last reading.
type point struct {
	device   string
	counters api.Counters
}

// Rows computes the rates since the last call.
func (m *Meter) Rows(r *Reading) []Row {
	next := Meter{at: r.Time, vgpus: map[string]point{}, sessions: map[sessionKey]point{}}
	dt := r.Time.Sub(m.at)
	if m.at.IsZero() || dt <= 0 {
		dt = 0
	}
	rows := make([]Row, 0, len(r.VGPUs))
	for _, v := range r.VGPUs {
		row := Row{VGPU: v, Sessions: []SessionRow{}}
		if s := v.Status; s != nil {
			device := fmt.Sprint(v.Spec.Key(), " ", s.PID, " ", s.Started.UnixNano())
			total := s.Past
			for _, o := range s.Sessions {
				total.Add(o.Counters)
				key := sessionKey{device, o.ID}
				before, known := m.sessions[key]
				// It began since: all it counted is of this time.
				known = known || o.Started.After(m.at)
				row.Sessions = append(row.Sessions, SessionRow{o, rates(before.counters, o.Counters, dt, known, 1)})
				next.sessions[key] = point{device, o.Counters}
			}
			before, known := m.vgpus[v.Spec.Key()]
			if before.device != device { // another process: it counts from zero
				before, known = point{}, s.Started.After(m.at)
			}
			row.Rates = rates(before.counters, total, dt, known, max(1, float64(len(s.Sessions))))
			next.vgpus[v.Spec.Key()] = point{device, total}
		}
		rows = append(rows, row)
	}
	*m = next
	return rows
}

// rates is nil unless two readings are known. most bounds shares of time.
func rates(a, b api.Counters, dt time.Duration, known bool, most float64) *Rates {
	if dt <= 0 || !known {
		return nil
	}
	per := func(a, b uint64) float64 {
		if b < a { // the counter began anew
			return 0
		}
		return float64(b-a) / dt.Seconds()
	}
	share := func(a, b uint64) float64 { return min(per(a, b)/1e9, most) }
	return &Rates{
		Busy: share(a.BusyNanos, b.BusyNanos), Wait: share(a.WaitNanos, b.WaitNanos), CPU: per(a.WorkerNanos, b.WorkerNanos) / 1e9,
		Calls: per(a.Calls, b.Calls), Launches: per(a.Launches, b.Launches), In: per(a.BytesIn, b.BytesIn), Out: per(a.BytesOut, b.BytesOut),
		ManagedIn: per(a.ManagedIn, b.ManagedIn), ManagedOut: per(a.ManagedOut, b.ManagedOut),
	}
}

// Record is a reading with its rates, as `causeway top --json` prints it, one in a line.
type Record struct {
	Time   time.Time    `json:"time"`
	Daemon *api.Version `json:"daemon"` // null: causewayd does not run
	GPUs   []api.GPU    `json:"gpus"`
	VGPUs  []Row        `json:"vgpus"`
	Notes  []string     `json:"notes,omitempty"`
}

// WriteRecord writes one line.
func WriteRecord(w io.Writer, r *Reading, rows []Row) error {
	return json.NewEncoder(w).Encode(Record{r.Time, r.Daemon, append([]api.GPU{}, r.GPUs...), rows, r.Notes})
}
