package relay

import (
	"golang.org/x/sys/unix"

	"causeway/remote"
)

// refusals are what a server says ahead of TLS, and what a guest is told then.
var refusals = map[string]Refusal{
	remote.NoLease: {unix.ENODEV, "the GPU server has no such lease any more: `causeway inspect` on this host says why"},
	remote.Full:    {unix.EUSERS, "the virtual GPU has as many CUDA processes as it may, by its GPU server's count: end some, or raise `causeway limits VM --sessions N`"},
	remote.NotNow:  {unix.EUSERS, "CUDA processes start too fast for the GPU server, or for their limits there: try again later"},
	remote.Version: {unix.ENODEV, "the GPU server has " + remote.ErrVersion.Error()},
	remote.Not:     {unix.ENODEV, "the GPU server begins no session: its log (`causeway logs`, journalctl -u causewayd) says why"},
}

// Refused is the error of a handshake as a Refusal, if the server has said in its place that it
// takes no session.
func Refused(err error) error {
	if r, ok := refusals[remote.Said(err)]; ok {
		return &r
	}
	return err
}
