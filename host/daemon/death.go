package daemon

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"strings"

	"causeway/host/daemon/process"
)

// deathNote is what the last line of a dead device process's log says; what stands before belongs
// to earlier ones.
const deathNote = "vGPU lost"

// why tells how a vGPU's device process came to its end: how it ended, whether the kernel killed it
// for its memory, and what it said last if that is a panic or an error.
func (d *Daemon) why(rec *record, how string) string {
	if scope, killed := process.KilledForMemory(rec.PID, rec.Started); killed {
		how += ": the kernel killed it for lack of memory (" + scope + ")"
	}
	if said := d.crash(rec); said != "" {
		how += "; it said: " + said
	}
	return how
}

// note writes why into the vGPU's own log, where its operator looks first.
func (d *Daemon) note(rec *record) {
	f, _, err := d.openLog(logName(&rec.Spec))
	if err != nil {
		d.log.Warn("the log of a lost vGPU does not say why", "vgpu", rec.Spec.Key(), "error", err)
		return
	}
	defer f.Close()
	slog.New(slog.NewTextHandler(f, nil)).Error(deathNote, "vgpu", rec.Spec.Key(), "pid", rec.PID, "why", rec.Why)
}

// mostCrash bounds what is read of a log: a trace of many goroutines stands behind its first line.
const mostCrash = 256 << 10

// crash is the first line of a panic, or the last error, in a process's log.
func (d *Daemon) crash(rec *record) string {
	var text bytes.Buffer
	name := logName(&rec.Spec)
	if rec.Journal && d.opt.Journal != nil {
		ctx, cancel := context.WithTimeout(d.ctx, askTimeout)
		defer cancel()
		// No words then.
		_ = d.opt.Journal.Read(ctx, &limitedWriter{&text, mostCrash}, identifier(name), 2000, rec.Started, false)
	} else if f, err := os.Open(d.logPath(name)); err == nil {
		defer f.Close()
		end := logEnd(f)
		n := min(end, mostCrash)
		_, _ = io.Copy(&text, io.NewSectionReader(f, end-n, n))
	}
	return lastCrash(text.String())
}

// lastCrash finds the first line of a panic of Go's runtime or of a fault in C, or else causeway's
// last word, behind the last deathNote.
func lastCrash(log string) string {
	if i := strings.LastIndex(log, `msg="`+deathNote+`"`); i >= 0 {
		log = log[i:]
	}
	last := ""
	for line := range strings.Lines(log) {
		line = strings.TrimRight(line, "\r\n")
		for _, begin := range []string{"panic: ", "fatal error: ", "runtime: out of memory", "SIGSEGV: ", "SIGBUS: ", "SIGABRT: ", "SIGFPE: ", "SIGILL: ", "SIGTRAP: "} {
			if strings.HasPrefix(line, begin) {
				return shortened(line)
			}
		}
		if said, ok := strings.CutPrefix(line, "causeway: "); ok {
			last = said
		}
	}
	return shortened(last)
}

func shortened(s string) string {
	const most = 200
	if len(s) > most {
		return strings.ToValidUTF8(s[:most], "") + "..."
	}
	return s
}

// limitedWriter takes so many bytes, and then fails, which ends whoever writes.
type limitedWriter struct {
	w    io.Writer
	left int
}

var errFull = errors.New("more than is wanted")

func (l *limitedWriter) Write(b []byte) (int, error) {
	n, err := l.w.Write(b[:min(len(b), l.left)])
	l.left -= n
	if err == nil && n < len(b) {
		err = errFull
	}
	return n, err
}
