package precopy

import "time"

// Pace decides after each round whether another one pays, as QEMU does for guest memory: the rounds
// end when what the last one sent would take no longer than the allowed pause, or when they do not
// become smaller. What it takes to look at memory is no reason for another: that would take as
// long.
type Pace struct {
	Pause time.Duration // what the last round may take
	Most  int           // rounds, 0: as many as it takes

	rounds int
	stuck  int
	last   uint64
	// The round that sent most: what fits into buffers on the way says nothing of how long others
	// take.
	most     uint64
	mostTook time.Duration
}

// A round that sends more than shrink hundredths of the one before makes no headway; patience of
// them in a row end the rounds.
const (
	shrink   = 90
	patience = 3
)

// Next is told of a round and reports whether there should be another one before the session stands
// still.
func (p *Pace) Next(r Round, took time.Duration) bool {
	p.rounds++
	if p.rounds > 1 && r.Sent > p.last/100*shrink {
		p.stuck++
	} else {
		p.stuck = 0
	}
	p.last = r.Sent
	return p.left(r, took) > p.Pause && p.stuck < patience && (p.Most == 0 || p.rounds < p.Most)
}

// left is how long what a round sent would take by itself, which has looked at all memory besides:
// by what the round took that sent most.
func (p *Pace) left(r Round, took time.Duration) time.Duration {
	if r.Sent == 0 {
		return 0
	}
	if r.Sent >= p.most {
		p.most, p.mostTook = r.Sent, took
	}
	return min(took, time.Duration(float64(p.mostTook)*(float64(r.Sent)/float64(p.most))))
}

// Again has it go on although memory changed as fast as it was sent: something was done about it,
// of which the round after the next tells: that one sends what changed before.
func (p *Pace) Again() { p.stuck = patience - 2 }

// Stuck reports whether the rounds ended because memory changes as fast as it is sent.
func (p *Pace) Stuck() bool { return p.stuck >= patience }
