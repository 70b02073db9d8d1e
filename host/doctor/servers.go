package doctor

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"causeway/host/api"
	"causeway/remote"
)

// servers are the GPU servers that causewayd knows, as it meets them now.
func servers(ctx context.Context, m *Machine) Result {
	list, err := m.Daemon.Servers(ctx)
	var refused *api.Error
	switch {
	case errors.As(err, &refused) && refused.Status == http.StatusForbidden:
		return warning("Run this as root, or take a role in causewayd.toml.", "causewayd does not tell this user")
	case err != nil:
		return ok("not known: causewayd does not answer")
	case len(list) == 0:
		return ok("none are configured")
	}
	var met, unmet []string
	for i := range list {
		s := &list[i]
		switch {
		case s.Error != "":
			unmet = append(unmet, s.Name+": "+s.Error)
		case s.Protocol != remote.ProtocolVersion:
			unmet = append(unmet, fmt.Sprintf("%s has Causeway %s, whose sessions speak version %d, this host version %d: install the same on both", s.Name, s.Version, s.Protocol, remote.ProtocolVersion))
		default:
			met = append(met, fmt.Sprintf("%s, %.2f ms", s.Name, s.RoundTrip.Seconds()*1000))
		}
	}
	if len(unmet) > 0 {
		return failed("docs/REMOTE.md has a table of errors; `causeway doctor` and `journalctl -u causewayd` on the server say more.", "%s", strings.Join(unmet, "; "))
	}
	return ok("%s", strings.Join(met, "; "))
}
