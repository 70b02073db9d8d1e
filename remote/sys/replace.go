package sys

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// unfinished begins the names of files that Replace has not finished. They are hidden, and no
	// folder of ours reads names like these.
	unfinished = ".causeway-new-"
	// unfinishedFor is how old one is whose writer has died: a write takes moments.
	unfinishedFor = 10 * time.Minute
)

// Replace writes a file as a whole or not at all: whoever reads name finds what was there before,
// or b, after a crash of the machine, too. The file has the mode, whatever the umask, and this
// process's user. A link of that name is replaced, not followed. What a process that died in here
// left in the folder goes with a later call.
func Replace(name string, b []byte, mode fs.FileMode) error {
	dir := filepath.Dir(name)
	if err := sweep(dir, time.Now().Add(-unfinishedFor)); err != nil {
		return err
	}
	f, err := os.CreateTemp(dir, unfinished) // made with mode 0600, and never one that is there
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	if err == nil {
		err = f.Chmod(mode)
	}
	if err == nil {
		// Else the new name may outlive a crash of the machine, and the bytes may not.
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), name)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("replace %s: %w", name, err), os.Remove(f.Name()))
	}
	return syncFolder(dir)
}

// sweep removes what calls that were cut short before a time left in a folder.
func sweep(dir string, before time.Time) error {
	list, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range list {
		if !strings.HasPrefix(e.Name(), unfinished) || !e.Type().IsRegular() {
			continue
		}
		if info, err := e.Info(); err != nil || info.ModTime().After(before) {
			continue // another call's, or gone meanwhile
		}
		if err := os.Remove(filepath.Join(dir, e.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// syncFolder has a folder's names outlive a crash of the machine.
func syncFolder(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// ErrNotRegular is that of a file which cannot be one that Replace wrote: a link, a folder, a pipe,
// or of more bytes than are expected.
var ErrNotRegular = errors.New("no regular file of that size")

// OpenRegular opens a file that others might have put there, for reading: what it is, and that it
// has at most so many bytes, holds for what was opened.
func OpenRegular(name string, most int64) (*os.File, *unix.Stat_t, error) {
	f, err := os.OpenFile(name, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if errors.Is(err, unix.ELOOP) {
		return nil, nil, fmt.Errorf("%s: %w", name, ErrNotRegular)
	}
	if err != nil {
		return nil, nil, err
	}
	var st unix.Stat_t
	if err = unix.Fstat(int(f.Fd()), &st); err == nil && (st.Mode&unix.S_IFMT != unix.S_IFREG || st.Size > most) {
		err = ErrNotRegular
	}
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("%s: %w", name, err), f.Close())
	}
	return f, &st, nil
}

// ReadRegular reads such a file, which may grow meanwhile, but not beyond most.
func ReadRegular(name string, most int64) ([]byte, error) {
	f, _, err := OpenRegular(name, most)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, most+1))
	if err == nil && int64(len(b)) > most {
		return nil, fmt.Errorf("%s: %w", name, ErrNotRegular)
	}
	return b, err
}
