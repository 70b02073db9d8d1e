package spawn

import "causeway/host/worker/link"

// Wants are what the worker asks room for, the last alone: it waits for an answer, and another
// begins with asking.
func (p *Process) Wants() <-chan link.Want { return p.wants }

// keepWant keeps the last question only. The goroutine that reads the link calls it.
func (p *Process) keepWant(m link.Want) {
	select {
	case <-p.wants:
	default:
	}
	p.wants <- m
}
