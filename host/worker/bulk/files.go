package bulk

import (
	"errors"
	"os"
	"sync"
)

// stripe is how much lies in one file before the next one's turn: what a thread takes of a piece of
// a GPU's memory, where there are as many as take part.
const stripe = 1 << 20

// Files is what memory lies in, stripe by stripe in turn. The kernel serves one writer of a file at
// a time, and keeps the account of its pages under one lock: threads that are at different files do
// not wait for each other.
type Files []*os.File

// place is where a position lies, and how much of the stripe follows.
func (l Files) place(at int64) (f *os.File, off int64, left int) {
	n, in := at/stripe, at%stripe
	return l[n%int64(len(l))], n/int64(len(l))*stripe + in, int(stripe - in)
}

// each goes through the parts of a stretch that lie in one file each.
func (l Files) each(p []byte, at int64, part func(f *os.File, p []byte, off int64) (int, error)) (done int, err error) {
	for done < len(p) && err == nil {
		f, off, left := l.place(at + int64(done))
		var n int
		n, err = part(f, p[done:min(done+left, len(p))], off)
		done += n
	}
	return done, err
}

// WriteAt implements io.WriterAt.
func (l Files) WriteAt(p []byte, at int64) (int, error) { return l.each(p, at, (*os.File).WriteAt) }

// ReadAt implements io.ReaderAt.
func (l Files) ReadAt(p []byte, at int64) (int, error) { return l.each(p, at, (*os.File).ReadAt) }

// end makes all of them together as long as that: a file that holds zeros at its end was not
// written there.
func (l Files) end(size int64) error {
	round := int64(len(l)) * stripe
	for i, f := range l {
		own := size/round*stripe + min(max(size%round-int64(i)*stripe, 0), stripe)
		if err := f.Truncate(own); err != nil {
			return err
		}
	}
	return nil
}

// Size is how long all of them are together.
func (l Files) Size() (size int64, err error) {
	for _, f := range l {
		info, err := f.Stat()
		if err != nil {
			return 0, err
		}
		size += info.Size()
	}
	return size, nil
}

// Close closes all: side by side, since that is when the kernel gives up the pages of files in
// memory.
func (l Files) Close() error {
	errs := make([]error, len(l))
	var all sync.WaitGroup
	for i, f := range l {
		all.Go(func() { errs[i] = f.Close() })
	}
	all.Wait()
	return errors.Join(errs...)
}
