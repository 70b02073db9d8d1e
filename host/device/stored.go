package device

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"causeway/host/device/sealed"
	"causeway/host/worker/bulk"
	"causeway/host/worker/link"
	"causeway/host/worker/precopy"
)

// ErrNoDisk says that a folder cannot take suspended sessions.
var ErrNoDisk = errors.New("sessions cannot be kept there")

// stored is a session that is suspended: files without names, in memory, or one in a folder. What
// lies in a folder is sealed by a key that is nowhere else: nobody can read the programs' memory
// there, or change it unnoticed, and it is gone with this process.
type stored struct {
	f      *os.File
	memory bulk.Files  // of the session; none: it is in f
	key    *sealed.Key // nil: it lies in memory
	folder string
	size   uint64
	gpu    uint64 // bytes of the GPU's memory that it had, and wants again
	away   bool   // for others' sake: it counts for the limit
}

// perFile is how much memory another file is worth a descriptor for.
const perFile = 128 << 20

// newStored makes room for a session in a folder, or without one in memory. need is the most that
// it can take, as far as is known.
func newStored(folder string, need uint64) (*stored, error) {
	if folder == "" {
		f, err := memoryFile("causeway-session")
		if err != nil {
			return nil, err
		}
		s := &stored{f: f}
		for range max(min(need/perFile, uint64(bulk.Threads())), 1) {
			if f, err = memoryFile("causeway-session-memory"); err != nil {
				s.close()
				return nil, err
			}
			s.memory = append(s.memory, f)
		}
		return s, nil
	}
	if err := diskHolds(folder, need); err != nil {
		return nil, err
	}
	f, err := nameless(folder)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNoDisk, err)
	}
	key, err := sealed.NewKey()
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return &stored{f: f, key: key, folder: folder}, nil
}

// memoryFile is a file in the host's memory.
func memoryFile(name string) (*os.File, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("memory for the session: %w", err)
	}
	return os.NewFile(uintptr(fd), name), nil
}

// diskMargin is what stays free on a disk.
const diskMargin = 64 << 20

// diskHolds says why a folder has no room for so many bytes.
func diskHolds(folder string, need uint64) error {
	if !filepath.IsAbs(folder) {
		return fmt.Errorf("%w: %q is no absolute path", ErrNoDisk, folder)
	}
	var st unix.Statfs_t
	if err := unix.Statfs(folder, &st); err != nil {
		return fmt.Errorf("%w: %w", ErrNoDisk, &os.PathError{Op: "statfs", Path: folder, Err: err})
	}
	free := st.Bavail * uint64(st.Bsize)
	if need = sealed.Size(need) + diskMargin; free < need {
		return fmt.Errorf("%w: the file system of %s has %d bytes free, and %d may be needed: make room, or name another folder", ErrNoDisk, folder, free, need)
	}
	return nil
}

// nameless is a new file in a folder that only this process can open.
func nameless(folder string) (*os.File, error) {
	fd, err := unix.Open(folder, unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err == nil {
		return os.NewFile(uintptr(fd), filepath.Join(folder, "session")), nil
	}
	if !errors.Is(err, unix.EOPNOTSUPP) && !errors.Is(err, unix.EISDIR) {
		// A file system that has none.
		return nil, &os.PathError{Op: "open", Path: folder, Err: err}
	}
	f, err := os.CreateTemp(folder, ".causeway-session-*") // mode 0600
	if err != nil {
		return nil, err
	}
	if err := os.Remove(f.Name()); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// fill has write write the session.
func (s *stored) fill(write func(io.Writer) error) error {
	if s.key == nil {
		if err := write(s.f); err != nil {
			return err
		}
		return s.measure()
	}
	w := s.key.NewWriter(s.f)
	if err := errors.Join(write(w), w.Close()); err != nil {
		return err
	}
	if err := s.f.Sync(); err != nil { // a disk that is full may say so as late as now
		return err
	}
	// Which is what it was written for; best effort.
	_ = unix.Fadvise(int(s.f.Fd()), 0, 0, unix.FADV_DONTNEED)
	return s.measure()
}

// measure adds up what is there: where memory is zeros, its file has holes.
func (s *stored) measure() error {
	for _, f := range append(bulk.Files{s.f}, s.memory...) {
		var st unix.Stat_t
		if err := unix.Fstat(int(f.Fd()), &st); err != nil {
			return err
		}
		s.size += min(uint64(st.Size), uint64(st.Blocks)*512)
	}
	return nil
}

// read reads the session from its beginning, as it goes to another host: its memory comes last.
func (s *stored) read() io.ReadCloser {
	in, out := io.Pipe()
	go func() {
		_, err := io.Copy(out, s.stream())
		if err == nil && len(s.memory) > 0 {
			err = s.frame(out)
		}
		_ = out.CloseWithError(err)
	}()
	return in
}

// frame writes memory that was laid aside as a worker would have.
func (s *stored) frame(w io.Writer) error {
	size, err := s.memory.Size()
	if err != nil || size == 0 {
		return err
	}
	list, err := bulk.Index(s.memory, size)
	if err != nil {
		return err
	}
	b := bufio.NewWriterSize(w, 256<<10)
	_, err = precopy.NewSender().Last(context.Background(), func(fn func(addr, size uint64, r io.Reader) error) error {
		return bulk.Export(s.memory, list, fn)
	}, b)
	return errors.Join(err, b.Flush())
}

// stream reads what the worker wrote, from its beginning.
func (s *stored) stream() io.Reader {
	r := io.NewSectionReader(s.f, 0, math.MaxInt64)
	if s.key == nil {
		return r
	}
	return s.key.NewReader(r)
}

// passed is files as messages have them.
func passed(files bulk.Files) (list []link.File) {
	for _, f := range files {
		list = append(list, link.FileOf(int(f.Fd())))
	}
	return list
}

// close gives it up.
func (s *stored) close() {
	if s != nil {
		_ = s.f.Close()
		_ = s.memory.Close()
	}
}
