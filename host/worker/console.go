package worker

import "sync"

// Device output that waits for the guest is bounded; what comes beyond is lost and said so.
const (
	maxConsole  = 16 << 20
	consolePart = 64 << 10
)

const consoleLost = "\n[causeway: device output was lost, the program did not read it]\n"

type console struct {
	mu   sync.Mutex
	text []byte
	lost bool
}

// Console implements driver.Host.
func (w *Worker) Console(text []byte) {
	w.gate.RLock()
	defer w.gate.RUnlock()
	c := &w.console
	c.mu.Lock()
	defer c.mu.Unlock()
	room := maxConsole - len(c.text)
	if len(text) > room {
		text, c.lost = text[:room], true
	}
	c.text = append(c.text, text...)
	w.ring.SetConsole(uint32(len(c.text)))
}

// consoleRead takes the oldest part of the output.
func (w *Worker) consoleRead() []byte {
	c := &w.console
	c.mu.Lock()
	defer c.mu.Unlock()
	n := min(len(c.text), consolePart)
	part := append([]byte(nil), c.text[:n]...)
	if c.text = c.text[n:]; len(c.text) == 0 {
		c.text = nil
		if c.lost {
			c.lost = false
			part = append(part, consoleLost...)
		}
	}
	w.ring.SetConsole(uint32(len(c.text)))
	return part
}
