package remote

import (
	"io"
	"net"
	"os"
	"syscall"
)

// reader is what readers of a connection's descriptor share.
type reader struct {
	conn net.Conn
	raw  syscall.RawConn

	// Of the Read under way.
	p   []byte
	n   int
	err error
}

// newReader is for a connection with a descriptor of the kernel's, on a machine whose cores are
// plenty; false: it is not.
func newReader(c net.Conn, cores int) (reader, bool) {
	s, ok := c.(syscall.Conn)
	if !ok || cores < plentyCores {
		return reader{}, false
	}
	raw, err := s.SyscallConn()
	return reader{conn: c, raw: raw}, err == nil
}

// read is what look leaves in n and err, which it is called for until it reports true, with errors
// as the connection's own Read has.
func (r *reader) read(p []byte, look func(fd uintptr) bool) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	r.p = p
	err := r.raw.Read(look)
	r.p = nil
	switch {
	case err != nil: // it is closed, or its deadline is over
		return 0, err
	case r.err != nil:
		return 0, &net.OpError{Op: "read", Net: r.conn.LocalAddr().Network(), Source: r.conn.LocalAddr(), Addr: r.conn.RemoteAddr(), Err: os.NewSyscallError("read", r.err)}
	case r.n == 0:
		return 0, io.EOF
	}
	return r.n, nil
}
