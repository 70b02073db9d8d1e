package bind

import (
	"testing"

	"causeway/cuda"
	"causeway/cuda/fatbin"
)

// TestOptionsOfThreads: a compiler makes as many threads as it is told, so a guest may not tell it
// any number; 0, one for each processor, and others stay.
func TestOptionsOfThreads(t *testing.T) {
	for _, c := range []struct{ key, value, want uint64 }{
		{cuda.JITSplitCompile, 30000, fatbin.MaxThreads},
		{cuda.JITSplitCompile, 1<<32 + 30000, fatbin.MaxThreads},
		{cuda.JITSplitCompile, 8, 8},
		{cuda.JITSplitCompile, 0, 0},
		{jitLoaderThreads, 1<<32 - 1, fatbin.MaxThreads},
		{cuda.JITMaxRegisters, 255, 255},
	} {
		o := NewOptions(1)
		o.AddPlain(c.key, c.value)
		if got := o.Value(0); o.count() != 1 || got != c.want {
			t.Errorf("option %d of %d: %d of %d, want %d", c.key, c.value, o.count(), got, c.want)
		}
		o.Free()
	}
}
