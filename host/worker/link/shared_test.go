package link

import (
	"testing"
)

func TestShared(t *testing.T) {
	want := []Page{{PageMemory, 5}, {PageUsage, 6}}
	got, err := DecodeShared(SharedMessage(want))
	if err != nil || len(got) != 2 || got[0] != want[0] || got[1] != want[1] {
		t.Errorf("%v, %v", got, err)
	}
	for name, m := range map[string]Message{
		"other message": {Type: Memory},
		"no files":      {Type: Shared, Payload: []byte{1}},
		"kind 0":        {Type: Shared, Payload: []byte{0}, Files: []int{3}},
		"kind 7":        {Type: Shared, Payload: []byte{7}, Files: []int{3}},
	} {
		if _, err := DecodeShared(m); err == nil {
			t.Errorf("%s is taken", name)
		}
	}
	b, err := Config{Pages: want}.Encode()
	if err != nil {
		t.Fatal(err)
	}
	if c, err := DecodeConfig(b); err != nil || !c.Shared {
		t.Errorf("announced: %+v, %v", c, err)
	}
}

// FuzzDecodeShared: what a message says of its files is a list of known kinds or an error.
func FuzzDecodeShared(f *testing.F) {
	f.Add([]byte{1, 2, 3, 4}, 4)
	f.Add([]byte{1, 2}, 1)
	f.Add([]byte{0}, 1)
	f.Fuzz(func(t *testing.T, kinds []byte, files int) {
		m := Message{Type: Shared, Payload: kinds, Files: make([]int, files&0xff)}
		pages, err := DecodeShared(m)
		if err != nil {
			return
		}
		if len(pages) != len(kinds) || len(pages) != len(m.Files) {
			t.Fatalf("%d pages of %d kinds with %d files", len(pages), len(kinds), len(m.Files))
		}
		for i, p := range pages {
			if byte(p.Kind) != kinds[i] || p.Kind == 0 || p.Kind >= pageKinds {
				t.Errorf("kind %d became %d", kinds[i], p.Kind)
			}
		}
	})
}
