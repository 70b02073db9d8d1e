package exec_test

import (
	"errors"
	"fmt"
	"testing"

	"causeway/host/driver/soft/exec"
)

// TestRaggedEnds: an access of any width ends at its allocation's last byte or faults, whether the
// range was looked up before or not.
func TestRaggedEnds(t *testing.T) {
	const head = ".version 8.0\n.target sm_80\n.address_size 64\n"
	for _, c := range []struct {
		load string
		size uint64
	}{{"ld.global.u8 %r1, [%rd1]", 1}, {"ld.global.u16 %h1, [%rd1]", 2}, {"ld.global.u32 %r1, [%rd1]", 4}, {"ld.global.u64 %rd2, [%rd1]", 8},
		{"ld.global.v2.u32 {%r1, %r2}, [%rd1]", 8}, {"ld.global.v4.u32 {%r1, %r2, %r3, %r4}, [%rd1]", 16}, {"ld.global.v2.u64 {%rd2, %rd3}, [%rd1]", 16},
		{"st.global.u8 [%rd1], %r1", 1}, {"st.global.u64 [%rd1], %rd2", 8}, {"st.global.v4.u32 [%rd1], {%r1, %r2, %r3, %r4}", 16},
		{"atom.global.add.u32 %r1, [%rd1], %r2", 4}, {"atom.global.add.u64 %rd2, [%rd1], %rd3", 8}} {
		for _, before := range []string{"", "ld.global.u8 %r1, [%rd4];"} {
			// A first access finds the range.
			a := newArena(t)
			m := a.load(t, fmt.Sprintf("%s.visible .entry k(.param .u64 p, .param .u64 first)\n{\n.reg .b16 %%h<4>;\n.reg .b32 %%r<8>;\n.reg .b64 %%rd<8>;\n"+
				"ld.param.u64 %%rd1, [p];\nld.param.u64 %%rd4, [first];\n%s\n%s;\nret;\n}\n", head, before, c.load))
			for length := c.size; length < c.size+16; length += c.size {
				base, _ := a.alloc(length)
				for off := uint64(0); off < length+c.size; off += c.size {
					err := a.launch(t, m, "k", exec.Config{Params: pack(base+off, base)})
					var fault *exec.Fault
					switch fits := off+c.size <= length; {
					case fits && err != nil:
						t.Errorf("%s at %d of %d: %v", c.load, off, length, err)
					case !fits && !errors.As(err, &fault):
						t.Errorf("%s at %d of %d bytes: %v", c.load, off, length, err)
					}
				}
			}
			for length := uint64(1); length < c.size; length++ {
				base, _ := a.alloc(length)
				if err := a.launch(t, m, "k", exec.Config{Params: pack(base, base)}); err == nil {
					t.Errorf("%s of an allocation of %d bytes", c.load, length)
				}
			}
		}
	}
}

// TestReadOnlyMemory: it can be read, and written by no kernel, also by one that has read it
// before.
func TestReadOnlyMemory(t *testing.T) {
	for _, store := range []string{"st.global.u32 [%rd1], %r1", "atom.global.add.u32 %r2, [%rd1], %r1", "red.global.add.u32 [%rd1], %r1"} {
		for _, before := range []string{"", "ld.global.u32 %r1, [%rd1];"} {
			a := newArena(t)
			m := a.load(t, fmt.Sprintf(".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry k(.param .u64 p)\n{\n.reg .b32 %%r<8>;\n.reg .b64 %%rd<8>;\n"+
				"ld.param.u64 %%rd1, [p];\n%s\n%s;\nret;\n}\n", before, store))
			addr, mem := a.alloc(64)
			if err := a.launch(t, m, "k", exec.Config{Params: pack(addr)}); err != nil {
				t.Fatalf("%s: %v", store, err)
			}
			a.fixed, mem[0] = addr, 7
			var fault *exec.Fault
			if err := a.launch(t, m, "k", exec.Config{Params: pack(addr)}); !errors.As(err, &fault) || mem[0] != 7 {
				t.Errorf("%s after %q: %v, %d", store, before, err, mem[0])
			}
		}
	}
}
