package daemon

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"causeway/host/api"
	"causeway/host/daemon/config"
)

// logName is a path: with a dash between, VM a-b's c and a's b-c would share a log.
func logName(s *api.Spec) string { return s.VM + "/" + s.Name }

// identifier is under which the journal has a log.
func identifier(name string) string { return "causeway-" + name }

func (d *Daemon) logPath(name string) string {
	return filepath.Join(d.opt.Config.LogDir, name+".log")
}

// openLog opens where a process's stderr goes.
func (d *Daemon) openLog(name string) (f *os.File, journal bool, err error) {
	if d.opt.Journal != nil && d.config().Devices.Log != config.LogFile {
		f, err := d.opt.Journal.Open(identifier(name))
		return f, true, err
	}
	path := d.logPath(name)
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		return nil, false, fmt.Errorf("log: %w", err)
	}
	f, err = os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o640)
	if err != nil {
		return nil, false, fmt.Errorf("log: %w", err)
	}
	return f, false, nil
}

func logEnd(f *os.File) int64 {
	if info, err := f.Stat(); err == nil {
		return info.Size()
	}
	return 0
}

// lastWords is the last line of a log, of those after an offset, or in the journal a time.
func (d *Daemon) lastWords(name string, from int64, begun time.Time, journal bool) string {
	var text bytes.Buffer
	if journal {
		ctx, cancel := context.WithTimeout(d.ctx, askTimeout)
		defer cancel()
		_ = d.opt.Journal.Read(ctx, &text, identifier(name), 1, begun, false) // no words then
	} else if f, err := os.Open(d.logPath(name)); err == nil {
		defer f.Close()
		const most = 8 << 10
		end := logEnd(f)
		n := min(max(end-from, 0), most)
		_, _ = io.Copy(&text, io.NewSectionReader(f, end-n, n))
	}
	lines := strings.Split(strings.TrimSpace(text.String()), "\n")
	return strings.TrimPrefix(lines[len(lines)-1], "causeway: ")
}

// rotateLogs keeps log files below their size: a long one is copied to .1 and emptied, since its
// writer does not open it again. What is written in between is lost.
func (d *Daemon) rotateLogs() {
	most := int64(d.config().Devices.LogSize)
	files, _ := filepath.Glob(filepath.Join(d.opt.Config.LogDir, "*.log")) // both are well-formed
	ofVMs, _ := filepath.Glob(filepath.Join(d.opt.Config.LogDir, "*", "*.log"))
	for _, name := range append(files, ofVMs...) {
		if info, err := os.Lstat(name); err != nil || !info.Mode().IsRegular() || info.Size() <= most {
			continue
		}
		if err := rotate(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			d.log.Warn("a log could not be rotated: it is emptied", "log", name, "error", err)
			_ = os.Truncate(name, 0)
		}
	}
}

// rotate copies a log to .1 and empties it.
func rotate(name string) error {
	in, err := os.Open(name)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(name+".1", os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o640)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	if err = errors.Join(err, out.Close()); err != nil {
		_ = os.Remove(out.Name())
		return err
	}
	return os.Truncate(name, 0)
}

// followPause is how often a log that is followed is looked at.
const followPause = 200 * time.Millisecond

// Log writes a vGPU's log to w: its last lines (negative: all), and with follow what comes until
// ctx ends.
func (d *Daemon) Log(ctx context.Context, w io.Writer, key string, lines int, follow bool) error {
	v := d.find(key)
	if v == nil {
		return unknown(key)
	}
	rec, _ := d.copyOf(v)
	if rec.Journal && d.opt.Journal != nil {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		defer context.AfterFunc(d.closing, cancel)()
		return d.opt.Journal.Read(ctx, w, identifier(logName(&rec.Spec)), lines, time.Time{}, follow)
	}
	f, err := os.Open(d.logPath(logName(&rec.Spec)))
	if errors.Is(err, fs.ErrNotExist) {
		return refuse(http.StatusNotFound, "", "%s has no log", key)
	}
	if err != nil {
		return err
	}
	defer f.Close()
	at := int64(0)
	if lines >= 0 {
		if at, err = lastLines(f, lines); err != nil {
			return err
		}
	}
	for {
		info, err := f.Stat()
		if err != nil {
			return err
		}
		if info.Size() < at { // rotated
			at = 0
		}
		n, err := io.Copy(w, io.NewSectionReader(f, at, info.Size()-at))
		if err != nil {
			return fmt.Errorf("log of %s: %w", key, err)
		}
		at += n
		if !follow {
			return nil
		}
		t := time.NewTimer(followPause)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return nil
		case <-d.closing.Done():
			t.Stop()
			return nil
		}
	}
}

// lastLines finds where the last n lines of a file begin.
func lastLines(f *os.File, n int) (int64, error) {
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	end := info.Size()
	if n == 0 {
		return end, nil
	}
	const step = 32 << 10
	buf := make([]byte, step)
	for at, seen := end, 0; at > 0; {
		part := buf[:min(step, at)]
		at -= int64(len(part))
		if _, err := f.ReadAt(part, at); err != nil && !errors.Is(err, io.EOF) {
			return 0, err
		}
		for i := bytes.LastIndexByte(part, '\n'); i >= 0; i = bytes.LastIndexByte(part[:i], '\n') {
			if at+int64(i) == end-1 {
				continue // the end of the last line
			}
			if seen++; seen == n {
				return at + int64(i) + 1, nil
			}
		}
	}
	return 0, nil
}
