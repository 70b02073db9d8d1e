package process

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Errors of Adopt.
var (
	ErrGone  = errors.New("the process has ended")
	ErrOther = errors.New("another process has its id by now")
)

// Command is what Start starts.
type Command struct {
	Path string
	Args []string // without the program's name
	Env  []string // all of it
	// Output gets stderr; it stays the caller's.
	Output *os.File
	// Held has it wait at AwaitBegin until Begin lets it begin. It ends instead if this process
	// ends before, or End ends it.
	Held bool
}

// Process is a process of this host, a child of ours or not. Its methods may be called from any
// goroutine.
type Process struct {
	pid   int
	start uint64
	child *os.Process // nil: not ours
	fd    *os.File    // pidfd
	done  chan struct{}
	end   string   // why it ended; valid once done is closed
	hold  *os.File // to a process that waits for Begin; nil: none does
}

// Start starts a command in a session and process group of its own, with / as its folder, no input
// and nobody to read its output. It has no descriptor of ours but Output, and what it is held by.
func Start(c Command) (*Process, error) {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer null.Close()
	files, hold := []*os.File{null, null, c.Output}, (*os.File)(nil)
	if c.Held {
		var waits *os.File
		if waits, hold, err = os.Pipe(); err != nil {
			return nil, err
		}
		defer waits.Close()
		files = append(files, waits)
	}
	fd := -1
	child, err := os.StartProcess(c.Path, append([]string{c.Path}, c.Args...), &os.ProcAttr{
		Dir: "/", Env: c.Env, Files: files,
		Sys: &syscall.SysProcAttr{Setsid: true, PidFD: &fd},
	})
	if err != nil {
		_ = hold.Close()
		return nil, err
	}
	if fd < 0 {
		fd, err = unix.PidfdOpen(child.Pid, 0) // not reaped yet: it is the child
	}
	var p *Process
	if err == nil {
		p, err = newProcess(child.Pid, fd)
	}
	if err != nil {
		_ = child.Kill()
		_, _ = child.Wait()
		_ = hold.Close()
		return nil, fmt.Errorf("watch process %d: %w", child.Pid, err)
	}
	p.child, p.hold = child, hold
	go p.routineWatch()
	return p, nil
}

// Adopt finds a process again that was started earlier. start 0: whichever has the id now.
func Adopt(pid int, start uint64) (*Process, error) {
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) || errors.Is(err, unix.EINVAL) {
		return nil, fmt.Errorf("process %d: %w", pid, ErrGone)
	}
	if err != nil {
		return nil, fmt.Errorf("watch process %d: %w", pid, err)
	}
	// The pidfd is held, so what /proc shows from here on is this process or nothing.
	p, err := newProcess(pid, fd)
	if err != nil {
		return nil, err
	}
	if _, state, err := stat(pid); err != nil || state == 'Z' {
		_ = p.fd.Close()
		return nil, fmt.Errorf("process %d: %w", pid, ErrGone)
	}
	if start != 0 && p.start != start {
		_ = p.fd.Close()
		return nil, fmt.Errorf("process %d: %w", pid, ErrOther)
	}
	go p.routineWatch()
	return p, nil
}

// newProcess takes the pidfd.
func newProcess(pid, fd int) (*Process, error) {
	if err := unix.SetNonblock(fd, true); err != nil { // so that the runtime polls it
		_ = unix.Close(fd)
		return nil, err
	}
	p := &Process{pid: pid, fd: os.NewFile(uintptr(fd), "pidfd"), done: make(chan struct{})}
	var err error
	if p.start, _, err = stat(pid); err != nil {
		_ = p.fd.Close()
		return nil, fmt.Errorf("process %d: %w", pid, ErrGone)
	}
	return p, nil
}

// stat reads a process's start time, in clock ticks since the host booted, and its state.
func stat(pid int) (start uint64, state byte, err error) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0, 0, err
	}
	// The name stands in parentheses and may hold any byte, also these.
	s := string(b)
	f := strings.Fields(s[strings.LastIndexByte(s, ')')+1:])
	if len(f) < 20 {
		return 0, 0, fmt.Errorf("/proc/%d/stat: %d fields", pid, len(f))
	}
	start, err = strconv.ParseUint(f[19], 10, 64)
	return start, f[0][0], err
}

