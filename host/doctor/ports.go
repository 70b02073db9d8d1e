package doctor

import (
	"context"
	"strings"
)

// ports are those of the network that causewayd is to serve.
func ports(ctx context.Context, m *Machine) Result {
	v, err := m.Daemon.Version(ctx)
	if err != nil {
		return ok("not known: causewayd does not answer")
	}
	var has, lacks []string
	hosts := false
	for _, p := range v.Ports {
		if p.Error == "" {
			has = append(has, p.Key+" "+p.Address)
			continue
		}
		lacks = append(lacks, p.Error)
		hosts = hosts || p.Key != "metrics.listen"
	}
	const do = "causewayd tries again every few seconds: nothing is started anew."
	switch {
	case hosts:
		return failed(do, "other hosts are not served: %s", strings.Join(lacks, "; "))
	case len(lacks) > 0:
		return warning(do, "%s", strings.Join(lacks, "; "))
	case len(has) == 0:
		return ok("none are configured")
	}
	return ok("served: %s", strings.Join(has, ", "))
}
