package inventory

import (
	"bufio"
	"context"
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"
)

// told is what the child answers to a byte.
type told struct {
	Reading Reading
	Error   string
}

// Serve is the child: for each byte on in it reads src and answers on out, until in ends.
func Serve(in io.Reader, out io.Writer, src Source) error {
	ask := bufio.NewReader(in)
	enc := gob.NewEncoder(out)
	for {
		switch _, err := ask.ReadByte(); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
		var t told
		if r, err := src.Read(); err != nil {
			t.Error = err.Error()
		} else {
			t.Reading = *r
		}
		if err := enc.Encode(t); err != nil {
			return fmt.Errorf("answer: %w", err)
		}
	}
}

// Client reads the machine in a child process, which it starts when it is asked and ends when it
// has not been for Idle.
type Client struct {
	Command []string // the child
	Env     []string
	Idle    time.Duration // 0: 10 s

	mu    sync.Mutex
	child *child
}

type child struct {
	cmd  *exec.Cmd
	in   io.WriteCloser
	dec  *gob.Decoder
	rest *time.Timer
}

// Read asks the child. When ctx ends first, the child is ended too.
func (c *Client) Read(ctx context.Context) (*Reading, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.child == nil {
		ch, err := c.start()
		if err != nil {
			return nil, fmt.Errorf("start the inventory: %w", err)
		}
		c.child = ch
	}
	ch := c.child
	ch.rest.Stop()
	stop := context.AfterFunc(ctx, func() { _ = ch.cmd.Process.Kill() })
	defer stop()
	var t told
	_, err := ch.in.Write([]byte{'\n'})
	if err == nil {
		err = ch.dec.Decode(&t)
	}
	if err != nil {
		c.endLocked()
		return nil, fmt.Errorf("inventory: %w", errors.Join(err, ctx.Err()))
	}
	ch.rest.Reset(c.idle())
	if t.Error != "" {
		return nil, errors.New(t.Error)
	}
	return &t.Reading, nil
}

func (c *Client) idle() time.Duration {
	if c.Idle > 0 {
		return c.Idle
	}
	return 10 * time.Second
}

func (c *Client) start() (*child, error) {
	cmd := exec.Command(c.Command[0], c.Command[1:]...)
	cmd.Env, cmd.Stderr = c.Env, os.Stderr
	// A group of its own: what the terminal sends to the program's group does not reach it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	ch := &child{cmd: cmd, in: in, dec: gob.NewDecoder(bufio.NewReader(out))}
	ch.rest = time.AfterFunc(time.Hour, func() { c.retire(ch) })
	return ch, nil
}

// retire ends a child that nobody asks any more.
func (c *Client) retire(ch *child) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.child == ch {
		c.endLocked()
	}
}

func (c *Client) endLocked() {
	ch := c.child
	c.child = nil
	ch.rest.Stop()
	_ = ch.in.Close()
	_ = ch.cmd.Process.Kill() // it holds nothing
	_ = ch.cmd.Wait()
}

// Close ends the child, if there is one.
func (c *Client) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.child != nil {
		c.endLocked()
	}
}
