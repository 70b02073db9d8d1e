package link

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"causeway/remote/sys"
)

// Type says what a Message means.
type Type uint32

// Messages from the parent.
const (
	Configure  Type = iota + 1 // payload: Config as JSON; files: the guest's connection, if the carrier has one
	Memory                     // payload: []MemoryRegion; files: one for each
	MemoryGone                 // the memory region at guest-physical address A was removed
	Region                     // Region declared at A, B bytes
	Piece                      // part of Region from byte A: payload []Extent of guest-physical memory. B: 1 if all pieces are there now
	RegionEnd                  // Region is no longer used
	Start                      // all of region 0 is there; files: the doorbell's eventfd. Answer: Started
	Park                       // let go of all guest memory: answer with Parked. A: number of the request
	Resume                     // leases are back
	Rebuild                    // move the session: files: stream socket to the new process. Answer: Rebuilt
	Quit                       // end the session
	Warm                       // payload: Config: get ready for the Configure that will follow some time
	Measure                    // who is the guest process, and what does it use? Answer: Measured, when the consumer has time
	Answer                     // to Offer and Redeem. A: number of the request, B: errno or 0; Redeem: payload and perhaps a file
	Shared                     // payload: a PageKind for each of the files. Right after Configure if that announced it, and at any time later
	Limit                      // the virtual GPU's memory limit is A bytes, 0: none; or what it uses has passed that either way
	Leave                      // the parent ends as it should: a Tied worker goes on without it
)

// Messages from the worker.
const (
	Started     Type = iota + 100 // A: errno or 0; payload: text
	Wake                          // Region: slot whose guest thread sleeps
	RegionEnded                   // the worker has let go of Region
	Parked                        // A: number of the request
	Rebuilt                       // A: errno or 0; payload: text. With 0 the sender exits next
	Adopted                       // a new worker runs the session now
	Offer                         // share with other workers. A: number of the request; payload: token, bytes; files: one or none
	Redeem                        // what does a token name? A: number of the request; payload: token
	Withdraw                      // payload: token of an Offer
	Measured                      // payload: Use
)

// Message is one packet.
type Message struct {
	Type    Type
	Region  uint32
	A, B    uint64
	Payload []byte
	Files   []int // descriptors; Send leaves them open, Receive's belong to the caller
}

const headerSize = 24

// MaxPayload bounds a message: 4096 extents.
const MaxPayload = 64 << 10

// Conn is one end of a link.
type Conn struct {
	uc *net.UnixConn
	mu sync.Mutex // orders writers

	buf, oob []byte // the reader's
}

// Pair makes a link: one end for this process, and a file for the child to inherit.
func Pair() (*Conn, *os.File, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("socketpair: %w", err)
	}
	c, err := New(fds[0])
	if err != nil {
		_ = unix.Close(fds[1])
		return nil, nil, err
	}
	return c, os.NewFile(uintptr(fds[1]), "link"), nil
}

// New takes over a SOCK_SEQPACKET descriptor.
func New(fd int) (*Conn, error) {
	uc, err := sys.UnixConn(fd, "link")
	if err != nil {
		return nil, err
	}
	return &Conn{uc: uc}, nil
}

// Send sends m.
func (c *Conn) Send(m Message) error {
	if len(m.Payload) > MaxPayload || len(m.Files) > sys.MaxRights {
		return fmt.Errorf("link message %d is too large", m.Type)
	}
	b := make([]byte, headerSize, headerSize+len(m.Payload))
	binary.LittleEndian.PutUint32(b, uint32(m.Type))
	binary.LittleEndian.PutUint32(b[4:], m.Region)
	binary.LittleEndian.PutUint64(b[8:], m.A)
	binary.LittleEndian.PutUint64(b[16:], m.B)
	b = append(b, m.Payload...)
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := sys.SendPacket(c.uc, b, m.Files); err != nil {
		return fmt.Errorf("link: %w", err)
	}
	return nil
}

// Receive returns the next message; io.EOF when the other side is gone. The payload is valid until the next Receive.
func (c *Conn) Receive() (Message, error) {
	if c.buf == nil {
		c.buf = make([]byte, headerSize+MaxPayload)
		c.oob = make([]byte, sys.RightsRoom(sys.MaxRights))
	}
	b, files, err := sys.ReceivePacket(c.uc, c.buf, c.oob)
	switch {
	case errors.Is(err, io.EOF):
		return Message{}, io.EOF
	case err != nil:
		return Message{}, fmt.Errorf("link: %w", err)
	}
	if len(b) < headerSize {
		sys.CloseAll(files)
		return Message{}, fmt.Errorf("link: damaged message of %d bytes", len(b))
	}
	return Message{
		Type:    Type(binary.LittleEndian.Uint32(b)),
		Region:  binary.LittleEndian.Uint32(b[4:]),
		A:       binary.LittleEndian.Uint64(b[8:]),
		B:       binary.LittleEndian.Uint64(b[16:]),
		Payload: b[headerSize:],
		Files:   files,
	}, nil
}

// Close ends the link.
func (c *Conn) Close() error { return c.uc.Close() }

// File returns a duplicate of the descriptor.
func (c *Conn) File() (*os.File, error) { return c.uc.File() }
