package report

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"strings"
	"time"

	"causeway/host/api"
	"causeway/host/limit"
)

// Inspected is a vGPU with how to attach it, as `causeway inspect --json` prints it.
type Inspected struct {
	api.VGPU
	Attach Attach `json:"attach"`
}

// Inspect writes all that is known of a vGPU.
func Inspect(w io.Writer, r *Reading, v *api.VGPU) error {
	p := &paper{w: w}
	p.title("%s: %s", clean(v.Spec.Key()), v.State)
	if v.Why != "" {
		p.line("why", sentence(v.Why))
	}
	gpu := r.gpuOf(v)
	if v.GPU != "" && v.GPU != gpu {
		gpu += " (" + v.GPU + ")"
	}
	p.line("GPU", gpu)
	upstream(p, r, v)
	p.line("asked for", wish(&v.Spec))
	p.line("socket", v.Socket)
	p.line("control", v.Control)
	p.line("owner", v.Spec.Owner)
	process := "none"
	if v.PID > 0 {
		process = number(v.PID)
	}
	if v.Status != nil {
		process += ", causeway " + clean(v.Status.Version)
	}
	if !v.Started.IsZero() {
		process += fmt.Sprintf(", since %s (%s)", v.Started.Local().Format(time.DateTime), Age(r.Time.Sub(v.Started)))
	}
	p.line("process", process)
	inspectLimits(p, limitsOf(v))
	p.line("profile", v.Spec.Profile)
	if v.Status != nil && v.Status.Unheld != "" {
		p.line("not held", "share and cap: "+sentence(v.Status.Unheld))
	}
	if v.Status != nil {
		inspectStatus(p, r, v)
	}
	if v.Spec.Lease == "" { // else it is another host's: what attaches it is to be had there
		inspectAttach(p, AttachTo(v))
	}
	return p.err
}

// Limits writes a vGPU's limits.
func Limits(w io.Writer, l api.Limits) error {
	p := &paper{w: w}
	inspectLimits(p, l)
	return p.err
}

func inspectLimits(p *paper, l api.Limits) {
	memory, cap, sessions := "none: the whole GPU", "none", "as many as the configuration allows"
	if l.Memory > 0 {
		memory = Bytes(l.Memory)
	}
	if l.Cap > 0 {
		cap = fmt.Sprintf("%d %% of the GPU's time", l.Cap)
	}
	if l.Sessions > 0 {
		sessions = fmt.Sprint(l.Sessions)
	}
	p.title("Limits")
	p.line("memory", memory)
	p.line("share", fmt.Sprintf("%d (others have %d unless they say so)", cmp.Or(l.Share, limit.DefaultShare), limit.DefaultShare))
	p.line("cap", cap)
	p.line("sessions", sessions+", "+usersOf(l))
	p.line("host", fmt.Sprintf("%s of its memory, half of that for one session", Bytes(cmp.Or(l.HostMemory, limit.DefaultHostMemory))))
}

// managed is the managed memory of sessions that have more than the GPU has room for: what lies
// here, in the guest, or on a GPU server in that host's memory, and what lies at the GPU.
func managed(s *api.Status) (here, atGPU uint64) {
	for i := range s.Sessions {
		here += s.Sessions[i].ManagedHere
		atGPU += s.Sessions[i].ManagedAtGPU
	}
	return here, atGPU
}

// usersOf is what one user of the guest may have of the sessions.
func usersOf(l api.Limits) string {
	if l.Sessions == 0 || l.UserSessions != 0 {
		return fmt.Sprintf("%v for one user", limit.UserSessions(l.UserSessions))
	}
	return fmt.Sprintf("%d for one user", limit.UserSessions(0).Of(limit.Sessions(l.Sessions)))
}

