package systemd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Journal takes lines of processes, and gives them back. The zero value is the system's.
type Journal struct {
	Socket string   // of streams; empty: journald's
	Reader []string // the program that reads; empty: journalctl
}

const defaultSocket = "/run/systemd/journal/stdout"

// Open connects a stream, each line of which becomes an entry under an identifier. journald reads a
// header of seven lines first: identifier, unit, priority, whether lines begin with a priority, and
// whether they go to syslog, kmsg and the console too (sd_journal_stream_fd(3)). The file is
// blocking, as a process expects of its stderr.
func (j *Journal) Open(identifier string) (*os.File, error) {
	path := j.Socket
	if path == "" {
		path = defaultSocket
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("journal: %w", err)
	}
	f := os.NewFile(uintptr(fd), "journal")
	if err := unix.Connect(fd, &unix.SockaddrUnix{Name: path}); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("journal: connect to %s: %w", path, err)
	}
	header := strings.Join([]string{identifier, "", "6", "0", "0", "0", "0", ""}, "\n")
	_, err = f.WriteString(header)
	if err := errors.Join(err, unix.Shutdown(fd, unix.SHUT_RD)); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("journal: %w", err)
	}
	return f, nil
}

// Read writes an identifier's entries to w: the last ones (negative: all) since a time (zero:
// ever), and with follow what comes until ctx ends.
func (j *Journal) Read(ctx context.Context, w io.Writer, identifier string, lines int, since time.Time, follow bool) error {
	argv := j.Reader
	if len(argv) == 0 {
		argv = []string{"journalctl"}
	}
	args := append(argv[1:len(argv):len(argv)], "--quiet", "--no-pager", "--output=cat", "--identifier="+identifier)
	if lines >= 0 {
		args = append(args, "--lines="+strconv.Itoa(lines))
	} else {
		args = append(args, "--lines=all")
	}
	if !since.IsZero() {
		args = append(args, "--since=@"+strconv.FormatInt(since.Unix(), 10))
	}
	if follow {
		args = append(args, "--follow")
	}
	cmd := exec.CommandContext(ctx, argv[0], args...)
	cmd.WaitDelay = time.Second
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = w, &said
	err := cmd.Run()
	if err == nil || ctx.Err() != nil {
		return nil
	}
	return fmt.Errorf("read the journal: %w: %s", err, strings.TrimSpace(said.String()))
}
