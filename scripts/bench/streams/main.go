// Command streams measures what the link itself does, for scripts/bench/remote.sh and
// scripts/bench/rdma.sh: ping-pongs of the sizes of a small call, streams, and so many bytes there
// and one back, as a copy is, over TCP and over TCP with the TLS of a lease, or with --rdma over
// what its ends agree on inside of that, between two processes, of which the other is this program
// again. It prints name, value, unit.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"slices"
	"time"

	"causeway/remote/frame"
	"causeway/remote/mtls"
)

// What the smallest synchronous call takes each way, in bytes (TestRelayTraffic).
const (
	callThere = 48
	callBack  = 32
)

// far is what the other process is told.
type far struct {
	Secure      bool
	RDMA        string // device; empty: none
	Keys        mtls.Pinned
	There, Back int // of each round; 0 back: a stream
}

func main() {
	listen := flag.String("listen", "127.0.0.1:0", "where the other process listens")
	copyMiB := flag.Int("copy", 64, "bytes of a stream, in MiB")
	rounds := flag.Int("rounds", 20000, "round trips")
	through := flag.String("through", "", "connect there instead: a proxy that connects to --listen")
	rdma := flag.String("rdma", "", "RDMA device of both processes, which has --listen's address")
	serve := flag.Bool("serve", false, "be the other process")
	flag.Parse()
	do := func() error { return run(ends{*listen, *through}, *rdma, *copyMiB, *rounds) }
	if *serve {
		do = func() error { return server(*listen) }
	}
	if err := do(); err != nil {
		fmt.Fprintln(os.Stderr, "streams:", err)
		os.Exit(1)
	}
}

// ends are where the other process listens, and where it is reached, if elsewhere.
type ends struct{ listen, through string }

func run(at ends, rdma string, copyMiB, rounds int) error {
	type carrier struct {
		name string
		far
	}
	carriers := []carrier{{"tcp", far{}}, {"tls", far{Secure: true}}}
	if rdma != "" {
		carriers = []carrier{{"verbs", far{Secure: true, RDMA: rdma}}}
	}
	for _, x := range carriers {
		f := x.far
		f.There, f.Back = callThere, callBack
		err := against(at, f, func(c net.Conn) error { return pingPong(c, x.name, rounds) })
		if err == nil {
			f.There, f.Back = 128<<10, 0
			err = against(at, f, func(c net.Conn) error {
				return errors.Join(stream(c, x.name, copyMiB<<20), pieces(c, x.name, copyMiB<<20))
			})
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// against starts the other process, and connects to it.
func against(ends ends, f far, do func(net.Conn) error) error {
	var own mtls.Pinned
	var err error
	if f.Keys, own, err = mtls.NewPinnedPair(); err != nil {
		return err
	}
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.Command(exe, "--serve", "--listen", ends.listen)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	defer func() { _ = cmd.Wait() }()
	if err := json.NewEncoder(in).Encode(f); err != nil {
		return err
	}
	var at string
	if _, err := fmt.Fscanln(out, &at); err != nil {
		return err
	}
	if ends.through != "" {
		at = ends.through
	}
	c, err := net.Dial("tcp", at)
	if err == nil {
		c, err = end(c, f, own, true)
	}
	if err != nil {
		return err
	}
	defer c.Close()
	return do(c)
}

// end is a session's connection.
func end(c net.Conn, f far, keys mtls.Pinned, client bool) (net.Conn, error) {
	if err := frame.Tune(c, frame.Lost); err != nil || !f.Secure {
		return c, err
	}
	config, shake := mtls.Pinned.Server, frame.Server
	if client {
		config, shake = mtls.Pinned.Client, frame.Client
	}
	cfg, err := config(keys, mtls.SessionProtocol)
	if err != nil {
		return nil, err
	}
	s, err := shake(context.Background(), c, cfg)
	if err != nil || f.RDMA == "" {
		return s, err
	}
	return overRDMA(s, f.RDMA, client)
}

func pingPong(c net.Conn, name string, rounds int) error {
	there, back := make([]byte, callThere), make([]byte, callBack)
	took := make([]time.Duration, rounds)
	for i := range took {
		start := time.Now()
		if _, err := c.Write(there); err != nil {
			return err
		}
		if _, err := io.ReadFull(c, back); err != nil {
			return err
		}
		took[i] = time.Since(start)
	}
	slices.Sort(took)
	fmt.Printf("%s_round_trip %.3f us\n", name, float64(took[rounds/2].Nanoseconds())/1e3)
	return nil
}

// stream sends so many bytes in chunks of a relay's, and awaits one byte back.
func stream(c net.Conn, name string, bytes int) error {
	b := make([]byte, 128<<10)
	best := 0.0
	for range 5 {
		took, err := send(c, b, bytes)
		if err != nil {
			return err
		}
		best = max(best, float64(bytes)/took.Seconds())
	}
	fmt.Printf("%s_stream %.3f GB/s\n", name, best/1e9)
	return nil
}

// pieces says what bytes of the sizes of the probe's copies take, there and a byte back.
func pieces(c net.Conn, name string, most int) error {
	b := make([]byte, 128<<10)
	for _, size := range []int{4 << 10, 16 << 10, 64 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20, 256 << 20, 1 << 30} {
		runs := 500
		switch {
		case size > most:
			return nil
		case size > 64<<20:
			runs = 5
		case size > 4<<20:
			runs = 15
		case size > 64<<10:
			runs = 60
		}
		took := make([]time.Duration, runs)
		var err error
		for i := range took {
			if took[i], err = send(c, b, size); err != nil {
				return err
			}
		}
		slices.Sort(took)
		fmt.Printf("%s_copy_%d %.3f us\n", name, size, float64(took[runs/2].Nanoseconds())/1e3)
	}
	return nil
}

// send sends so many bytes, of which the last is 1, and awaits one byte back.
func send(c net.Conn, b []byte, bytes int) (time.Duration, error) {
	start := time.Now()
	for left := bytes; left > 0; {
		p := b[:min(left, len(b))]
		if left -= len(p); left == 0 {
			p[len(p)-1] = 1
		}
		_, err := c.Write(p)
		p[len(p)-1] = 0
		if err != nil {
			return 0, err
		}
	}
	var back [1]byte
	_, err := io.ReadFull(c, back[:])
	return time.Since(start), err
}

// server is the other process.
func server(listen string) error {
	var f far
	if err := json.NewDecoder(os.Stdin).Decode(&f); err != nil {
		return err
	}
	ln, err := net.Listen("tcp", listen)
	if err != nil {
		return err
	}
	defer ln.Close()
	fmt.Println(ln.Addr())
	c, err := ln.Accept()
	if err == nil {
		c, err = end(c, f, f.Keys, false)
	}
	if err != nil {
		return err
	}
	defer c.Close()
	b := make([]byte, f.There)
	if f.Back == 0 {
		return sink(c, b)
	}
	for {
		if _, err := io.ReadFull(c, b); err != nil {
			return nil // the end
		}
		if _, err := c.Write(b[:f.Back]); err != nil {
			return err
		}
	}
}

// sink takes bytes, and answers the byte that ends a stream: all others are 0.
func sink(c net.Conn, b []byte) error {
	for {
		n, err := c.Read(b)
		if err != nil {
			return nil // the end
		}
		if b[n-1] == 1 {
			if _, err := c.Write(b[:1]); err != nil {
				return err
			}
		}
	}
}
