package device

import (
	"bytes"
	"errors"
	"io"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"

	"causeway/host/worker/link"
)

// TestCopyOrder: frames are followed in their order, over whichever connections they come; one that
// does not belong there ends all of them.
func TestCopyOrder(t *testing.T) {
	d, err := New(Options{Tree: Tree{Lib: library(t), GPU: "a GPU"}, Worker: link.Config{GPU: "soft"}, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	// Of no stream: nothing is done.
	drop := func(seq uint64) []byte { return frameOf(copyDrop, 1, seq, nil) }
	for name, c := range map[string]struct {
		by   [][]uint64 // numbers, by connection
		want error      // io.EOF: the connections ended, behind the last frame
	}{
		"one":            {[][]uint64{{1, 2, 3}}, io.EOF},
		"spread":         {[][]uint64{{2, 5}, {1, 4, 6}, {3}}, io.EOF},
		"backwards":      {[][]uint64{{3}, {2}, {1}}, io.EOF},
		"twice":          {[][]uint64{{1, 2}, {2}}, errCopyFrame},
		"twice, the one": {[][]uint64{{1, 1}}, errCopyFrame},
		"both wait":      {[][]uint64{{3}, {3}}, errCopyFrame},
		"lost":           {[][]uint64{{1, 3}, {4}}, errCopyFrame},
		"down":           {[][]uint64{{2, 1}, {3}}, errCopyFrame},
	} {
		t.Run(name, func(t *testing.T) {
			order := newCopyOrder(d, io.Discard, nil, len(c.by))
			var wg sync.WaitGroup
			sent := uint64(len(slices.Concat(c.by...)))
			ends := make([][2]net.Conn, len(c.by))
			for i := range ends {
				ends[i][0], ends[i][1] = net.Pipe()
				order.conns = append(order.conns, ends[i][0])
			}
			for i, list := range c.by {
				var b []byte
				for _, n := range list {
					b = append(b, drop(n)...)
				}
				r, w := ends[i][0], ends[i][1]
				wg.Go(func() {
					_, _ = w.Write(append(b, frameOf(copyPing, 0, 0, nil)...))
					// The end of one connection is that of all: not before all frames were taken.
					order.mu.Lock()
					for order.ended == nil && order.next <= sent {
						order.cond.Wait()
					}
					order.mu.Unlock()
					_ = w.Close()
				})
				wg.Go(func() {
					order.end(order.follow(r))
					_ = r.Close()
				})
			}
			wg.Wait()
			if err := order.wait(); !errors.Is(err, c.want) {
				t.Error(err)
			}
			if errors.Is(c.want, io.EOF) && order.next != sent+1 {
				t.Errorf("%d of %d frames were taken", order.next-1, sent)
			}
		})
	}
}

// TestJoins: a connection joins the pre-copy whose key it has, and no more of them than that wants.
func TestJoins(t *testing.T) {
	d, err := New(Options{Tree: Tree{Lib: library(t), GPU: "a GPU"}, Worker: link.Config{GPU: "soft"}, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	key := bytes.Repeat([]byte{7}, tokenSize)
	join := func(key []byte) string {
		var answers bytes.Buffer
		_ = d.CopyFrom(t.Context(), source{bytes.NewReader(frameOf(copyJoin, 0, 0, key)), &answers})
		f, err := readCopyFrame(&answers, make([]byte, mostCopyData))
		if err != nil {
			t.Fatal(err)
		}
		return string(f.body)
	}
	if said := join(key); !strings.Contains(said, "joins none") {
		t.Error(said)
	}
	order := newCopyOrder(d, io.Discard, key, 2)
	order.conns = append(order.conns, source{})
	d.in.order = order
	if said := join(make([]byte, tokenSize)); !strings.Contains(said, "joins another") {
		t.Error(said)
	}
	if said := join(key); said != "" {
		t.Error(said)
	}
	if err := order.wait(); !errors.Is(err, io.EOF) { // what joined has ended, and all with it
		t.Error(err)
	}
	if said := join(key); !strings.Contains(said, errCopyOver.Error()) {
		t.Error(said)
	}
	d.in.order = newCopyOrder(d, io.Discard, key, 1)
	d.in.order.conns = append(d.in.order.conns, source{})
	if said := join(key); !strings.Contains(said, "more than 1 connections") {
		t.Error(said)
	}
	d.in.order = newCopyOrder(d, io.Discard, nil, 2)
	d.in.order.conns = append(d.in.order.conns, source{})
	if said := join(make([]byte, tokenSize)); !strings.Contains(said, "joins another") {
		t.Error("no key is a key: ", said)
	}
}
