package exec_test

import (
	"context"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"causeway/host/driver/soft/exec"
	"causeway/host/driver/soft/ptx"
)

// FuzzRun loads any text and runs every kernel for a moment: whatever it does
// must end in success or in one of the errors that Launch declares.
func FuzzRun(f *testing.F) {
	files, _ := filepath.Glob("testdata/*.ptx")
	for _, name := range files {
		src, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		if len(src) < 32<<10 {
			f.Add(src)
		}
	}
	for _, x := range []instr{c("add.cc.u32 a3, a0, a1; addc.u32 ao, a2, 0", 0), c("st.shared.u32 [sh+8], a0; ld.shared.u16 ao, [sh+10]", 0),
		c("shfl.sync.up.b32 ao|p3, a0, a1, 0, -1; vote.sync.ballot.b32 ao, p0, -1; match.any.sync.b32 ao, a0, -1; redux.sync.add.s32 ao, a0, -1;", 0),
		c("atom.global.add.u32 ao, [mem], a0; bar.sync 0; bar.red.popc.u32 ao, 1, 32, p0; brev.b32 ao, ao", 0)} {
		src, _ := x.kernel()
		f.Add([]byte(src))
	}
	f.Fuzz(func(t *testing.T, src []byte) {
		if len(src) > 64<<10 {
			return
		}
		m, err := ptx.Parse(src)
		if err != nil {
			return
		}
		a := newArena(t)
		defer a.free()
		total := uint64(0)
		mod, err := exec.Load(m, func(name string, size, align uint64, space ptx.Space) (uint64, []byte, error) {
			if total += size + 4096; total > 1<<20 {
				return 0, nil, errors.New("out of memory")
			}
			return a.variable(name, size, align, space)
		})
		if err != nil {
			return
		}
		scratch := put(a, make([]uint64, 512))
		for i, k := range mod.Kernels() {
			if i == 8 || k.ParamBytes() > 4096 {
				break
			}
			params := make([]byte, k.ParamBytes()+8)
			for p := 0; p+8 <= len(params); p += 8 {
				binary.LittleEndian.PutUint64(params[p:], scratch+uint64(p))
			}
			ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
			err := k.Launch(ctx, exec.Config{Grid: [3]uint32{2, 1, 1}, Block: [3]uint32{33, 1, 1}, DynShared: 64, Params: params, Space: a, Cores: 1, StackBytes: 8192})
			cancel()
			var fault *exec.Fault
			var unsupported *exec.UnsupportedError
			var config *exec.ConfigError
			if err != nil && !errors.As(err, &fault) && !errors.As(err, &unsupported) && !errors.As(err, &config) {
				t.Errorf("%s: undeclared error %v", k.Name(), err)
			}
		}
	})
}
