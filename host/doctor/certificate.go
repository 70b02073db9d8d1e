package doctor

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"time"

	"causeway/remote/mtls"
)

// renewBefore is how long before its end a certificate should have a successor: leases of GPU
// servers end with it, and with them what programs have there.
const renewBefore = 30 * 24 * time.Hour

// certificate is by what other hosts know this one: its files as a handshake would find them now.
func certificate(_ context.Context, m *Machine) Result {
	if m.Identity == nil {
		return ok("none is needed: neither [remote] nor [migration] has to do with another host")
	}
	s, err := m.Identity.Standing()
	switch {
	case errors.Is(err, fs.ErrPermission):
		return warning("Run this as root.", "its key may not be read by this user: not looked at")
	case err != nil:
		return failed("No other host knows this one, nor this one any other: "+cmp.Or(mtls.Remedy(err), "docs/REMOTE.md has a table of errors")+".", "%v", err)
	case time.Until(s.Until) < renewBefore:
		return warning("Issue this host a new one (causeway ca issue "+s.Host+"), and copy it and its key here: they are read at each connection, and nothing is started anew. An authority that ends is followed by another.",
			"%s is known until %s, and then by no other host", s.Host, s.Until.Format(time.DateOnly))
	}
	return ok("%s is known until %s", s.Host, s.Until.Format(time.DateOnly))
}
