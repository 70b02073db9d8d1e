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
	"time"
)

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

// Log writes a vGPU's log to w: its last lines (negative: all), and with follow what comes until ctx ends.
func (d *Daemon) Log(ctx context.Context, w io.Writer, key string, lines int, follow bool) error {
	v := d.find(key)
	if v == nil {
		return unknown(key)
	}
	rec, _ := d.copyOf(v)
	f, err := os.Open(d.logPath(&rec.Spec))
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
