package report

import (
	"cmp"
	"fmt"
	"io"
	"strings"

	"causeway/host/api"
)

// VGPUs writes a line for each vGPU.
func VGPUs(w io.Writer, r *Reading) error {
	if len(r.VGPUs) == 0 {
		_, err := fmt.Fprintln(w, "no vGPU: `causeway attach DOMAIN` gives a VM one, and so does its domain XML; without libvirt, `causeway create VM`")
		return err
	}
	var rows [][]string
	for i := range r.VGPUs {
		v := &r.VGPUs[i]
		l := limitsOf(v)
		memory, sessions := "-", "-"
		if s := v.Status; s != nil {
			memory, sessions = usedOf(s.Memory, memoryOf(v)), number(len(s.Sessions))
			if l.Sessions > 0 {
				sessions += fmt.Sprintf("/%d", l.Sessions)
			}
		} else if v.Spec.Memory > 0 {
			memory = "-/" + Bytes(v.Spec.Memory)
		}
		rows = append(rows, []string{
			clean(v.Spec.VM), clean(v.Spec.Name), r.gpuOf(v), string(v.State), memory, shareOf(v), capOf(v), sessions, ageOf(r, v),
		})
	}
	return grid(w, []string{"VM", "VGPU", "GPU", "STATE", "MEMORY", "SHARE", "CAP", "SESSIONS", "AGE"}, rows)
}

func ageOf(r *Reading, v *api.VGPU) string {
	if v.Started.IsZero() {
		return "-"
	}
	return Age(r.Time.Sub(v.Started))
}

// shareOf and capOf are cells; an ! marks what does not hold.
func shareOf(v *api.VGPU) string { return fmt.Sprint(limitsOf(v).Share) + unheld(v) }

func capOf(v *api.VGPU) string {
	if l := limitsOf(v); l.Cap != 0 {
		return percent(l.Cap) + unheld(v)
	}
	return "-"
}

func unheld(v *api.VGPU) string {
	if v.Status == nil || v.Status.Unheld == "" {
		return ""
	}
	return "!"
}

// Sessions writes a line for each process of a guest that uses a vGPU.
func Sessions(w io.Writer, r *Reading) error {
	var rows [][]string
	for i := range r.VGPUs {
		v := &r.VGPUs[i]
		if v.Status == nil {
			continue
		}
		for _, s := range v.Status.Sessions {
			rows = append(rows, []string{
				clean(v.Spec.VM), clean(v.Spec.Name), fmt.Sprint(s.GuestPID), fmt.Sprint(s.GuestUID), cmp.Or(clean(s.Program), "-"),
				cmp.Or(clean(s.State), "-"), Bytes(s.Memory), Bytes(s.Host), count(float64(s.Counters.Launches)),
				Bytes(s.Counters.BytesIn), Bytes(s.Counters.BytesOut), seconds(s.Counters.BusyNanos), seconds(s.Counters.WaitNanos),
				number(s.Worker), Age(r.Time.Sub(s.Started)),
			})
		}
	}
	if len(rows) == 0 {
		_, err := fmt.Fprintln(w, "no process of a guest uses a vGPU")
		return err
	}
	return grid(w, []string{"VM", "VGPU", "PID", "UID", "PROGRAM", "STATE", "MEMORY", "HOST", "LAUNCHES", "IN", "OUT", "BUSY", "WAITED", "WORKER", "AGE"}, rows)
}

