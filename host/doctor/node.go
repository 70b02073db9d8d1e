package doctor

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"path/filepath"
	"strings"

	"causeway/host/api"
	"causeway/host/schedule"
)

func configuration(_ context.Context, m *Machine) Result {
	switch err := m.Config(); {
	case err == nil:
		return ok("right")
	case errors.Is(err, fs.ErrNotExist):
		return ok("none: the defaults hold")
	case errors.Is(err, fs.ErrPermission):
		return warning("Run this as root.", "it may not be read by this user: not looked at")
	default:
		return failed("Correct it; `causeway daemon --check` tries it, `causeway daemon --example` explains each key.", "%v", err)
	}
}

func runDirectory(_ context.Context, m *Machine) Result {
	st, err := m.stat(m.RunDir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return warning("`systemd-tmpfiles --create causeway.conf`, or start causewayd, which makes it.", "%s is not there", m.RunDir)
	case err != nil:
		return failed("Run this as root.", "%v", err)
	case !st.IsDir():
		return failed("Move it away: `mv "+m.RunDir+" "+m.RunDir+".old`.", "%s is no folder", m.RunDir)
	case st.Mode().Perm()&0o022 != 0:
		return failed("`chmod 755 "+m.RunDir+"`.", "%s may be written by others (%v): anybody could pose as a vGPU", m.RunDir, st.Mode().Perm())
	case st.Mode().Perm()&0o001 == 0:
		return failed("`chmod 755 "+m.RunDir+"`: each socket has permissions of its own.", "%s (%v) keeps QEMU's user from its sockets", m.RunDir, st.Mode().Perm())
	}
	return ok("%s, %v", m.RunDir, st.Mode().Perm())
}

// Room that state and logs need.
const (
	leastFree  = 16 << 20
	littleFree = 256 << 20
)

func diskSpace(_ context.Context, m *Machine) Result {
	var found []string
	worst := OK
	for _, path := range []string{m.StateDir, m.LogDir, m.RunDir} {
		at := path
		for at != "/" && at != "." && !m.exists(at) {
			at = filepath.Dir(at)
		}
		s, err := m.Space(at)
		if err != nil {
			return warning("Run this as root.", "room for %s: %v", path, err)
		}
		state, text := OK, fmt.Sprintf("%s has %d MiB", path, s.Free>>20)
		switch {
		case s.Free < leastFree || s.Nodes > 0 && s.Inodes < 16:
			state = Failed
		case s.Free < littleFree && s.Free < s.Total/20 || s.Nodes > 0 && s.Inodes < 256:
			state = Warning
		}
		if s.Nodes > 0 && s.Inodes < 256 {
			text += fmt.Sprintf(" and %d files left", s.Inodes)
		}
		if state != OK {
			text += " (too little)"
		}
		if state == Failed || state == Warning && worst == OK {
			worst = state
		}
		found = append(found, text)
	}
	r := Result{State: worst, Found: strings.Join(found, ", ")}
	if worst != OK {
		r.Do = "Make room: `du -xsh /var/log/* | sort -h`, `journalctl --vacuum-size=200M`."
	}
	return r
}

func daemon(ctx context.Context, m *Machine) Result {
	v, err := m.Daemon.Version(ctx)
	var refused *api.Error
	switch {
	case errors.As(err, &refused) && refused.Status == http.StatusForbidden:
		return warning("Run this as root, or take a role: as packaged, members of the group causeway are operators.", "it runs, and tells this user nothing")
	case errors.Is(err, fs.ErrPermission):
		return warning("Run this as root, or give yourself a role in causewayd.toml.", "its socket may not be opened by this user")
	case errors.Is(err, api.ErrNotRunning):
		return failed("`systemctl enable --now causewayd`, or `causeway daemon`.", "it does not run (%s)", api.Socket(m.RunDir))
	case errors.Is(err, api.ErrSilent):
		return failed("Have it go on as is said, or restart it: VMs and programs do not notice.", "%v", err)
	case err != nil:
		return failed("`systemctl status causewayd`, `journalctl -u causewayd`.", "it does not answer: %v", err)
	case v.Version != m.Version:
		return warning("`systemctl restart causewayd`: VMs do not notice.", "causewayd is %s, this program %s", v.Version, m.Version)
	}
	return ok("version %s, process %d", v.Version, v.PID)
}

// unit is what starts causewayd where systemd runs.
const unit = "causewayd.service"

func units(ctx context.Context, m *Machine) Result {
	if !m.exists("/run/systemd/system") {
		return ok("systemd does not run here: causewayd is started by hand")
	}
	text, err := m.Run(ctx, "systemctl", "show", unit, "--property=LoadState,UnitFileState,ActiveState,NeedDaemonReload")
	if err != nil {
		return warning("Run it: `systemctl status "+unit+"`.", "systemd does not tell: %s", firstLine(text))
	}
	is := map[string]string{}
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		is[name] = value
	}
	failures, _ := m.Run(ctx, "systemctl", "list-units", "--state=failed", "--plain", "--no-legend", "causeway*")
	switch first, _, _ := strings.Cut(strings.TrimSpace(failures), " "); {
	case is["LoadState"] == "not-found":
		return warning("Install the causeway package, which has the unit, or start `causeway daemon` after each boot.", "there is no %s: causewayd does not start with this host", unit)
	case is["LoadState"] == "masked":
		return failed("`systemctl unmask "+unit+"`, then `systemctl enable --now causewayd`.", "%s is masked", unit)
	case is["LoadState"] != "loaded":
		return failed("`systemctl status "+unit+"` says what is wrong with its file.", "%s is %s", unit, is["LoadState"])
	case is["ActiveState"] == "failed":
		return failed("`journalctl -u causewayd -n 20` says why; then `systemctl restart causewayd`.", "%s failed", unit)
	case is["NeedDaemonReload"] == "yes":
		return warning("`systemctl daemon-reload && systemctl restart causewayd`: VMs do not notice.", "%s has changed on disk since systemd read it", unit)
	case is["UnitFileState"] == "disabled":
		return warning("`systemctl enable causewayd`.", "%s is not enabled: causewayd does not start with this host", unit)
	case first != "":
		return warning("`journalctl -u "+first+" -n 20` says why; `systemctl reset-failed "+first+"` when that is settled.", "%s failed", first)
	}
	return ok("%s is %s, %s", unit, is["UnitFileState"], is["ActiveState"])
}

