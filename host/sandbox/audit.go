package sandbox

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// Audit enforces nothing. Calls that strict would judge stop and ask a thread of this process, which writes down the ones
// that strict would deny, and lets them go on. What users and namespaces would deny does not show.

// question is struct seccomp_notif (seccomp_unotify(2)).
type question struct {
	ID     uint64
	PID    uint32
	Flags  uint32
	Number int32
	Arch   uint32
	IP     uint64
	Args   [6]uint64
}

// answer is struct seccomp_notif_resp.
type answer struct {
	ID    uint64
	Val   int64
	Error int32
	Flags uint32
}

// goOn is SECCOMP_USER_NOTIF_FLAG_CONTINUE.
const goOn = 1

// auditor answers questions. Its goroutine owns it.
type auditor struct {
	listener int
	memory   *os.File // of this process
	rules    []rule
	said     map[string]bool
	log      *slog.Logger
}

// maxSaid bounds what an auditor remembers; then it repeats itself.
const maxSaid = 4096

func audit(p *Policy, log *slog.Logger) error {
	f := base(p)
	f.merge(sealed())
	f.notifying()
	code, err := f.assemble()
	if err != nil {
		return fmt.Errorf("seccomp filter: %w", err)
	}
	memory, err := os.Open("/proc/self/mem")
	if err != nil {
		return fmt.Errorf("sandbox audit: %w", err)
	}
	a := &auditor{memory: memory, rules: p.rules("/proc/self"), said: map[string]bool{}, log: log}
	_, _ = time.Now().Zone() // the log's first line reads the time zone's file
	if a.listener, err = install(code, unix.SECCOMP_FILTER_FLAG_NEW_LISTENER|unix.SECCOMP_FILTER_FLAG_TSYNC_ESRCH); err != nil {
		_ = memory.Close()
		return err
	}
	unix.CloseOnExec(a.listener)
	go a.routineAnswer()
	return nil
}

// routineAnswer runs as long as the process. It makes no call that asks.
func (a *auditor) routineAnswer() {
	runtime.LockOSThread()
	for {
		q, err := receive(a.listener)
		switch err {
		case nil:
		case unix.EINTR, unix.ENOENT: // the asker was interrupted
			continue
		default:
			a.log.Error("sandbox: audit ends", "error", err)
			return
		}
		if text := a.judge(&q); text != "" && !a.said[text] {
			if len(a.said) >= maxSaid {
				clear(a.said)
			}
			a.said[text] = true
			a.log.Warn("sandbox: strict would deny", "call", text)
		}
		_ = respond(a.listener, answer{ID: q.ID, Flags: goOn}) // an asker that is gone needs none
	}
}

// judge describes what strict would deny, "" if nothing.
func (a *auditor) judge(q *question) string {
	nr := uint32(q.Number)
	c, ok := paths[nr]
	if !ok {
		return fmt.Sprintf("system call %d(%#x, %#x, %#x)", nr, q.Args[0], q.Args[1], q.Args[2])
	}
	path := a.text(q.Args[c.path])
	if !filepath.IsAbs(path) {
		dir := "/proc/self/cwd"
		if c.path == 1 && int32(q.Args[0]) != unix.AT_FDCWD {
			dir = fmt.Sprintf("/proc/self/fd/%d", int32(q.Args[0]))
		}
		base, err := os.Readlink(dir)
		if err != nil {
			return ""
		}
		path = filepath.Join(base, path)
	}
	may, how := read, "read"
	if c.flags < 0 || q.Args[c.flags]&unix.O_ACCMODE != unix.O_RDONLY {
		may, how = write, "write"
		if c.flags < 0 || q.Args[c.flags]&unix.O_TRUNC != 0 {
			may |= truncate
		}
	}
	if c.flags >= 0 && q.Args[c.flags]&unix.O_PATH != 0 {
		return ""
	}
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		if may == read {
			return "" // fails anyhow
		}
		dir, err := filepath.EvalSymlinks(filepath.Dir(path))
		if err != nil {
			return ""
		}
		real, may, how = filepath.Join(dir, filepath.Base(path)), create, "create"
	}
	if allows(a.rules, real, may) {
		return ""
	}
	return fmt.Sprintf("open %s to %s", path, how)
}

// text reads a string of this process; the thread that owns it waits for the answer.
func (a *auditor) text(at uint64) string {
	b := make([]byte, 4096)
	n, _ := a.memory.ReadAt(b, int64(at)) // short where the mapping ends
	if i := bytes.IndexByte(b[:n], 0); i >= 0 {
		return string(b[:i])
	}
	return ""
}
