package driver

// Gauge is a Session that can say how much of its work the GPU has finished. While a virtual GPU
// shares its GPU with others, or has a cap, the worker fences its work and so learns when the GPU
// is done with it; otherwise it asks for nothing, and a Gauge then costs nothing.
type Gauge interface {
	// Metering says whether fences will come. Worker goroutine.
	Metering(on bool)
	// Fence puts mark n, which is one more than the last, behind everything that was submitted so
	// far. It orders nothing: what comes later waits for it no more than for the work before it.
	// Worker goroutine.
	Fence(n uint64)
	// Passed is the last mark before which everything is finished, or never will be because its
	// context is gone. Any goroutine.
	Passed() uint64
	// OnPass has f called after marks have passed, by any goroutine. false: the session only
	// notices when it is asked, and f is not called. Before the first mark.
	OnPass(f func()) bool
}
