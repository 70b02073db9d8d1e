package main

import (
	"bytes"
	"context"
	"io"
	"os"
	"time"
)

// pollLog is how often a log that is followed is looked at.
const pollLog = 250 * time.Millisecond

// seekLines moves a file to n lines before its end; n negative: to its beginning.
func seekLines(f *os.File, n int) error {
	if n < 0 {
		return nil
	}
	end, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return err
	}
	buf := make([]byte, 64<<10)
	n++ // the newline that ends the line before
	for at := end; at > 0; {
		piece := buf[:min(at, int64(len(buf)))]
		at -= int64(len(piece))
		if _, err := f.ReadAt(piece, at); err != nil {
			return err
		}
		if at+int64(len(piece)) == end && piece[len(piece)-1] != '\n' {
			n-- // the last line has not ended
		}
		for i := bytes.LastIndexByte(piece, '\n'); i >= 0; i = bytes.LastIndexByte(piece[:i], '\n') {
			if n--; n <= 0 {
				_, err := f.Seek(at+int64(i)+1, io.SeekStart)
				return err
			}
		}
	}
	_, err = f.Seek(0, io.SeekStart)
	return err
}

// follow copies the rest of a file and, if on is set, what is added to it until ctx ends. A file
// that became shorter is read anew.
func follow(ctx context.Context, w io.Writer, f *os.File, on bool) error {
	for {
		if _, err := io.Copy(w, f); err != nil || !on {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pollLog):
		}
		at, err := f.Seek(0, io.SeekCurrent)
		if err != nil {
			return err
		}
		if st, err := f.Stat(); err == nil && st.Size() < at {
			if _, err := f.Seek(0, io.SeekStart); err != nil {
				return err
			}
		}
	}
}
