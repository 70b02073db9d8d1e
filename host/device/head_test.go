package device

import (
	"bytes"
	"errors"
	"reflect"
	"testing"

	image "causeway/host/worker/state"
	"causeway/remote"
)

func headBytes(t testing.TB, h *sessionHead) []byte {
	t.Helper()
	var b bytes.Buffer
	w := image.NewWriter(&b)
	h.write(w)
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// FuzzSessionHead: what comes in front of a session is refused, or can be written again.
func FuzzSessionHead(f *testing.F) {
	f.Add(headBytes(f, &sessionHead{base: 0x3000_0020_0000, backend: "soft", gpu: "a GPU", stage: parked, tokens: []uint32{1, remote.SlotCount},
		regions: []regionHead{{id: 0, va: 1 << 40, size: remote.Region0Size, sent: true, reads: 1}, {id: 3, va: 1 << 41, size: 4096, reads: 1}}}))
	f.Add(headBytes(f, &sessionHead{stage: idle}))
	f.Add(headBytes(f, &sessionHead{stage: dead, regions: []regionHead{{id: 0, va: 1 << 40, size: remote.Region0Size}}}))
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := readHead(image.NewReader(bytes.NewReader(b), headMost))
		if err != nil {
			if !errors.Is(err, image.ErrState) {
				t.Fatal(err)
			}
			return
		}
		again, err := readHead(image.NewReader(bytes.NewReader(headBytes(t, h)), headMost))
		if err != nil || !reflect.DeepEqual(again, h) {
			t.Fatalf("%+v became %+v, %v", h, again, err)
		}
	})
}