// GPUs writes a line for each GPU with what causewayd knows of it.
func GPUs(w io.Writer, r *Reading) error {
	var rows [][]string
	for i := range r.GPUs {
		g := &r.GPUs[i]
		state := "ready"
		if g.Drained {
			state = "drained"
		}
		mig := "-"
		if len(g.MIG) > 0 {
			mig = number(len(g.MIG))
		}
		util := fmt.Sprintf("%d%%", g.Utilization)
		if g.Backend == "soft" { // it has no sensors
			util = "-"
		}
		rows = append(rows, []string{
			GPUNumber(g), clean(g.Name), usedOf(r.used(g), g.Memory), Bytes(g.Promised), number(len(g.VGPUs)), util,
			orDash(g.Temperature, "%d°C"), orDash((g.PowerMW+500)/1000, "%dW"), mig, cmp.Or(clean(g.Driver), "-"), state, g.ID,
		})
	}
	err := grid(w, []string{"GPU", "NAME", "MEMORY", "PROMISED", "VGPUS", "UTIL", "TEMP", "POWER", "MIG", "DRIVER", "STATE", "UUID"}, rows)
	for i := range r.GPUs {
		if g := &r.GPUs[i]; g.Drained {
			fmt.Fprintf(w, "note: GPU %s is drained (%s): `causeway gpus resume %s` has it take vGPUs again\n",
				GPUNumber(g), cmp.Or(sentence(g.Why), "nobody said why"), GPUNumber(g))
		}
	}
	return err
}

func orDash(n int, format string) string {
	if n == 0 {
		return "-"
	}
	return fmt.Sprintf(format, n)
}

// Notes writes what a reading lacks.
func Notes(w io.Writer, r *Reading) {
	if r.Daemon == nil {
		fmt.Fprintln(w, "note: causewayd does not run: this is what the device processes say; `systemctl start causewayd` or `causeway daemon` starts it")
	}
	if r.Daemon != nil {
		for _, p := range r.Daemon.Ports {
			if p.Error != "" {
				fmt.Fprintln(w, "note: a port is not served, and tried again:", whole(p.Error))
			}
		}
	}
	for _, n := range r.Notes {
		fmt.Fprintln(w, "note:", n)
	}
	for i := range r.VGPUs {
		v := &r.VGPUs[i]
		if v.Status != nil && v.Status.Unheld != "" {
			fmt.Fprintf(w, "note: share and cap of %s do not hold: %s\n", clean(v.Spec.Key()), sentence(v.Status.Unheld))
		}
		if v.Status != nil && v.Status.Copy != nil {
			fmt.Fprintf(w, "note: %s: %s\n", clean(v.Spec.Key()), copyText(v.Status.Copy))
		}
		if u := v.Upstream; u != nil && u.Error != "" {
			what := "does not renew the lease of"
			if u.Lost {
				what = "is lost, and with it"
			}
			fmt.Fprintf(w, "note: the GPU server %s %s %s: %s\n", clean(u.Server), what, clean(v.Spec.Key()), whole(u.Error))
		}
		if v.State == api.Lost {
			fmt.Fprintf(w, "note: %s is lost (%s): restart the VM, or detach the vGPU and attach it again\n",
				clean(v.Spec.Key()), cmp.Or(strings.TrimSpace(sentence(v.Why)), "its device process ended"))
		}
	}
}

// copyText is how far a pre-copy is.
func copyText(c *api.Copy) string {
	if c.Way == api.CopyIn {
		return fmt.Sprintf("memory of %d programs has come ahead of a VM: %s", c.Sessions, plainBytes(c.Total))
	}
	saved := ""
	if c.Saved > 0 {
		saved = fmt.Sprintf(" and %s saved by compression", plainBytes(c.Saved))
	}
	text := fmt.Sprintf("GPU memory goes ahead of the VM: %s sent%s, %d rounds, the last %s in %.2f s", plainBytes(c.Total), saved, c.Rounds, plainBytes(c.Sent), c.Took.Seconds())
	switch {
	case c.Stuck:
		text += "; it changes as fast as it is sent"
	case c.Ready:
		text += "; ready for the VM to stop"
	}
	if c.Throttled > 0 {
		text += fmt.Sprintf("; programs are held back for %d %% of the time", c.Throttled)
	}
	if c.Why != "" {
		text += "; not of all programs: " + sentence(c.Why)
	}
	return text
}

func plainBytes(n uint64) string { return strings.TrimSpace(Bytes(n)) }
