package device

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"time"
)

// another is a connection that is to be one more of a pre-copy.
type another struct {
	conn    io.ReadWriteCloser
	attempt uint64
	taken   chan context.Context // how long it lasts
}

// CopyAlong gives a pre-copy that has begun, or is about to, another connection, which it takes
// over, until that ends.
func (d *Device) CopyAlong(ctx context.Context, conn io.ReadWriteCloser, attempt uint64) error {
	defer conn.Close()
	a := another{conn, attempt, make(chan context.Context, 1)}
	t := time.NewTimer(helloLimit)
	defer t.Stop()
	select {
	case d.along <- a:
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return fmt.Errorf("%w: no pre-copy wants this connection", errCopyOver)
	}
	over := <-a.taken
	select {
	case <-over.Done():
		return context.Cause(over)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// begin says hello, and has all connections ready.
func (o *copyOut) begin() error {
	hello := o.d.copyHello()
	hello.Connections = o.opt.Connections
	if hello.Connections > 1 {
		hello.Join = make([]byte, tokenSize)
		_, _ = rand.Read(hello.Join)
	}
	b, err := json.Marshal(hello)
	if err != nil {
		return err
	}
	if err := o.put(o.conn, frameOf(copyHello, 0, 0, b)); err != nil {
		return err
	}
	t := time.NewTimer(helloLimit)
	defer t.Stop()
	select {
	case <-o.welcome:
	case <-o.over.Done():
		return context.Cause(o.over)
	case <-t.C:
		return fmt.Errorf("%w: no answer from the other host", errCopyOver)
	}
	conns := []io.ReadWriteCloser{o.conn}
	for len(conns) < o.opt.Connections {
		select {
		case a := <-o.d.along:
			if a.attempt != o.opt.Attempt { // of an earlier one
				gone, cancel := context.WithCancel(o.over)
				cancel()
				a.taken <- gone
				continue
			}
			a.taken <- o.over
			if err := o.join(a.conn, hello.Join); err != nil {
				return err
			}
			conns = append(conns, a.conn)
		case <-o.over.Done():
			return context.Cause(o.over)
		case <-t.C:
			return fmt.Errorf("%w: %d connections came of %d", errCopyOver, len(conns), o.opt.Connections)
		}
	}
	for _, c := range conns {
		go o.routineConnection(c)
	}
	return nil
}

// join makes conn one more, and has the end of it end the pre-copy.
func (o *copyOut) join(conn io.ReadWriteCloser, key []byte) error {
	context.AfterFunc(o.over, func() { _ = conn.Close() })
	late := time.AfterFunc(helloLimit, func() { _ = conn.Close() })
	defer late.Stop()
	if err := o.put(conn, frameOf(copyJoin, 0, 0, key)); err != nil {
		return err
	}
	f, err := readCopyFrame(conn, make([]byte, mostCopyData))
	switch {
	case err != nil:
		return lost(err)
	case f.kind == copyRefused:
		return fmt.Errorf("the other host: %s", printable(f.body))
	case f.kind != copyWelcome:
		return fmt.Errorf("%w: kind %d from a destination", errCopyFrame, f.kind)
	}
	go func() { // nothing more is said there
		_, err := io.ReadFull(conn, make([]byte, 1))
		if err == nil {
			err = fmt.Errorf("%w: an answer beside the first connection", errCopyFrame)
		}
		o.end(lost(err))
	}()
	return nil
}

func frameOf(kind, stream uint32, seq uint64, body []byte) []byte {
	return putCopyHeader(append(make([]byte, copyHeader), body...), kind, stream, seq)
}

// write sends a frame of a stream.
func (o *copyOut) write(kind, stream uint32, body []byte) error {
	return o.send(append(make([]byte, copyHeader), body...), kind, stream)
}

// send sends a frame of a stream, whose body lies in b behind its header: to the first connection
// that has room. b is not the caller's any more.
func (o *copyOut) send(b []byte, kind, stream uint32) error {
	o.order.Lock() // numbers over one connection go up
	defer o.order.Unlock()
	o.seq++
	putCopyHeader(b, kind, stream, o.seq)
	select {
	case o.frames <- b:
		return nil
	case <-o.over.Done():
		return context.Cause(o.over)
	}
}

// routineConnection sends frames over one connection, and lets the other side tell a source that
// has nothing to send from one that is gone.
func (o *copyOut) routineConnection(conn io.Writer) {
	t := time.NewTicker(pingEvery)
	defer t.Stop()
	p, room := packing{}, packRoom()
	for {
		begin := time.Now()
		select {
		case <-o.over.Done():
			return
		case b := <-o.frames:
			n, err := o.carry(conn, b, &p, room)
			if err != nil {
				return
			}
			n.idle = max(0, time.Since(begin)-n.pack-n.write)
			p.note(n)
			if cap(b) == copyHeader+mostCopyData {
				copyBuffers.Put((*[copyHeader + mostCopyData]byte)(b[:cap(b)]))
			}
		case <-t.C:
			if o.put(conn, frameOf(copyPing, 0, 0, nil)) != nil {
				return
			}
		}
	}
}

// carry sends a frame, packed if that pays.
func (o *copyOut) carry(conn io.Writer, b []byte, p *packing, room []byte) (n packed, err error) {
	n.body = uint64(len(b))
	begin := time.Now()
	if p.wants() && b[0] == copyData {
		if small := packFrame(b, room); small != nil {
			b = small
		}
		n.pack = time.Since(begin)
	}
	if o.limit != nil {
		_ = o.limit.WaitN(o.hurry, len(b)) // an error is haste
	}
	n.wire = uint64(len(b))
	err = o.put(conn, b)
	n.write = time.Since(begin) - n.pack
	o.mu.Lock()
	o.st.Saved += n.body - n.wire
	o.mu.Unlock()
	return n, err
}

// put writes a frame. Nobody else writes to conn.
func (o *copyOut) put(conn io.Writer, b []byte) error {
	if _, err := conn.Write(b); err != nil {
		err = lost(err)
		o.end(err)
		return err
	}
	o.mu.Lock()
	o.st.Total += uint64(len(b))
	o.mu.Unlock()
	return nil
}
