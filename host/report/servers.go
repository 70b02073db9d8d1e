package report

import (
	"cmp"
	"fmt"
	"io"
	"time"

	"causeway/host/api"
)

// Servers writes GPU servers, and what each offers.
func Servers(w io.Writer, list []api.Server) error {
	if len(list) == 0 {
		_, err := fmt.Fprintf(w, "no GPU servers: remote.servers in %s lists them, remote.domain finds them\n", api.ConfigFile)
		return err
	}
	var rows [][]string
	for i := range list {
		s := &list[i]
		for j := range s.GPUs {
			g := &s.GPUs[j]
			state := "ready"
			if g.Drained {
				state = "drained"
			}
			left := g.Memory - min(g.Memory, max(g.Promised, g.Used))
			rows = append(rows, []string{clean(s.Name), roundTrip(s.RoundTrip), GPUNumber(g), clean(g.Name), Bytes(g.Memory), Bytes(left), cmp.Or(clean(g.Driver), "-"), clean(s.Version), state})
		}
	}
	err := grid(w, []string{"SERVER", "ROUND TRIP", "GPU", "NAME", "MEMORY", "LEFT", "DRIVER", "CAUSEWAY", "STATE"}, rows)
	for i := range list {
		if s := &list[i]; s.Error != "" {
			fmt.Fprintf(w, "note: GPU server %s: %s\n", clean(s.Name), whole(s.Error))
		}
	}
	return err
}

func roundTrip(d time.Duration) string {
	if d == 0 {
		return "-"
	}
	return fmt.Sprintf("%.2f ms", float64(d)/1e6)
}

// upstream is where a vGPU on a GPU server lies, and how that is.
func upstream(p *paper, r *Reading, v *api.VGPU) {
	u := v.Upstream
	if u == nil {
		if v.Spec.Lease != "" {
			p.line("leased by", clean(v.Spec.Lease))
		}
		return
	}
	p.line("server", fmt.Sprintf("%s (%s), GPU %s (%s)", clean(u.Server), clean(u.Address), clean(u.GPU), clean(u.UUID)))
	state := fmt.Sprintf("%v, renewed %s ago, round trip %s", u.Lease, Age(r.Time.Sub(u.Renewed)), roundTrip(u.RoundTrip))
	p.line("lease", state)
	if u.State != nil {
		p.line("there", fmt.Sprintf("%s of GPU memory in %s", Bytes(u.State.Memory), several(u.State.Sessions, "session")))
	}
	switch {
	case u.Lost:
		p.line("lost", whole(u.Error))
	case u.Error != "":
		p.line("trouble", whole(u.Error))
	}
}
