/*
Package sealed writes bytes where others may read and change them, so that they can do neither: on a
disk, under a key that never leaves this process.

A stream is cut into chunks of ChunkSize bytes, the last of which is shorter, perhaps empty. Each is
sealed by AES-256-GCM under the stream's own key; its nonce is its number, and whether it is the
last. So a chunk that was changed, moved, repeated or taken from another stream does not open, nor
does a stream without its end, and nothing of a chunk is seen before all of it was found to be
right.
*/
package sealed

import (
	"bufio"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// ChunkSize is how many bytes are sealed together.
const ChunkSize = 1 << 20

// overhead is how many bytes a chunk takes more when it is sealed.
const overhead = 16

// ErrAltered says that what is read is not what was written.
var ErrAltered = errors.New("what was stored has been altered, or is not whole")

// Key seals one stream, and opens it as often as one likes.
type Key struct{ aead cipher.AEAD }

// NewKey draws a key.
func NewKey() (*Key, error) {
	var secret [32]byte
	if _, err := rand.Read(secret[:]); err != nil {
		return nil, fmt.Errorf("draw a key: %w", err)
	}
	block, err := aes.NewCipher(secret[:])
	if err != nil {
		return nil, err
	}
	aead, err := cipher.NewGCM(block)
	return &Key{aead}, err
}

// Size is how many bytes n become.
func Size(n uint64) uint64 { return n + (n/ChunkSize+1)*overhead }

// nonce is that of a chunk. No two chunks of a key have the same.
func nonce(number uint64, last bool) []byte {
	b := make([]byte, 12)
	binary.LittleEndian.PutUint64(b, number)
	if last {
		b[8] = 1
	}
	return b
}

// Writer seals what is written to it. Close writes the end; the stream below stays open.
type Writer struct {
	key    *Key
	w      io.Writer
	plain  []byte
	out    []byte
	number uint64
	err    error
}

// NewWriter seals a stream. A key is for one alone.
func (k *Key) NewWriter(w io.Writer) *Writer {
	return &Writer{key: k, w: w, plain: make([]byte, 0, ChunkSize), out: make([]byte, 0, ChunkSize+overhead)}
}

// Write implements io.Writer.
func (w *Writer) Write(p []byte) (n int, err error) {
	for len(p) > 0 && w.err == nil {
		k := min(len(p), ChunkSize-len(w.plain))
		w.plain, p, n = append(w.plain, p[:k]...), p[k:], n+k
		if len(w.plain) == ChunkSize {
			w.flush(false)
		}
	}
	return n, w.err
}

func (w *Writer) flush(last bool) {
	w.out = w.key.aead.Seal(w.out[:0], nonce(w.number, last), w.plain, nil)
	w.number, w.plain = w.number+1, w.plain[:0]
	_, w.err = w.w.Write(w.out)
}

var errClosed = errors.New("written after the end")

// Close writes the end.
func (w *Writer) Close() error {
	if w.err == nil {
		if w.flush(true); w.err == nil {
			w.err = errClosed
			return nil
		}
	}
	return w.err
}

// reader opens what a Writer sealed.
type reader struct {
	key    *Key
	r      *bufio.Reader
	sealed []byte
	plain  []byte // of the chunk, what was not read yet
	number uint64
	last   bool
}

// NewReader opens a stream. What is wrong with it is ErrAltered, once all that is right before it
// was read.
func (k *Key) NewReader(r io.Reader) io.Reader {
	return &reader{key: k, r: bufio.NewReaderSize(r, 64<<10), sealed: make([]byte, ChunkSize+overhead)}
}

// Read implements io.Reader.
func (r *reader) Read(p []byte) (int, error) {
	for len(r.plain) == 0 {
		if r.last {
			return 0, io.EOF
		}
		if err := r.open(); err != nil {
			return 0, err
		}
	}
	n := copy(p, r.plain)
	r.plain = r.plain[n:]
	return n, nil
}

// open opens the next chunk: the last is the one that is shorter, behind which nothing comes.
func (r *reader) open() error {
	n, err := io.ReadFull(r.r, r.sealed)
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return err
	}
	last := n < len(r.sealed)
	plain, err := r.key.aead.Open(r.sealed[:0], nonce(r.number, last), r.sealed[:n], nil)
	if err != nil {
		return fmt.Errorf("%w: chunk %d", ErrAltered, r.number)
	}
	r.plain, r.last, r.number = plain, last, r.number+1
	return nil
}