// routineWatch waits for the end.
func (p *Process) routineWatch() {
	defer close(p.done)
	p.end = "it was started by an earlier causewayd, so its exit status is not known"
	if rc, err := p.fd.SyscallConn(); err == nil {
		_ = rc.Read(func(fd uintptr) bool { return ended(int(fd)) })
	}
	if p.child == nil {
		if ws, ok := p.status(); ok {
			p.end = ending(ws)
		}
		return
	}
	st, err := p.child.Wait()
	if err != nil {
		return
	}
	if ws, ok := st.Sys().(syscall.WaitStatus); ok {
		p.end = ending(ws)
	}
}

func ending(ws syscall.WaitStatus) string {
	if ws.Signaled() {
		return fmt.Sprintf("signal %d (%v) ended it", int(ws.Signal()), ws.Signal())
	}
	return fmt.Sprintf("it ended with status %d", ws.ExitStatus())
}

// reaped bounds how long a process that has ended may wait for its parent, which is not this one.
const reaped = 300 * time.Millisecond

// status asks the kernel how a process that is no child ended: Linux 6.15 and newer tell once its
// parent has waited for it.
func (p *Process) status() (ws syscall.WaitStatus, ok bool) {
	for begun := time.Now(); time.Since(begun) < reaped; time.Sleep(5 * time.Millisecond) {
		info := unix.PidfdInfo{Mask: unix.PIDFD_INFO_EXIT}
		err := p.control(func(fd int) error { return unix.IoctlPidfdInfo(fd, &info) })
		switch {
		case err == nil && info.Mask&unix.PIDFD_INFO_EXIT != 0:
			return syscall.WaitStatus(info.Exit_code), true
		case err != nil && !errors.Is(err, unix.ESRCH): // an older kernel
			return 0, false
		}
	}
	return 0, false
}

// control calls f with the pidfd.
func (p *Process) control(f func(fd int) error) error {
	rc, err := p.fd.SyscallConn()
	if err != nil {
		return err
	}
	var result error
	if err := rc.Control(func(fd uintptr) { result = f(int(fd)) }); err != nil {
		return err
	}
	return result
}

// ended reports whether a pidfd is readable: its process is a zombie or gone.
func ended(fd int) bool {
	fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	for {
		n, err := unix.Poll(fds, 0)
		if !errors.Is(err, unix.EINTR) {
			return err != nil || n > 0
		}
	}
}

// PID is the process's id.
func (p *Process) PID() int { return p.pid }

// StartTime is when the process started, in clock ticks since the host booted.
func (p *Process) StartTime() uint64 { return p.start }

// Done is closed when the process has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Reason says how the process ended, once Done is closed.
func (p *Process) Reason() string {
	<-p.done
	return p.end
}

// Alive reports whether the process runs.
func (p *Process) Alive() bool {
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// Signal sends a signal; none to one that has ended.
func (p *Process) Signal(s syscall.Signal) error {
	err := p.control(func(fd int) error { return unix.PidfdSendSignal(fd, s, nil, 0) })
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	return err
}

// killedTime is how long, beyond grace, a process that was killed may take to be gone on a crowded
// host.
const killedTime = 20 * time.Second

// End has the process end: SIGTERM, and SIGKILL when it is still there after grace. It waits for
// the end, or for ctx.
func (p *Process) End(ctx context.Context, grace time.Duration) error {
	_ = p.hold.Close()
	if err := p.Signal(syscall.SIGTERM); err != nil {
		return fmt.Errorf("end process %d: %w", p.pid, err)
	}
	t := time.NewTimer(grace)
	defer t.Stop()
	select {
	case <-p.done:
		return nil
	case <-t.C:
	case <-ctx.Done():
	}
	if err := p.Signal(syscall.SIGKILL); err != nil {
		return fmt.Errorf("end process %d: %w", p.pid, err)
	}
	select {
	case <-p.done:
		return nil
	case <-time.After(grace + killedTime):
		return fmt.Errorf("process %d does not end although it was killed: it waits for the kernel, see `cat /proc/%[1]d/stack`", p.pid)
	}
}

// Close forgets the process, which goes on if it has begun.
func (p *Process) Close() error {
	_ = p.hold.Close()
	return p.fd.Close()
}

// CloseOnExec keeps what this process inherited from its starter out of those that it starts: all
// descriptors but the first three.
func CloseOnExec() error {
	return unix.CloseRange(3, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC)
}
