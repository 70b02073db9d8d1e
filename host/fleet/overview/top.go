package overview

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"causeway/host/api"
	"causeway/host/report"
)

// Use is what a vGPU does.
type Use struct {
	Busy     float64 // part of a GPU's time
	Memory   uint64  // bytes
	Sessions int
}

// Uses are vGPUs of claims by what causewayds call them: of the GPU's own host, and of one whose
// GPU is another host's, which counts nothing.
type Uses struct{ by map[useKey]Use }

// useKey: served is what a GPU server has for another host.
type useKey struct {
	vgpu   string // claim-UID:NAME
	served bool
}

// Of is the use to be written of a vGPU that a causewayd calls so; nil: it is no claim's.
func (u *Uses) Of(vm, vgpu string, change func(*Use)) {
	k := useKey{vgpu: vgpu, served: strings.HasPrefix(vgpu, api.ClaimPrefix)}
	if !k.served {
		if !strings.HasPrefix(vm, api.ClaimPrefix) {
			return
		}
		k.vgpu = vm + ":" + vgpu
	}
	if u.by == nil {
		u.by = map[useKey]Use{}
	}
	is := u.by[k]
	change(&is)
	u.by[k] = is
}

// Top is a claim's vGPU with what it does.
type Top struct {
	Claim  string   `json:"claim"`
	Pods   []string `json:"pods,omitempty"`
	Node   string   `json:"node"`
	Device string   `json:"device"`
	Memory uint64   `json:"memory"` // bytes that it may use
	Used   *Used    `json:"used"`   // null: nobody says
}

// Used is what stands of a Use in JSON.
type Used struct {
	Busy     float64 `json:"busy"`
	Memory   uint64  `json:"memory"`
	Sessions int     `json:"sessions"`
}

// Top are the vGPUs of claims that pods have, the busiest first.
func (f *Fleet) Top(u *Uses) []Top {
	list := []Top{}
	for i := range f.Claims {
		c := &f.Claims[i]
		for n, p := range c.Parts {
			t := Top{Claim: c.Key(), Pods: c.Pods, Node: p.Node, Device: p.Device, Memory: p.Memory}
			if is, known := u.by[useKey{api.ClaimPrefix + c.UID + ":gpu" + strconv.Itoa(n), p.Lease != ""}]; known {
				t.Used = &Used{is.Busy, is.Memory, is.Sessions}
			}
			if len(c.Pods) > 0 || t.Used != nil {
				list = append(list, t)
			}
		}
	}
	slices.SortStableFunc(list, func(a, b Top) int {
		return cmp.Or(cmp.Compare(b.busy(), a.busy()), cmp.Compare(a.Claim, b.Claim))
	})
	return list
}

// busy has what nobody knows of come last.
func (t *Top) busy() float64 {
	if t.Used == nil {
		return -1
	}
	return t.Used.Busy
}

// TopTable writes them for people.
func TopTable(out io.Writer, list []Top) error {
	w := tabwriter.NewWriter(report.Safe(out), 0, 0, 2, ' ', 0)
	if len(list) == 0 {
		fmt.Fprintln(w, "no pod has a GPU of Causeway's")
		return w.Flush()
	}
	fmt.Fprintln(w, "CLAIM\tGPU-TIME\tMEMORY\tSESSIONS\tNODE\tGPU\tPODS")
	unknown := 0
	for i := range list {
		t := &list[i]
		busy, memory, sessions := "-", "-", "-"
		if t.Used != nil {
			busy, memory, sessions = fmt.Sprintf("%.0f%%", 100*t.Used.Busy), report.Bytes(t.Used.Memory), strconv.Itoa(t.Used.Sessions)
		} else {
			unknown++
		}
		fmt.Fprintf(w, "%s\t%s\t%s/%s\t%s\t%s\t%s\t%s\n", line(t.Claim), busy, memory, report.Bytes(t.Memory), sessions, line(t.Node), line(t.Device), line(cmp.Or(strings.Join(t.Pods, ","), "-")))
	}
	if unknown > 0 {
		fmt.Fprintf(w, "\n%d vGPUs without figures: does Prometheus read causewayd of their GPUs' hosts (metrics.listen)?\n", unknown)
	}
	return w.Flush()
}
