package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"
)

// link is what one listener's connections go through.
type link struct {
	listener net.Listener
	to       string

	mu    sync.Mutex
	cond  *sync.Cond // of down
	down  bool
	conns map[*pair]bool
}

// pair is a connection and its other half.
type pair struct{ in, out *net.TCPConn }

// reset ends both with RST: what is on its way is lost.
func (p *pair) reset() {
	for _, c := range []*net.TCPConn{p.in, p.out} {
		_ = c.SetLinger(0)
		_ = c.Close()
	}
}

func newLink(at, to string) (*link, error) {
	l, err := net.Listen("tcp", at)
	if err != nil {
		return nil, err
	}
	k := &link{listener: l, to: to, conns: map[*pair]bool{}}
	k.cond = sync.NewCond(&k.mu)
	return k, nil
}

// proxy runs until there are no more words.
func proxy(addresses []string, words io.Reader, out io.Writer) error {
	if len(addresses) < 2 {
		return errors.New("usage: wire proxy ADDRESS:PORT... TO:PORT")
	}
	n := len(addresses) - 1
	links := make([]*link, n)
	for i := range links {
		k, err := newLink(addresses[i], addresses[n])
		if err != nil {
			return err
		}
		links[i] = k
		go k.serve()
	}
	fmt.Fprintln(out, "ready")
	s := bufio.NewScanner(words)
	for s.Scan() {
		if err := obey(links, s.Text(), out); err != nil {
			return err
		}
	}
	for _, k := range links {
		_ = k.listener.Close()
		k.reset()
	}
	return s.Err()
}

// obey does what a line says.
func obey(links []*link, line string, out io.Writer) error {
	var word string
	var n int
	if _, err := fmt.Sscanf(line, "%s %d", &word, &n); err != nil && word != "count" || n < 0 || n >= len(links) {
		return fmt.Errorf("cannot do %q", line)
	}
	switch k := links[n]; word {
	case "reset":
		k.reset()
	case "down", "up":
		k.set(word == "down")
	case "count":
		sum := 0
		for _, k := range links {
			sum += k.count()
		}
		fmt.Fprintln(out, "connections", sum)
	default:
		return fmt.Errorf("cannot do %q", line)
	}
	return nil
}

func (k *link) set(down bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.down = down
	k.cond.Broadcast()
}

// await returns when the link is up.
func (k *link) await() {
	k.mu.Lock()
	defer k.mu.Unlock()
	for k.down {
		k.cond.Wait()
	}
}

func (k *link) count() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.conns)
}

func (k *link) reset() {
	k.mu.Lock()
	defer k.mu.Unlock()
	for p := range k.conns {
		p.reset()
	}
}

// serve takes connections; while the link is down those that come wait, as their first packets
// would.
func (k *link) serve() {
	for {
		c, err := k.listener.Accept()
		if err != nil {
			return
		}
		go k.pass(c.(*net.TCPConn))
	}
}

// pass carries one connection's bytes until both directions have ended.
func (k *link) pass(in *net.TCPConn) {
	k.await()
	c, err := net.DialTimeout("tcp", k.to, 10*time.Second)
	if err != nil {
		_ = in.SetLinger(0)
		_ = in.Close()
		return
	}
	p := &pair{in, c.(*net.TCPConn)}
	k.mu.Lock()
	k.conns[p] = true
	k.mu.Unlock()
	var wg sync.WaitGroup
	wg.Go(func() { k.copy(p, p.out, p.in) })
	wg.Go(func() { k.copy(p, p.in, p.out) })
	wg.Wait()
	k.mu.Lock()
	delete(k.conns, p)
	k.mu.Unlock()
	_ = p.in.Close()
	_ = p.out.Close()
}

// copy is one direction. An end of the stream is passed on, and an error as a reset.
func (k *link) copy(p *pair, to, from *net.TCPConn) {
	b := make([]byte, 64<<10)
	for {
		n, err := from.Read(b)
		k.await()
		if n > 0 {
			if _, err := to.Write(b[:n]); err != nil {
				p.reset()
				return
			}
		}
		switch {
		case errors.Is(err, io.EOF):
			_ = to.CloseWrite()
			return
		case err != nil:
			p.reset()
			return
		}
	}
}
