package sandbox

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"causeway/remote/sys"
)

// question is struct seccomp_notif (seccomp_unotify(2)).
type question struct {
	ID     uint64
	PID    uint32 // of the thread
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

// auditor answers a worker's questions. Its loop owns it, but for its assessor.
type auditor struct {
	listener int
	worker   int
	memory   int // of the worker
	end      int // a pidfd that tells the worker's end; -1: none

	asked    chan asked // to the goroutine that judges; closed by the loop
	lost     atomic.Uint64
	assessor assessor
}

// asked is a question, with what could only be read while its asker waited.
type asked struct {
	question
	path string // absolute, of a call that has one; "" if it could not be read
}

// waiting is how many answered questions may wait to be judged; more are counted, and lost.
const waiting = 4096

// serveAudit is an auditor's life. It returns when nobody is left who could ask.
func serveAudit(p *Policy, worker string, log *slog.Logger) error {
	// Who asks depends on it, whatever its process group is sent, and whether or not anybody reads
	// what it says.
	signal.Ignore(unix.SIGHUP, unix.SIGINT, unix.SIGTERM, unix.SIGPIPE)
	pid, err := strconv.Atoi(worker)
	if err != nil || pid <= 0 {
		return fmt.Errorf("%s=%q", auditorEnv, worker)
	}
	a := &auditor{worker: pid, memory: auditorMemory, asked: make(chan asked, waiting), assessor: assessor{
		rules: p.rules(fmt.Sprintf("/proc/%d", pid)), worker: pid, self: os.Getpid(), said: map[string]bool{}, met: map[ioctlRequest]uint64{}, log: log,
	}}
	// Of a driver that nobody knows every request is one that strict would deny.
	a.assessor.mayAsk, _ = p.mayAsk()
	unix.CloseOnExec(a.memory)
	if a.end, err = unix.PidfdOpen(pid, 0); err != nil {
		a.end = -1
	}
	if _, err := unix.Write(auditorSocket, []byte{1}); err != nil {
		return fmt.Errorf("worker: %w", err)
	}
	if a.listener, err = receiveListener(); err != nil || a.listener < 0 {
		return err
	}
	done := make(chan struct{})
	go a.routineJudge(done)
	err = a.answerAll()
	_ = unix.Close(a.listener) // who still asks goes on, with an error
	close(a.asked)
	<-done
	return err
}

// receiveListener takes the listener from the worker; -1 without an error: the worker ended.
func receiveListener() (int, error) {
	defer unix.Close(auditorSocket)
	b, oob := make([]byte, 1), make([]byte, sys.RightsRoom(1))
	for {
		n, oobn, _, _, err := unix.Recvmsg(auditorSocket, b, oob, unix.MSG_CMSG_CLOEXEC)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return -1, fmt.Errorf("worker: %w", err)
		case n == 0:
			return -1, nil
		}
		fds, err := sys.Rights(oob[:oobn])
		if err != nil {
			return -1, fmt.Errorf("worker: %w", err)
		}
		if len(fds) != 1 {
			sys.CloseAll(fds)
			return -1, fmt.Errorf("worker sent %d descriptors", len(fds))
		}
		return fds[0], nil
	}
}

// silence is how long nobody asks, once the worker has ended, before its auditor ends.
const silence = time.Second

// answerAll answers until nobody has the filter any more: kernels before 6.11 say so only when the
// worker has been waited for, which the reaper of a container may never do. It waits for nothing
// else.
func (a *auditor) answerAll() error {
	fds := []unix.PollFd{{Fd: int32(a.listener), Events: unix.POLLIN}, {Fd: int32(a.end), Events: unix.POLLIN}}
	patience := -1
	for {
		n, err := unix.Poll(fds, patience)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return fmt.Errorf("poll: %w", err)
		case fds[0].Revents&^unix.POLLIN != 0:
			return nil
		case n == 0:
			// Kernels may take a thread that executes a program for the end.
			if fds[1].Fd = int32(a.end); !readable(a.end) {
				patience = -1
				continue
			}
			return nil
		}
		if fds[1].Revents != 0 {
			fds[1].Fd, patience = -1, int(silence.Milliseconds())
		}
		if fds[0].Revents == 0 {
			continue
		}
		q, err := receive(a.listener)
		if errors.Is(err, unix.EINTR) || errors.Is(err, unix.ENOENT) { // the asker was interrupted
			continue
		}
		if err != nil {
			return fmt.Errorf("receive: %w", err)
		}
		one := asked{question: q}
		if c, ok := paths[uint32(q.Number)]; ok {
			one.path = a.path(&q, c)
		}
		_ = respond(a.listener, answer{ID: q.ID, Flags: goOn}) // an asker that is gone needs none
		select {
		case a.asked <- one:
		default:
			a.lost.Add(1)
		}
	}
}

func readable(fd int) bool {
	n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
	return err == nil && n == 1
}

// path is the file that an asker, who waits, names.
func (a *auditor) path(q *question, c pathCall) string {
	path := a.text(q.PID, q.Args[c.path])
	if path == "" || filepath.IsAbs(path) {
		return path
	}
	dir := fmt.Sprintf("/proc/%d/cwd", q.PID)
	if c.path == 1 && int32(q.Args[0]) != unix.AT_FDCWD {
		dir = fmt.Sprintf("/proc/%d/fd/%d", q.PID, int32(q.Args[0]))
	}
	base, err := os.Readlink(dir)
	if err != nil || !filepath.IsAbs(base) {
		// Without privileges the folders of a worker that is not dumpable are out of sight.
		return ""
	}
	return filepath.Join(base, path)
}

// text reads a string of a thread's.
func (a *auditor) text(thread uint32, at uint64) string {
	b := make([]byte, unix.PathMax)
	n := 0
	if a.ofWorker(thread) {
		if n, _ = unix.Pread(a.memory, b, int64(at)); n <= 0 {
			a.reopen()
			n, _ = unix.Pread(a.memory, b, int64(at)) // short where the mapping ends
		}
	} else if fd, err := openMemory(thread); err == nil { // a process that the worker made
		n, _ = unix.Pread(fd, b, int64(at))
		_ = unix.Close(fd)
	}
	if i := bytes.IndexByte(b[:max(n, 0)], 0); i >= 0 {
		return string(b[:i])
	}
	return ""
}

func (a *auditor) ofWorker(thread uint32) bool {
	return unix.Access(fmt.Sprintf("/proc/%d/task/%d", a.worker, thread), unix.F_OK) == nil
}

// reopen follows the worker to a new image: a descriptor of memory stays with the image that it was
// opened of.
func (a *auditor) reopen() {
	if fd, err := openMemory(uint32(a.worker)); err == nil {
		_ = unix.Close(a.memory)
		a.memory = fd
	}
}

func openMemory(pid uint32) (int, error) {
	return unix.Open(fmt.Sprintf("/proc/%d/mem", pid), unix.O_RDONLY|unix.O_CLOEXEC, 0)
}

// routineJudge judges what has been answered until the loop ends.
func (a *auditor) routineJudge(done chan<- struct{}) {
	defer close(done)
	defer a.assessor.sum()
	for q := range a.asked {
		a.assessor.take(&q)
		if n := a.lost.Swap(0); n > 0 {
			a.assessor.log.Warn("sandbox: audit could not follow", "calls not judged", n)
		}
	}
}
