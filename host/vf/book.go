package vf

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"
	"unicode"

	"golang.org/x/sys/unix"

	"causeway/remote/sys"
)

// Use is what a function was given to.
type Use string

// Uses.
const (
	ForVM    Use = "vm"
	ForRelay Use = "relay"
)

// Assignment is the record of a function that somebody has.
type Assignment struct {
	Address Address `json:"address"`
	PF      Address `json:"pf"`
	Index   int     `json:"index"`
	Use     Use     `json:"use"`
	VM      string  `json:"vm,omitempty"`
	// Live and Config say where the VM was given it through libvirt: while it runs, in its
	// definition. Neither: by hand, from XML that was printed.
	Live   bool      `json:"live,omitempty"`
	Config bool      `json:"config,omitempty"`
	Since  time.Time `json:"since"`
	// It is being given or taken back at this moment, or who did so has died.
	Unfinished bool     `json:"unfinished,omitempty"`
	Set        Settings `json:"set"`
	Back       Settings `json:"back"` // what puts Set back
}

const (
	bookFormat = 1
	maxBook    = 1 << 20
	maxName    = 256
)

// book is the content of the file.
type book struct {
	Format      int          `json:"format"`
	Assignments []Assignment `json:"assignments"`
}

// parseBook reads a book. What it returns has been checked: values are in range, no function occurs
// twice.
func parseBook(b []byte) (*book, error) {
	k := &book{}
	if len(b) > maxBook {
		return nil, fmt.Errorf("%w: %d bytes, more than %d", ErrRecord, len(b), maxBook)
	}
	if err := json.Unmarshal(b, k); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrRecord, err)
	}
	if k.Format != bookFormat {
		return nil, fmt.Errorf("%w: format %d, this causeway knows %d", ErrRecord, k.Format, bookFormat)
	}
	seen := map[Address]bool{}
	for i := range k.Assignments {
		a := &k.Assignments[i]
		if err := a.check(); err != nil {
			return nil, fmt.Errorf("%w: assignment %d: %w", ErrRecord, i, err)
		}
		if seen[a.Address] {
			return nil, fmt.Errorf("%w: %s occurs twice", ErrRecord, a.Address)
		}
		seen[a.Address] = true
	}
	return k, nil
}

func (a *Assignment) check() error {
	for _, to := range []*Address{&a.Address, &a.PF} {
		p, err := ParseAddress(string(*to))
		if err != nil {
			return err
		}
		*to = p
	}
	switch {
	case a.Index < 0 || a.Index >= mostFunctions:
		return fmt.Errorf("%w: function %d", ErrValue, a.Index)
	case a.Use != ForVM && a.Use != ForRelay:
		return fmt.Errorf("%w: use %q", ErrValue, a.Use)
	case (a.Use == ForVM) != (a.VM != ""):
		return fmt.Errorf("%w: VM %q of a function for %s", ErrValue, a.VM, a.Use)
	}
	if a.Use == ForVM {
		if err := checkVM(a.VM); err != nil {
			return err
		}
	}
	return errors.Join(a.Set.Check(), a.Back.Check())
}

func checkVM(name string) error {
	if name == "" || len(name) > maxName || slices.ContainsFunc([]rune(name), func(r rune) bool { return !unicode.IsPrint(r) || r == '/' }) {
		return fmt.Errorf("%w: %q names no VM", ErrValue, name)
	}
	return nil
}

func (k *book) find(a Address) *Assignment {
	for i := range k.Assignments {
		if k.Assignments[i].Address == a {
			return &k.Assignments[i]
		}
	}
	return nil
}

func (k *book) remove(a Address) {
	k.Assignments = slices.DeleteFunc(k.Assignments, func(one Assignment) bool { return one.Address == a })
}

// Book keeps records in a run directory.
type Book struct{ Run string }

func (b Book) path() string { return filepath.Join(b.Run, "vfs.json") }

// read is the book at this moment; no file is an empty book.
func (b Book) read() (*book, error) {
	text, err := sys.ReadRegular(b.path(), maxBook)
	if errors.Is(err, os.ErrNotExist) {
		return &book{Format: bookFormat}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrRecord, err)
	}
	k, err := parseBook(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w: move it away to begin anew; functions that it names keep their settings then", b.path(), err)
	}
	return k, nil
}

// write replaces the book as a whole, or not at all. An empty one is no file.
func (b Book) write(k *book) error {
	if len(k.Assignments) == 0 {
		if err := os.Remove(b.path()); err != nil && !errors.Is(err, os.ErrNotExist) {
			return explain("remove "+b.path(), err)
		}
		return nil
	}
	text, err := json.MarshalIndent(k, "", "  ")
	if err != nil {
		return err
	}
	if err := sys.Replace(b.path(), append(text, '\n'), 0o644); err != nil {
		return explain("write "+b.path(), err)
	}
	return nil
}

// open reads the book for who changes it: until unlock nobody else does.
func (b Book) open(ctx context.Context) (k *book, unlock func(), err error) {
	if unlock, err = b.lock(ctx); err != nil {
		return nil, nil, err
	}
	if k, err = b.read(); err != nil {
		unlock()
		return nil, nil, err
	}
	return k, unlock, nil
}

// lockPoll is how often a lock that another process holds is tried.
const lockPoll = 50 * time.Millisecond

// lock takes the right to change functions and the book, until unlock.
func (b Book) lock(ctx context.Context) (unlock func(), err error) {
	if err := os.MkdirAll(b.Run, 0o755); err != nil {
		return nil, explain("folder of records", err)
	}
	f, err := os.OpenFile(filepath.Join(b.Run, "vfs.lock"), os.O_RDWR|os.O_CREATE|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, explain("lock of virtual functions", err)
	}
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() { _ = f.Close() }, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			return nil, errors.Join(err, f.Close())
		}
		select {
		case <-ctx.Done():
			return nil, errors.Join(fmt.Errorf("another causeway changes virtual functions (%s is locked): %w", f.Name(), ctx.Err()), f.Close())
		case <-time.After(lockPoll):
		}
	}
}
