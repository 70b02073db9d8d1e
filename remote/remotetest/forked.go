package remotetest

import (
	"context"
	"net"
	"sync"
	"sync/atomic"

	"causeway/remote/frame"
)

// Forked is a session's first stream with branches that a test plays the other end of. Near is the
// session's, Far the test's.
type Forked struct {
	net.Conn
	// Forks are the branches.
	Forks []*Fork

	mu    sync.Mutex
	begun func(n int, b frame.Branch)
	taken chan struct{}
}

// Fork is one of them: over a connection without any room of its own.
type Fork struct {
	net.Conn
	// Far is the test's end.
	Far net.Conn

	mu   sync.Mutex
	away atomic.Bool
	back chan struct{}
}

var (
	_ frame.Branching = (*Forked)(nil)
	_ frame.Branch    = (*Fork)(nil)
)

// NewForked is a stream over a connection that can have n branches.
func NewForked(c net.Conn, n int) *Forked {
	f := &Forked{Conn: c, taken: make(chan struct{})}
	for range n {
		near, far := net.Pipe()
		f.Forks = append(f.Forks, &Fork{Conn: near, Far: far, back: make(chan struct{}, 1)})
	}
	return f
}

// Branch implements frame.Branching.
func (f *Forked) Branch(n int) (list []frame.Branch, err error) {
	for _, b := range f.Forks[:min(n, len(f.Forks))] {
		list = append(list, b)
	}
	return list, nil
}

// TakeBranches implements frame.Branching.
func (f *Forked) TakeBranches(_ int, begun func(n int, b frame.Branch)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.begun = begun
	close(f.taken)
}

// Begin has a session that takes branches hear of each.
func (f *Forked) Begin() {
	<-f.taken
	f.mu.Lock()
	defer f.mu.Unlock()
	for n, b := range f.Forks {
		f.begun(n, b)
	}
}

// Close implements net.Conn: the branches end with their stream.
func (f *Forked) Close() error {
	for _, b := range f.Forks {
		_ = b.Close()
	}
	return f.Conn.Close()
}

// SetAway says whether it has a connection.
func (b *Fork) SetAway(away bool) {
	b.away.Store(away)
	if !away {
		select {
		case b.back <- struct{}{}:
		default:
		}
	}
}

// Fill implements frame.Filler.
func (b *Fork) Fill(h frame.Header, fill func(p []byte, at int) error) error {
	f := h.Append(nil)
	f = append(f, make([]byte, h.Len)...)
	if err := fill(f[frame.HeaderSize:], 0); err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	_, err := b.Write(f)
	return err
}

// Backlog implements frame.Branch.
func (b *Fork) Backlog() uint64 {
	if b.away.Load() {
		return frame.Away
	}
	return 0
}

// Ready implements frame.Branch.
func (b *Fork) Ready(ctx context.Context) error {
	for b.away.Load() {
		select {
		case <-b.back:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}
