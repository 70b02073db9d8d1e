package sealed

import (
	"bytes"
	"errors"
	"io"
	"testing"
	"testing/iotest"
)

// seal is a stream as it lies on the disk.
func seal(t testing.TB, plain []byte) (*Key, []byte) {
	t.Helper()
	k, err := NewKey()
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	w := k.NewWriter(&b)
	for p := plain; len(p) > 0; { // in pieces that fit no chunk
		n := min(len(p), 300_007)
		if _, err := w.Write(p[:n]); err != nil {
			t.Fatal(err)
		}
		p = p[n:]
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if w.Close() == nil {
		t.Error("closed twice")
	}
	if got, want := uint64(b.Len()), Size(uint64(len(plain))); got != want {
		t.Errorf("%d bytes, want %d", got, want)
	}
	return k, b.Bytes()
}

func pattern(n int) []byte {
	p := make([]byte, n)
	for i := range p {
		p[i] = byte(i*7 + i>>8)
	}
	return p
}

func TestSealed(t *testing.T) {
	for _, n := range []int{0, 1, ChunkSize - 1, ChunkSize, ChunkSize + 1, 3 * ChunkSize} {
		plain := pattern(n)
		k, on := seal(t, plain)
		for range 2 { // as often as one likes
			got, err := io.ReadAll(k.NewReader(iotest.HalfReader(bytes.NewReader(on))))
			if err != nil || !bytes.Equal(got, plain) {
				t.Errorf("%d bytes: %d came back, %v", n, len(got), err)
			}
		}
		if n > 100 && bytes.Contains(on, plain[:100]) {
			t.Error("it can be read on the disk")
		}
	}
}

// TestAltered: whatever is done to it, nothing comes back that was not there at that place.
func TestAltered(t *testing.T) {
	const chunk = ChunkSize + overhead
	plain := pattern(3*ChunkSize + 5)
	k, on := seal(t, plain)
	_, other := seal(t, plain)
	for what, b := range map[string][]byte{
		"nothing":            nil,
		"cut":                on[:len(on)-1],
		"cut at a chunk":     on[:2*chunk],
		"cut before its end": on[:3*chunk],
		"longer":             append(bytes.Clone(on), 0),
		"a bit":              flip(on, 2*chunk+77),
		"a tag":              flip(on, chunk-1),
		"chunks exchanged":   append(append(bytes.Clone(on[chunk:2*chunk]), on[:chunk]...), on[2*chunk:]...),
		"a chunk twice":      append(bytes.Clone(on[:chunk]), on...),
		"another's":          other,
		"another's chunk":    append(append(bytes.Clone(on[:chunk]), other[chunk:2*chunk]...), on[2*chunk:]...),
	} {
		got, err := io.ReadAll(k.NewReader(bytes.NewReader(b)))
		if !errors.Is(err, ErrAltered) || !bytes.HasPrefix(plain, got) {
			t.Errorf("%s: %d bytes, %v", what, len(got), err)
		}
	}
	failed := errors.New("the disk is gone")
	if _, err := io.ReadAll(k.NewReader(io.MultiReader(bytes.NewReader(on[:chunk+9]), iotest.ErrReader(failed)))); !errors.Is(err, failed) {
		t.Error(err)
	}
	w := k.NewWriter(full{})
	_, _ = w.Write(plain)
	if err := w.Close(); !errors.Is(err, errFull) {
		t.Error(err)
	}
}

func flip(b []byte, at int) []byte {
	c := bytes.Clone(b)
	c[at] ^= 4
	return c
}

var errFull = errors.New("full")

type full struct{}

func (full) Write([]byte) (int, error) { return 0, errFull }

// FuzzReader changes what is on the disk anyhow: it is what it was, or ErrAltered.
func FuzzReader(f *testing.F) {
	f.Add([]byte("kept"), uint32(0), byte(0), uint32(0))
	f.Add([]byte("kept"), uint32(3), byte(1), uint32(0))
	f.Add(pattern(100), uint32(0), byte(0), uint32(50))
	f.Fuzz(func(t *testing.T, plain []byte, at uint32, with byte, cut uint32) {
		k, on := seal(t, plain)
		b := bytes.Clone(on)
		b[int(at)%len(b)] ^= with
		b = b[:len(b)-int(cut)%len(b)]
		got, err := io.ReadAll(k.NewReader(bytes.NewReader(b)))
		if bytes.Equal(b, on) {
			if err != nil || !bytes.Equal(got, plain) {
				t.Errorf("%x, %v", got, err)
			}
			return
		}
		if !errors.Is(err, ErrAltered) || !bytes.HasPrefix(plain, got) {
			t.Errorf("%x, %v", got, err)
		}
	})
}

func BenchmarkSeal(b *testing.B) {
	k, err := NewKey()
	if err != nil {
		b.Fatal(err)
	}
	p := pattern(ChunkSize)
	b.SetBytes(ChunkSize)
	w := k.NewWriter(io.Discard)
	for b.Loop() {
		if _, err := w.Write(p); err != nil {
			b.Fatal(err)
		}
	}
}
