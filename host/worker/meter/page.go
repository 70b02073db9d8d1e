package meter

import (
	"strings"
	"sync/atomic"
	"unicode"

	"golang.org/x/sys/unix"

	"causeway/remote/sys"
)

// Layout, in 64-bit words.
const (
	wordCalls = iota
	wordLaunches
	wordIn
	wordOut
	wordBusy  // nanoseconds
	wordSince // CLOCK_MONOTONIC when the GPU got work; 0: it has none. In nanoseconds
	wordFailed
	wordRefused
	wordPID
	wordName // length of the program's name in bytes
	wordHost // requests refused by the budget of host memory
	// Bytes of managed memory at the GPU, and next those that lie in the guest, or on this host,
	// for lack of room.
	wordManagedAtGPU
	wordManagedHere
	wordText = 16 // the name
	// Bytes that moved to the GPU, and to the guest, for lack of room; pieces that left, and that
	// came back.
	wordManagedIn  = 96
	wordManagedOut = 97
	wordEvicted    = 98
	wordReturned   = 99

	pageBytes = 4096
	mostName  = 512
)

// words is a page. Indices are constants: nothing is checked while a program runs.
type words [pageBytes / 8]uint64

// wordsOf is a page of at least pageBytes.
func wordsOf(mem []byte) *words { return (*words)(sys.Words(mem)) }

// Counters are what a worker counts itself. They only grow.
type Counters struct {
	Calls, Launches   uint64
	BytesIn, BytesOut uint64 // copied to and from the device
	BusyNanos         uint64 // the GPU had work of the session
	FailedCalls       uint64
	OutOfMemory       uint64 // of FailedCalls: there was no memory
	HostRefused       uint64 // requests that the budget of host memory refused
	Managed           Managed
}

// Managed is what the guest's library says of managed memory of which there is more than the GPU
// has room for, in bytes and pieces.
type Managed struct {
	AtGPU, Here       uint64 // where it lies now
	In, Out           uint64 // moved to the GPU and to the guest so far
	Evicted, Returned uint64
}

// Page is the shared page of a session's meter as the device process sees it. Its methods may be
// called from any goroutine, until Close.
type Page struct {
	fd    int
	mem   []byte
	words *words
}

// New makes a meter.
func New() (*Page, error) {
	fd, mem, err := sys.NewPage("meter", pageBytes, unix.F_SEAL_SEAL)
	if err != nil {
		return nil, err
	}
	return &Page{fd: fd, mem: mem, words: wordsOf(mem)}, nil
}

// Close gives the page back.
func (p *Page) Close() {
	_ = unix.Close(p.fd)
	sys.UnmapPage(p.mem)
	p.mem, p.words = nil, nil
}

// File is the page for the worker to map. It stays this Page's.
func (p *Page) File() int { return p.fd }

// Counters reads what the worker counts: calls, launches, bytes, busy time, failures.
func (p *Page) Counters() Counters {
	get := func(i int) uint64 { return atomic.LoadUint64(&p.words[i]) }
	busy := get(wordBusy)
	if since, now := get(wordSince), monotonic(); since != 0 && since < now {
		busy += now - since
	}
	return Counters{
		Calls: get(wordCalls), Launches: get(wordLaunches), BytesIn: get(wordIn), BytesOut: get(wordOut),
		BusyNanos: busy, FailedCalls: get(wordFailed), OutOfMemory: get(wordRefused),
		HostRefused: get(wordHost),
		Managed: Managed{
			AtGPU: get(wordManagedAtGPU), Here: get(wordManagedHere), In: get(wordManagedIn), Out: get(wordManagedOut),
			Evicted: get(wordEvicted), Returned: get(wordReturned),
		},
	}
}

// Guest is the guest process as it calls itself: process id, 0 if it has said nothing yet, and
// program.
func (p *Page) Guest() (pid uint32, program string) {
	pid = uint32(atomic.LoadUint64(&p.words[wordPID]))
	n := min(atomic.LoadUint64(&p.words[wordName]), mostName)
	text := make([]byte, 0, mostName)
	for i := uint64(0); i < n; i += 8 {
		w := atomic.LoadUint64(&p.words[wordText+i/8])
		for b := range min(8, n-i) {
			text = append(text, byte(w>>(8*b)))
		}
	}
	return pid, Clean(string(text))
}

// Clean is a guest's text for a terminal or a log: without control characters.
func Clean(s string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, s)
}

// Writer is a session's meter as its worker sees it. The consumer calls its methods, except Failed,
// which any goroutine may, and Begin and End, which are called in turns.
type Writer struct{ words *words }

// Open writes to a mapped page; nil if that is none.
func Open(mem []byte) *Writer {
	if len(mem) < pageBytes {
		return nil
	}
	return &Writer{words: wordsOf(mem)}
}

// Call counts a request.
func (w *Writer) Call() { w.words[wordCalls]++ }

// Launch counts launches of kernels or graphs.
func (w *Writer) Launch() { w.words[wordLaunches]++ }

// In and Out count bytes copied to and from the device.
func (w *Writer) In(n uint64)  { w.words[wordIn] += n }
func (w *Writer) Out(n uint64) { w.words[wordOut] += n }

// Failed counts a request that ended in an error; refused: there was no memory for it.
func (w *Writer) Failed(refused bool) {
	atomic.AddUint64(&w.words[wordFailed], 1)
	if refused {
		atomic.AddUint64(&w.words[wordRefused], 1)
	}
}

// HostRefused counts a request that the budget of host memory refused. Any goroutine.
func (w *Writer) HostRefused() { atomic.AddUint64(&w.words[wordHost], 1) }

// Managed notes what the guest says of its managed memory.
func (w *Writer) Managed(m Managed) {
	for _, f := range []struct {
		word  int
		value uint64
	}{{wordManagedAtGPU, m.AtGPU}, {wordManagedHere, m.Here}, {wordManagedIn, m.In}, {wordManagedOut, m.Out}, {wordEvicted, m.Evicted}, {wordReturned, m.Returned}} {
		atomic.StoreUint64(&w.words[f.word], f.value)
	}
}

// Begin and End are driver.Clock's.
func (w *Writer) Begin() { atomic.StoreUint64(&w.words[wordSince], monotonic()) }

// End is the end of what Begin began.
func (w *Writer) End() {
	since := atomic.LoadUint64(&w.words[wordSince])
	if now := monotonic(); since != 0 && since < now {
		// Between the two a reader sees less than before; it keeps the most that it saw.
		atomic.StoreUint64(&w.words[wordSince], 0)
		atomic.AddUint64(&w.words[wordBusy], now-since)
	}
}

// monotonic is a clock that all processes of a machine share, in nanoseconds.
func monotonic() uint64 {
	var t unix.Timespec
	if unix.ClockGettime(unix.CLOCK_MONOTONIC, &t) != nil {
		return 0
	}
	return uint64(t.Nano())
}

// Guest says who the guest process is.
func (w *Writer) Guest(pid uint32, program string) {
	program = program[:min(len(program), mostName)]
	for i := 0; i < len(program); i += 8 {
		var v uint64
		for b := range min(8, len(program)-i) {
			v |= uint64(program[i+b]) << (8 * b)
		}
		atomic.StoreUint64(&w.words[wordText+i/8], v)
	}
	atomic.StoreUint64(&w.words[wordName], uint64(len(program)))
	atomic.StoreUint64(&w.words[wordPID], uint64(pid))
}
