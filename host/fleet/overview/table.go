package overview

import (
	"cmp"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"causeway/host/report"
)

// Table writes the fleet for people: its GPUs by nodes, then its claims, and why some wait.
func (f *Fleet) Table(out io.Writer, now time.Time) error {
	w := tabwriter.NewWriter(report.Safe(out), 0, 0, 2, ' ', 0)
	if len(f.Nodes) == 0 {
		fmt.Fprintln(w, "no node offers GPUs of Causeway's: causeway-dra publishes them, one on each node with GPUs (docs/KUBERNETES.md)")
	} else {
		fmt.Fprintln(w, "NODE\tSTATE\tGPU\tMODEL\tMEMORY\tCOMPUTE\tCLAIMS\tTAINTS")
	}
	for i := range f.Nodes {
		n := &f.Nodes[i]
		state := strings.Join(append([]string{n.State}, n.Notes...), ",")
		if len(n.GPUs) == 0 {
			fmt.Fprintf(w, "%s\t%s\tnone\t-\t-\t-\t-\t-\n", line(n.Name), state)
		}
		for j := range n.GPUs {
			g := &n.GPUs[j]
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s/%s\t%d/100\t%d\t%s\n", line(n.Name), state, line(g.Device), line(cmp.Or(g.Model, "-")),
				report.Bytes(g.Claimed), report.Bytes(g.Memory), g.Compute, g.Claims, line(cmp.Or(strings.Join(g.Taints, ","), "-")))
		}
	}
	fmt.Fprintln(w)
	if len(f.Claims) == 0 {
		fmt.Fprintln(w, "no claim: `causeway-fleet claim NAME --memory 4GiB` makes one")
	} else {
		fmt.Fprintln(w, "CLAIM\tSTATE\tMEMORY\tCOMPUTE\tNODE\tGPU\tPODS\tAGE")
	}
	for i := range f.Claims {
		f.Claims[i].rows(w, now)
	}
	why := false
	for i := range f.Claims {
		if c := &f.Claims[i]; c.Why != "" {
			if !why {
				fmt.Fprintln(w)
				why = true
			}
			room := ""
			if c.State == Waiting {
				room = f.room(c)
			}
			fmt.Fprintf(w, "%s: %s\n", line(c.Key()), line(strings.TrimSuffix(c.Why, ".")+room))
		}
	}
	for i, l := range f.Lacking {
		if i == 0 && !why {
			fmt.Fprintln(w)
		}
		fmt.Fprintf(w, "%s/%s names the claim %s, which its namespace has not: the pod waits until there is one\n", line(l.Namespace), line(l.Pod), line(l.Claim))
	}
	return w.Flush()
}

// rows are a claim's: one for each of its GPUs.
func (c *Claim) rows(w io.Writer, now time.Time) {
	pods := line(cmp.Or(strings.Join(c.Pods, ","), "-"))
	age := report.Age(now.Sub(c.Created))
	if len(c.Parts) == 0 {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t-\t-\t%s\t%s\n", line(c.Key()), c.State, line(c.Memory), line(c.Compute), pods, age)
	}
	for _, p := range c.Parts {
		fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%s\t%s\t%s\t%s\n", line(c.Key()), c.State, report.Bytes(p.Memory), p.Compute, line(p.Node), line(p.Device), pods, age)
	}
}

// line is others' text on one line, in one cell.
func line(s string) string { return strings.Join(strings.Fields(s), " ") }
