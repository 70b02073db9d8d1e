package bind

import (
	"unsafe"

	"causeway/cuda"
	"causeway/cuda/fatbin"
)

// plainJIT are the CUjit_option values (CUDA Driver API reference, cuModuleLoadDataEx) that carry a
// plain number; all others hold addresses.
var plainJIT = map[uint64]bool{
	cuda.JITMaxRegisters: true, cuda.JITThreadsPerBlock: true, cuda.JITOptimizationLevel: true, cuda.JITTargetFromCucontext: true,
	cuda.JITTarget: true, cuda.JITFallbackStrategy: true, cuda.JITGenerateDebugInfo: true, cuda.JITLogVerbose: true,
	cuda.JITGenerateLineInfo: true, cuda.JITCacheMode: true, 15: true, 16: true, 20: true, 21: true, 22: true, 23: true, 24: true, 29: true,
	30: true, 31: true, 32: true, 33: true, cuda.JITSplitCompile: true, jitLoaderThreads: true,
}

// jitLoaderThreads is CU_JIT_BINARY_LOADER_THREAD_COUNT, of CUDA 13.
const jitLoaderThreads = 35

// Options are two lists in C memory, of keys and values. The driver writes to the values as long as
// what they were given to lives. None may be given instead.
type Options struct {
	keys, values Buffer
	n            int
	owned        []Buffer
}

// NewOptions has room for so many.
func NewOptions(room int) *Options {
	return &Options{keys: NewBuffer(4 * room), values: NewBuffer(8 * room)}
}

// AddPlain adds a guest's option; one that carries no plain number is left out. A number of threads
// is an upper bound to a driver, which has the last word: here there are not more than for words in
// an image.
func (o *Options) AddPlain(key, value uint64) {
	if key == cuda.JITSplitCompile || key == jitLoaderThreads {
		value = min(value, fatbin.MaxThreads)
	}
	if plainJIT[key] {
		o.Add(int32(key), value)
	}
}

// Add adds an option that carries a number of ours, and gives its index.
func (o *Options) Add(key int32, value uint64) int {
	*(*int32)(unsafe.Add(o.keys.p, 4*o.n)), *o.value(o.n) = key, value
	o.n++
	return o.n - 1
}

// AddBuffer adds an option that carries the address of memory of ours, which goes with the options.
func (o *Options) AddBuffer(key int32, size int) Buffer {
	b := NewBuffer(size)
	o.owned = append(o.owned, b)
	o.Add(key, b.addr())
	return b
}

// Value is what an option holds now.
func (o *Options) Value(i int) uint64 { return *o.value(i) }

func (o *Options) value(i int) *uint64 { return (*uint64)(unsafe.Add(o.values.p, 8*i)) }

// Free gives the memory back.
func (o *Options) Free() {
	for _, b := range append(o.owned, o.keys, o.values) {
		b.Free()
	}
}

func (o *Options) count() uint64 {
	if o == nil {
		return 0
	}
	return uint64(o.n)
}

func (o *Options) keyList() uint64 {
	if o == nil {
		return 0
	}
	return o.keys.addr()
}

func (o *Options) valueList() uint64 {
	if o == nil {
		return 0
	}
	return o.values.addr()
}
