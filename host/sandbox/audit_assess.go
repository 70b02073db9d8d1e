package sandbox

import (
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// assessor writes down what strict would deny, once. One goroutine of an auditor owns it.
type assessor struct {
	rules        []rule
	worker, self int // processes
	said         map[string]bool
	mayAsk       []ioctlRequest          // what strict lets through
	met          map[ioctlRequest]uint64 // requests of ioctl(2), and how often
	log          *slog.Logger
}

// maxSaid bounds what an assessor remembers; then it repeats itself.
const maxSaid = 4096

func (j *assessor) take(q *asked) {
	text := j.verdict(q)
	if text == "" || j.said[text] {
		return
	}
	if len(j.said) >= maxSaid {
		clear(j.said)
	}
	j.said[text] = true
	j.log.Warn("sandbox: strict would deny", "call", text)
}

// verdict describes what strict would deny, "" if nothing. The call has gone on meanwhile, and may
// have made or removed the file.
func (j *assessor) verdict(q *asked) string {
	nr := uint32(q.Number)
	if nr == unix.SYS_IOCTL {
		return j.ioctl(uint32(q.Args[1]))
	}
	c, ok := paths[nr]
	if !ok {
		return fmt.Sprintf("system call %d(%#x, %#x, %#x)", nr, q.Args[0], q.Args[1], q.Args[2])
	}
	if q.path == "" {
		return ""
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
	real, err := j.resolve(q.path, q.PID)
	if err != nil {
		if may == read {
			return "" // fails anyhow
		}
		dir, err := j.resolve(filepath.Dir(q.path), q.PID)
		if err != nil {
			return ""
		}
		real, may, how = filepath.Join(dir, filepath.Base(q.path)), create, "create"
	}
	if allows(j.rules, real, may) {
		return ""
	}
	return fmt.Sprintf("open %s to %s", q.path, how)
}

// mostMet bounds how many different requests are counted. A driver makes some dozens.
const mostMet = 4096

// ioctl counts a request and says whether strict would deny it.
func (j *assessor) ioctl(request uint32) string {
	r := requestOf(request)
	if _, ok := j.met[r]; ok || len(j.met) < mostMet {
		j.met[r]++
	}
	if lets(j.mayAsk, request) && !slices.Contains(terminalIoctls, request) {
		return ""
	}
	return fmt.Sprintf("ioctl %s (%#x)", r, request)
}

// sum writes down which requests were made, for a list of them: type, number, size and how often.
func (j *assessor) sum() {
	if len(j.met) == 0 {
		return
	}
	var list []string
	for r, n := range j.met {
		list = append(list, fmt.Sprintf("%s %d", r, n))
	}
	slices.Sort(list)
	j.log.Warn("sandbox: ioctls", "worker", j.worker, "met", strings.Join(list, ", "))
}

// resolve follows symbolic links as the asker would: what it is itself in /proc is another process
// here.
func (j *assessor) resolve(path string, asker uint32) (string, error) {
	path = filepath.Clean(path)
	thread := fmt.Sprintf("/proc/%d/task/%d", j.worker, asker)
	if rest, ok := within(path, "/proc/thread-self"); ok {
		path = thread + rest
	} else if rest, ok := within(path, "/proc/self"); ok {
		path = fmt.Sprintf("/proc/%d%s", j.worker, rest)
	}
	real, err := filepath.EvalSymlinks(path)
	if rest, ok := within(real, fmt.Sprintf("/proc/%d", j.self)); ok { // by a link to /proc/self
		real = fmt.Sprintf("/proc/%d%s", j.worker, rest)
	}
	return real, err
}

// within cuts a folder off a path that is it or below it.
func within(path, folder string) (rest string, ok bool) {
	rest, ok = strings.CutPrefix(path, folder)
	return rest, ok && (rest == "" || rest[0] == '/')
}
