package precopy

import "time"

// Pace decides after each round whether another one pays, as QEMU does for guest memory: the rounds end when what the last one sent would
// take no longer than the allowed pause, or when they do not become smaller.
type Pace struct {
	Pause time.Duration // what the last round may take
	Most  int           // rounds, 0: as many as it takes

	rounds int
	stuck  int
	last   uint64
}

// A round that sends more than shrink hundredths of the one before makes no headway; patience of them in a row end the rounds.
const (
	shrink   = 90
	patience = 3
)

// Next is told of a round and reports whether there should be another one before the session stands still.
func (p *Pace) Next(r Round, took time.Duration) bool {
	p.rounds++
	if p.rounds > 1 && r.Sent > p.last/100*shrink {
		p.stuck++
	} else {
		p.stuck = 0
	}
	p.last = r.Sent
	return took > p.Pause && p.stuck < patience && (p.Most == 0 || p.rounds < p.Most)
}

// Again has it go on although memory changed as fast as it was sent: something was done about it, of which the round after the next tells: that one sends what
// changed before.
func (p *Pace) Again() { p.stuck = patience - 2 }

// Stuck reports whether the rounds ended because memory changes as fast as it is sent.
func (p *Pace) Stuck() bool { return p.stuck >= patience }
