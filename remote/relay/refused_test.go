package relay_test

import (
	"crypto/tls"
	"errors"
	"net"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"causeway/remote"
	"causeway/remote/frame"
	"causeway/remote/relay"
)

// TestRefusedAhead: what a server says in the place of a handshake is what the program is told, and
// which error it gets; anything else is TLS's error.
func TestRefusedAhead(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	for said, want := range map[string]struct {
		errno unix.Errno
		text  string
	}{
		remote.Full:    {unix.EUSERS, "as many CUDA processes as it may"},
		remote.NotNow:  {unix.EUSERS, "try again later"},
		remote.NoLease: {unix.ENODEV, "no such lease"},
		remote.Not:     {unix.ENODEV, "its log"},
		remote.Version: {unix.ENODEV, "another version of Causeway: install the same on both"},
		"HTTP/":        {unix.ENODEV, "does not look like a TLS handshake"},
		"":             {unix.ENODEV, "EOF"},
	} {
		t.Run(said, func(t *testing.T) {
			c, err := net.Dial("tcp", ln.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			far, err := ln.Accept()
			if err != nil {
				t.Fatal(err)
			}
			done := make(chan struct{})
			go func() {
				defer close(done)
				remote.Refuse(far.(*net.TCPConn), said)
				_ = far.Close()
			}()
			_, err = frame.Client(t.Context(), c, &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS13})
			err = relay.Refused(err)
			<-done
			if err == nil || relay.Errno(err) != want.errno || !strings.Contains(err.Error(), want.text) || errors.Is(err, relay.ErrRefused) != strings.HasPrefix(said, "CW") {
				t.Errorf("%v, errno %v; want %v, %q", err, relay.Errno(err), want.errno, want.text)
			}
			if relay.Away(err) {
				t.Error("another connection would mend it")
			}
		})
	}
}
