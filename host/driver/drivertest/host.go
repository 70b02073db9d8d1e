package drivertest

import (
	"sync"

	"causeway/cuda"
	"causeway/host/driver"
)

// Host implements driver.Host and remembers.
type Host struct {
	mu       sync.Mutex
	Regions  map[uint32]driver.Region
	Words    map[uint32]uint32
	Sticky   cuda.Result
	Errors   []cuda.Result
	Output   []byte
	OnOutput func([]byte)
	// OnCallBack is the guest's function, if set.
	OnCallBack func(id uint64, status cuda.Result)
}

var _ driver.Host = (*Host)(nil)

// NewHost returns a host without regions.
func NewHost() *Host {
	return &Host{Regions: map[uint32]driver.Region{}, Words: map[uint32]uint32{}}
}

// Region implements driver.Host.
func (h *Host) Region(id uint32) (driver.Region, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	r, ok := h.Regions[id]
	return r, ok
}

// CompleteWord implements driver.Host.
func (h *Host) CompleteWord(word, value uint32) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.Words[word] = value
}

// Word returns a completion word.
func (h *Host) Word(word uint32) uint32 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.Words[word]
}

// SetSticky implements driver.Host.
func (h *Host) SetSticky(res cuda.Result) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.Sticky = res
}

// Deferred implements driver.Host.
func (h *Host) Deferred(res cuda.Result) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.Errors = append(h.Errors, res)
}

// Console implements driver.Host.
func (h *Host) Console(text []byte) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.Output = append(h.Output, text...)
	if h.OnOutput != nil {
		h.OnOutput(text)
	}
}

// ConsoleError implements driver.Host.
func (h *Host) ConsoleError(text []byte) { h.Console(text) }

// CallBack implements driver.Host.
func (h *Host) CallBack(id uint64, status cuda.Result) bool {
	if h.OnCallBack == nil {
		return false
	}
	h.OnCallBack(id, status)
	return true
}