func inspectStatus(p *paper, r *Reading, v *api.VGPU) {
	s := v.Status
	all := s.Past
	for _, o := range s.Sessions {
		all.Add(o.Counters)
	}
	p.title("Use")
	p.line("memory", fmt.Sprintf("%s (most in one session: %s)", usedOf(s.Memory, memoryOf(v)), Bytes(all.MemoryPeak)))
	p.line("host", fmt.Sprintf("%s of its memory, %d requests refused", usedOf(s.Host, s.Limits.HostMemory), all.HostRefused))
	p.line("sessions", fmt.Sprintf("%d now, %d so far, %d refused by a limit", len(s.Sessions), s.Opened, s.Refused))
	p.line("calls", fmt.Sprintf("%d (%d failed), %d launches", all.Calls, all.FailedCalls, all.Launches))
	p.line("copied", fmt.Sprintf("%s to the GPU, %s back", Bytes(all.BytesIn), Bytes(all.BytesOut)))
	if here, _ := managed(s); here > 0 || all.Evicted+all.Returned > 0 {
		p.line("managed", fmt.Sprintf("%s outside the GPU's memory for lack of room; %d pieces left it (%s), %d came back (%s)", Bytes(here), all.Evicted, Bytes(all.ManagedOut), all.Returned, Bytes(all.ManagedIn)))
	}
	p.line("time", fmt.Sprintf("GPU busy %s, work held back by limits %s, workers' CPU %s", seconds(all.BusyNanos), seconds(all.WaitNanos), seconds(all.WorkerNanos)))
	if s.Card.Known {
		p.line("driver", fmt.Sprintf("GPU busy %s by its account, %s charged that was not counted", seconds(s.Card.Nanos), seconds(s.Card.Charged)))
	}
	if s.Room != 0 {
		room := "for nothing"
		if s.Room > 1 {
			room = "for " + Bytes(s.Room)
		}
		p.line("room", fmt.Sprintf("%s now, %s are away for others' sake", room, Bytes(s.Away)))
		p.line("swapped", fmt.Sprintf("%d sessions out (%s), %d back (%s); %s waited for room, %d allocations refused for lack of it",
			s.Swaps.Out, Bytes(s.Swaps.OutBytes), s.Swaps.In, Bytes(s.Swaps.InBytes), seconds(s.Swaps.WaitNS), s.Swaps.Denied))
	}
	p.line("no memory", fmt.Sprintf("%d allocations refused by the limit", all.OutOfMemory))
	if s.Copied > 0 {
		p.line("sent ahead", fmt.Sprintf("%s of GPU memory, to other hosts; compression saved %s", Bytes(s.Copied), Bytes(s.CopySaved)))
	}
	if s.Copy != nil {
		p.line("migrates", copyText(s.Copy))
	}
	if len(s.Sessions) == 0 {
		return
	}
	p.title("Guest processes")
	one := Reading{Time: r.Time, VGPUs: []api.VGPU{*v}}
	var b bytes.Buffer
	_ = Sessions(&b, &one)
	p.block(b.String())
	for _, o := range s.Sessions {
		if o.StoredIn != "" {
			p.line("suspended", fmt.Sprintf("process %d into a file in %s", o.GuestPID, sentence(o.StoredIn)))
		}
		if o.Peer != "" {
			p.line("connected by", fmt.Sprintf("process %d: %s", o.GuestPID, sentence(o.Peer)))
		}
		if o.Carrier != "" {
			p.line("carrier", fmt.Sprintf("process %d: %s", o.GuestPID, sentence(o.Carrier)))
		}
		if o.Unmovable != "" {
			how := "keeps this VM from being saved or migrated"
			if v.Spec.Programs || v.Spec.Lease != "" { // there is none, or it is not known here
				how = "cannot be saved or moved"
			}
			p.line("stays", fmt.Sprintf("process %d %s: %s", o.GuestPID, how, sentence(o.Unmovable)))
		}
	}
}

// WriteAttach writes how a VM gets a vGPU.
func WriteAttach(w io.Writer, a Attach) error {
	p := &paper{w: w}
	inspectAttach(p, a)
	return p.err
}

func inspectAttach(p *paper, a Attach) {
	if a.Environment != "" {
		p.title("In the environment of programs of this host")
		p.block(a.Environment)
		return
	}
	p.title("In the domain's XML (below <domain>)")
	p.block(a.MemoryBacking)
	if a.Metadata != "" {
		p.block(a.Metadata)
	}
	p.title("In the domain's XML (below <devices>)")
	p.block(a.Filesystem)
	p.title("QEMU without libvirt, for this vGPU")
	p.arguments(a.QEMU)
	p.title("QEMU without libvirt, once for the VM (SIZE: its memory, as in -m)")
	p.arguments(a.QEMUMemory)
	p.title("In the guest, once")
	p.block(strings.Join(a.Guest, "\n"))
}

// paper is a writer that remembers its first error.
type paper struct {
	w     io.Writer
	err   error
	begun bool
}

func (p *paper) printf(format string, args ...any) {
	if p.err == nil {
		_, p.err = fmt.Fprintf(p.w, format, args...)
	}
}

func (p *paper) title(format string, args ...any) {
	if p.begun {
		p.printf("\n")
	}
	p.begun = true
	p.printf(format+"\n", args...)
}

func (p *paper) line(name, value string) {
	if value = cmp.Or(value, "-"); value != "-" {
		p.printf("  %-10s  %s\n", name, value)
	}
}

// arguments writes options with their values.
func (p *paper) arguments(args []string) {
	for i := 0; i+1 < len(args); i += 2 {
		p.printf("  %s %s\n", args[i], args[i+1])
	}
}

func (p *paper) block(text string) {
	for l := range strings.SplitSeq(strings.TrimRight(text, "\n"), "\n") {
		p.printf("  %s\n", l)
	}
}
