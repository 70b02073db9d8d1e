package api

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/url"
	"sync"
)

// PreCopy connects to another host's device process for a vGPU. awaited: only if its VM is awaited
// there.
func (c *Client) PreCopy(ctx context.Context, w Wish, awaited bool) (io.ReadWriteCloser, error) {
	return c.Stream(ctx, path(w.VM, w.Name)+"/precopy", Arriving{w, awaited})
}

// MovesAsQuery is what a VM moves as, where it is asked for.
const MovesAsQuery = "moves_as"

// AwaitedPath is where another host is asked whether it awaits the VM of a vGPU.
func AwaitedPath(s *Spec) string {
	p := path(s.VM, s.Name) + "/awaited"
	if s.MovesAs != "" {
		p += "?" + url.Values{MovesAsQuery: {s.MovesAs}}.Encode()
	}
	return p
}

// Crossing is a pre-copy between two device processes, over connections of which each end ends all.
type Crossing struct {
	mu    sync.Mutex
	conns []io.Closer
	done  chan struct{}
	err   error
	wg    sync.WaitGroup
}

// Cross connects a vGPU's device process here with the one of another host, by as many connections
// as how says. awaited: only if its VM is awaited there.
func Cross(ctx context.Context, near, far *Client, w Wish, awaited bool, how Copying) (*Crossing, error) {
	how.Connections = max(how.Connections, 1)
	how.Attempt = rand.Uint64()
	c := &Crossing{done: make(chan struct{})}
	for range how.Connections {
		if err := c.connect(ctx, near, far, w, awaited, how); err != nil {
			c.Close()
			return nil, err
		}
		how.Along = true
	}
	return c, nil
}

func (c *Crossing) connect(ctx context.Context, near, far *Client, w Wish, awaited bool, how Copying) error {
	there, err := far.PreCopy(ctx, w, awaited)
	if err != nil {
		return fmt.Errorf("on the other host: %w", err)
	}
	here, err := near.Stream(ctx, "/v1/copy", how)
	if err != nil {
		_ = there.Close()
		return err
	}
	c.mu.Lock()
	c.conns = append(c.conns, there, here)
	c.mu.Unlock()
	c.wg.Go(func() { c.end(Relay(there, here)) })
	return nil
}

func (c *Crossing) end(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err == nil {
		c.err = err
		close(c.done)
	}
	for _, x := range c.conns {
		_ = x.Close()
	}
}

// Done is closed when it has ended.
func (c *Crossing) Done() <-chan struct{} { return c.done }

// Err is why, when it has.
func (c *Crossing) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// Close ends it.
func (c *Crossing) Close() {
	c.end(io.EOF)
	c.wg.Wait()
}
