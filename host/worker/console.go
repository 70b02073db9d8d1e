package worker

import "sync"

// Device output that waits for the guest is bounded; what comes beyond is lost and said so.
const (
	maxConsole  = 16 << 20
	consolePart = 64 << 10
)

const consoleLost = "\n[causeway: device output was lost, the program did not read it]\n"

// Where output belongs in the guest process: its standard output, its standard error.
const (
	consoleOut = iota
	consoleErr
)

type console struct {
	mu   sync.Mutex
	text []byte // for standard output
	errs []byte // for standard error
	lost bool
}

// Console implements driver.Host.
func (w *Worker) Console(text []byte) { w.print(&w.console.text, text) }

// ConsoleError implements driver.Host.
func (w *Worker) ConsoleError(text []byte) { w.print(&w.console.errs, text) }

func (w *Worker) print(to *[]byte, text []byte) {
	if w.replays.Load() {
		return
	}
	w.guestMu.RLock()
	defer w.guestMu.RUnlock()
	c := &w.console
	c.mu.Lock()
	defer c.mu.Unlock()
	room := maxConsole - len(c.text) - len(c.errs)
	if len(text) > room {
		text, c.lost = text[:room], true
	}
	*to = append(*to, text...)
	w.ring.SetConsole(c.waiting())
}

func (c *console) waiting() uint32 { return uint32(len(c.text) + len(c.errs)) }

// consoleRead takes the oldest part of the output, and says where it belongs.
func (w *Worker) consoleRead() (part []byte, stream uint32) {
	c := &w.console
	c.mu.Lock()
	defer c.mu.Unlock()
	from := &c.text
	if len(c.text) == 0 && len(c.errs) > 0 {
		from, stream = &c.errs, consoleErr
	}
	n := min(len(*from), consolePart)
	part = append([]byte(nil), (*from)[:n]...)
	if *from = (*from)[n:]; len(*from) == 0 {
		*from = nil
		if c.lost && c.waiting() == 0 {
			c.lost = false
			part = append(part, consoleLost...)
		}
	}
	w.ring.SetConsole(c.waiting())
	return part, stream
}
