package worker

import (
	"strings"
	"testing"

	"causeway/cuda/wire"
)

// TestPortable: machine code alone ties a session to its model of GPU, by name, as long as it is
// loaded.
func TestPortable(t *testing.T) {
	ptx := []byte("// a comment\n.version 8.0\n.target sm_50\n.address_size 64\n")
	elf := append([]byte("\x7fELF"), make([]byte, 100)...)
	s := newRecorded(t)
	s.must(1, &wire.CtxCreateArgs{Ctx: 1}, &wire.ModuleLoadArgs{Module: 10, Image: ptx}, &wire.ModuleLoadArgs{Module: 11, Image: append(ptx, images[0]...)})
	if err := s.w.record.portable(); err != nil {
		t.Error(err)
	}
	for what, image := range map[string][]byte{"machine code": elf, "not known": []byte("garbage"), "malformed": {0x50, 0xed, 0x55, 0xba, 1, 2, 3}} {
		s.must(1, &wire.ModuleLoadArgs{Module: 12, Image: image})
		err := s.w.record.portable()
		if err == nil || !strings.Contains(err.Error(), what) || !strings.Contains(err.Error(), "ModuleLoad") {
			t.Errorf("%s: %v", what, err)
		}
		s.must(1, &wire.ModuleUnloadArgs{Module: 12})
		if err := s.w.record.portable(); err != nil {
			t.Errorf("after its end: %v", err)
		}
	}
}
