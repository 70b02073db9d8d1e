package link

// PageKind says what a shared page is for.
type PageKind byte

// Kinds of shared pages.
const (
	// Memory budget of the virtual GPU, read and written by all its sessions.
	PageMemory PageKind = iota + 1
	PageMeter           // counters of the session, written by its worker
	PageGrant           // what the scheduler grants, mapped read-only by the worker
	PageUsage           // what the worker tells the scheduler
	PageBell            // no page: an eventfd by which the worker has the scheduler look
	PageHost            // budget of the host's memory, as PageMemory is of the GPU's
	pageKinds
)

// Page is a shared page: others map it, too.
type Page struct {
	Kind PageKind
	File int // a sealed memfd, as of sys.NewPage; of PageBell an eventfd
}

// GatePages are what a session of host/schedule has for its worker: the grant, the usage and the
// bell, whose files stay the session's.
func GatePages(grant, usage, bell int) []Page {
	return []Page{{PageGrant, grant}, {PageUsage, usage}, {PageBell, bell}}
}