func scheduler(ctx context.Context, m *Machine) Result {
	listening, known := m.listening()
	switch socket := filepath.Join(m.RunDir, "scheduler.sock"); {
	case !known:
		return ok("not known: /proc/net/unix is not readable")
	case listening[socket]:
		if err := m.Scheduler(ctx, socket); errors.Is(err, schedule.ErrSilent) {
			return warning("`kill -CONT` it if it is stopped, else end it by `kill -KILL`: causewayd starts another; `ss -xlp src "+socket+"` names it.", "it listens and answers nothing: shares and caps do not hold (%v)", err)
		}
		return ok("it listens")
	}
	if _, err := m.Daemon.Version(ctx); err != nil {
		return ok("causewayd starts it")
	}
	return warning("`systemctl restart causewayd` starts it, unless causewayd.toml says enabled = false below [scheduler]; `journalctl -u causeway-scheduler` says why it ended.",
		"it does not run: shares and caps do not hold")
}

// accepting is the flag of /proc/net/unix for sockets that listen.
const accepting = "00010000"

// listening are the paths of sockets that somebody serves. Nobody is connected to for it: a
// vhost-user socket takes one VM only.
func (m *Machine) listening() (paths map[string]bool, known bool) {
	text, there := m.text("/proc/net/unix")
	paths = map[string]bool{}
	for s := bufio.NewScanner(strings.NewReader(text)); s.Scan(); {
		if f := strings.Fields(s.Text()); len(f) >= 8 && f[3] == accepting {
			paths[f[7]] = true
		}
	}
	return paths, there
}

// sockets finds those that nobody serves any more.
func sockets(_ context.Context, m *Machine) Result {
	listening, known := m.listening()
	if !known {
		return ok("not known: /proc/net/unix is not readable")
	}
	var stale, all int
	var names []string
	for _, pattern := range []string{"*.sock", "*/*.sock", "*/*.ctl"} {
		for _, path := range m.glob(filepath.Join(m.RunDir, pattern)) {
			if all++; !listening[path] {
				stale++
				names = append(names, path)
			}
		}
	}
	if stale > 0 {
		return warning("Remove them: `rm "+strings.Join(names[:min(stale, 8)], " ")+"`; causewayd replaces its own.", "%d of %d sockets are served by nobody", stale, all)
	}
	return ok("%d, all served", all)
}

// vgpus looks at what causewayd says of them.
func vgpus(ctx context.Context, m *Machine) Result {
	list, err := m.Daemon.VGPUs(ctx)
	if err != nil {
		return ok("not known without causewayd")
	}
	var lost, silent, unheld, unlimited []string
	for _, v := range list {
		switch {
		case v.State == api.Lost:
			lost = append(lost, v.Spec.Key())
		case v.Status == nil && v.Spec.Remote == "":
			silent = append(silent, v.Spec.Key())
		case v.Status != nil && v.Status.Unheld != "":
			unheld = append(unheld, v.Spec.Key()+" ("+v.Status.Unheld+")")
		case v.Spec.Memory == 0:
			unlimited = append(unlimited, v.Spec.Key())
		}
	}
	switch {
	case len(lost) > 0:
		return failed("`causeway logs "+lost[0]+"` says why; restart the VM, or detach and attach the vGPU.", "lost: %s", strings.Join(lost, ", "))
	case len(silent) > 0:
		return warning("`causeway inspect "+silent[0]+"`; end the process if it stays so.", "no answer from %s", strings.Join(silent, ", "))
	}
	if len(unheld) > 0 {
		return failed("causewayd starts the scheduler again: `journalctl -u causewayd` says why it does not.", "share and cap do not hold: %s", strings.Join(unheld, ", "))
	}
	if len(unlimited) > 0 && len(list) > 1 {
		return warning("`causeway limits "+unlimited[0]+" --memory SIZE`, or memory='...' in the domain's XML, or memory below [devices] in causewayd.toml.",
			"%d; without a limit of memory, so that neighbours may find none: %s", len(list), strings.Join(unlimited, ", "))
	}
	gpus, err := m.Daemon.GPUs(ctx)
	if err != nil {
		return ok("%d", len(list))
	}
	for _, g := range gpus {
		if g.Drained {
			return warning("`causeway gpus resume "+g.ID+"` once it is well.", "%d; GPU %s is drained: %s", len(list), g.ID, g.Why)
		}
	}
	return ok("%d", len(list))
}
