package limit

// Memory that a real driver takes. A context and a little to work with; a context alone, as a
// worker that waits ready holds; and at most for itself.
const (
	leastOnReal = 640 << 20
	contextReal = 576 << 20
	driverReal  = 1 << 30
)

// GPU is what matters here of a GPU.
type GPU struct {
	Soft    bool   // it takes its memory from the host's, a little for a context
	Name    string // model
	Memory  uint64 // bytes; 0: not known
	Waiting int    // workers that wait ready for each of its vGPUs, with a context
}

// Least is the smallest limit with which a program starts on g.
func (g GPU) Least() Memory {
	if g.Soft {
		return LeastMemory
	}
	return leastOnReal
}

// Fits says what is wrong with a limit of memory on g, or on n GPUs like it.
func (g GPU) Fits(m Memory, n int) error {
	switch all := g.Memory * uint64(max(n, 1)); {
	case m == 0:
		return nil
	case m < g.Least():
		return wrong("%s of memory is too little on %s: a CUDA program's context alone takes some 520 MiB of it, so use %s or more",
			human(uint64(m)), g.Name, human(uint64(g.Least())))
	case g.Memory != 0 && uint64(m) > all:
		return wrong("%s of memory is more than %s has: %s", human(uint64(m)), g.Name, human(all))
	}
	return nil
}
