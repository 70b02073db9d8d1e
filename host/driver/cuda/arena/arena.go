// Package arena gives out addresses of one range, so that another process can give out the same
// ones again. What is smaller than Large shares pages of Page bytes; what is larger has pages of
// its own. It knows addresses alone: who owns the range puts memory behind its pages when they come
// into use, and takes it away when they do not.
//
// An Arena is its owner's goroutine's.
package arena

import (
	"errors"
	"math/bits"
	"slices"
)

// Sizes, in bytes.
const (
	Unit  = 512     // what addresses and sizes of blocks are multiples of
	Page  = 2 << 20 // what is backed at once
	Large = 1 << 20 // from here on a block has pages of its own

	units = Page / Unit
	tries = 16 // pages of a list that are looked at for a block
)

// ErrTaken says that a wanted address is not free.
var ErrTaken = errors.New("the addresses are in use")

// ErrNoAddresses says that the range is full.
var ErrNoAddresses = errors.New("the range has no addresses left")

// Backing puts memory behind pages. Addresses and sizes are multiples of Page.
type Backing interface {
	Back(at, size uint64) error
	Unback(at, size uint64)
}

// Arena is a range of addresses of which blocks are given out.
type Arena struct {
	base, size uint64
	backing    Backing
	chunks     []chunk // backed, sorted by address
	// Where the search for addresses goes on: they are used again late, so that stale pointers are
	// found.
	cursor uint64
	// pages that are shared, by the number of bits of what may be their longest free run, in units.
	// A page is in one list; full ones are in the first.
	byRoom [bits.UintSize]pageList
	empty  *page // one that nobody uses, kept for the next
	backed uint64
}

type pageList []*page

// chunk is what is backed at once: a shared page, or the pages of a large block.
type chunk struct {
	lo, hi uint64
	page   *page // nil: a large block
}

// New is an empty range. base is a multiple of Page.
func New(base, size uint64, b Backing) *Arena {
	return &Arena{base: base, size: size, backing: b, cursor: base}
}

// Backed is how many bytes are backed.
func (a *Arena) Backed() uint64 { return a.backed }

// Contains reports whether an address is of this range.
func (a *Arena) Contains(addr uint64) bool { return addr >= a.base && addr-a.base < a.size }

// Alloc finds size bytes. Its errors are ErrNoAddresses and those of Back.
func (a *Arena) Alloc(size uint64) (uint64, error) {
	if size >= Large {
		return a.back(wholePages(size), nil)
	}
	n := unitsOf(size)
	for class := bits.Len(n); class < len(a.byRoom); class++ {
		list := a.byRoom[class]
		for i := len(list) - 1; i >= max(len(list)-tries, 0); i-- {
			// One that is found wanting leaves the list, and the last takes its place.
			p := list[i]
			if p.room < n {
				continue
			}
			if first, ok := p.find(n); ok {
				return a.take(p, first, n), nil
			}
			a.setRoom(p, n-1) // which it now is known to have at most
		}
	}
	p, err := a.newPage(0)
	if err != nil {
		return 0, err
	}
	return a.take(p, 0, n), nil
}

// AllocAt takes size bytes at an address that Alloc gave, for as many, in a range that began where
// this one does.
func (a *Arena) AllocAt(addr, size uint64) error {
	if !a.Contains(addr) || size > a.size-(addr-a.base) || addr%Unit != 0 {
		return ErrTaken
	}
	if size >= Large {
		if addr%Page != 0 || !a.free(addr, wholePages(size)) {
			return ErrTaken
		}
		return a.backAt(addr, wholePages(size), nil)
	}
	n, first := unitsOf(size), uint(addr%Page/Unit)
	if first+n > units {
		return ErrTaken
	}
	p := a.pageAt(addr)
	if p == nil {
		at := addr &^ (Page - 1)
		if !a.free(at, Page) {
			return ErrTaken
		}
		var err error
		if p, err = a.newPage(at); err != nil {
			return err
		}
	}
	if !p.isFree(first, n) {
		return ErrTaken
	}
	a.take(p, first, n)
	return nil
}

// Free ends the block that begins at an address, false if none does.
func (a *Arena) Free(addr uint64) bool {
	i, ok := a.find(addr)
	if !ok {
		return false
	}
	e := a.chunks[i]
	if e.page == nil {
		if e.lo != addr {
			return false
		}
		a.drop(i)
		return true
	}
	first := uint((addr - e.lo) / Unit)
	if addr%Unit != 0 || !get(&e.page.starts, first) {
		return false
	}
	run := e.page.give(first)
	if e.page.used > 0 {
		a.setRoom(e.page, max(e.page.room, run))
		return true
	}
	a.setRoom(e.page, units)
	if a.empty == nil {
		a.empty = e.page
		return true
	}
	a.dropPage(e.page)
	return true
}

// Trim gives back what no block uses.
func (a *Arena) Trim() {
	if p := a.empty; p != nil {
		a.empty = nil
		if p.used == 0 {
			a.dropPage(p)
		}
	}
}

// Block finds where the block begins that an address lies in.
func (a *Arena) Block(addr uint64) (uint64, bool) {
	i, ok := a.find(addr)
	if !ok {
		return 0, false
	}
	e := a.chunks[i]
	if e.page == nil {
		return e.lo, true
	}
	first, ok := e.page.start(uint((addr - e.lo) / Unit))
	return e.lo + uint64(first)*Unit, ok
}

func unitsOf(size uint64) uint { return uint(max((size+Unit-1)/Unit, 1)) }

func wholePages(size uint64) uint64 {
	if size > 1<<62 {
		return 1 << 62 // which no range holds
	}
	return (size + Page - 1) &^ (Page - 1)
}

// Footprint is how many bytes of addresses a block of size bytes takes.
func Footprint(size uint64) uint64 {
	if size >= Large {
		return wholePages(size)
	}
	return uint64(unitsOf(size)) * Unit
}

// take gives n units of a page out.
func (a *Arena) take(p *page, first, n uint) uint64 {
	p.take(first, n)
	if p == a.empty {
		a.empty = nil
	}
	if room := units - p.used; p.room > room {
		a.setRoom(p, room)
	}
	return p.at + uint64(first)*Unit
}

// newPage backs a page to be shared, at an address or, for 0, anywhere.
func (a *Arena) newPage(at uint64) (*page, error) {
	p := &page{at: at}
	var err error
	if at != 0 {
		err = a.backAt(at, Page, p)
	} else {
		p.at, err = a.back(Page, p)
	}
	if err != nil {
		return nil, err
	}
	p.class = -1
	a.setRoom(p, units)
	return p, nil
}

func (a *Arena) dropPage(p *page) {
	a.unlist(p)
	if i, ok := a.find(p.at); ok {
		a.drop(i)
	}
}

// back backs pages at the next free addresses.
func (a *Arena) back(size uint64, p *page) (uint64, error) {
	if size > a.size {
		return 0, ErrNoAddresses
	}
	at, ok := a.gap(a.cursor, size)
	if !ok {
		if at, ok = a.gap(a.base, size); !ok {
			return 0, ErrNoAddresses
		}
	}
	if err := a.backAt(at, size, p); err != nil {
		return 0, err
	}
	if a.cursor = at + size; a.cursor-a.base >= a.size {
		a.cursor = a.base
	}
	return at, nil
}

func (a *Arena) backAt(at, size uint64, p *page) error {
	if err := a.backing.Back(at, size); err != nil {
		return err
	}
	a.backed += size
	i, _ := a.search(at)
	a.chunks = slices.Insert(a.chunks, i, chunk{at, at + size, p})
	return nil
}

// drop takes the memory away from an chunk.
func (a *Arena) drop(i int) {
	e := a.chunks[i]
	a.chunks = slices.Delete(a.chunks, i, i+1)
	a.backed -= e.hi - e.lo
	a.backing.Unback(e.lo, e.hi-e.lo)
}

// gap looks for size free bytes from an address on.
func (a *Arena) gap(from, size uint64) (uint64, bool) {
	i, _ := a.search(from)
	at := from
	if i > 0 {
		at = max(at, a.chunks[i-1].hi)
	}
	for ; i < len(a.chunks) && a.chunks[i].lo-at < size; i++ {
		at = a.chunks[i].hi
	}
	return at, size <= a.size-(at-a.base)
}

// free reports whether nothing is backed at addresses of the range.
func (a *Arena) free(at, size uint64) bool {
	if !a.Contains(at) || size > a.size-(at-a.base) {
		return false
	}
	i, _ := a.search(at)
	return (i == 0 || a.chunks[i-1].hi <= at) && (i == len(a.chunks) || a.chunks[i].lo >= at+size)
}

// search finds the first chunk that begins at an address or above.
func (a *Arena) search(addr uint64) (int, bool) {
	return slices.BinarySearchFunc(a.chunks, addr, func(e chunk, addr uint64) int {
		switch {
		case e.lo < addr:
			return -1
		case e.lo > addr:
			return 1
		}
		return 0
	})
}

// find finds the chunk that an address lies in.
func (a *Arena) find(addr uint64) (int, bool) {
	i, exact := a.search(addr)
	if exact {
		return i, true
	}
	return i - 1, i > 0 && addr < a.chunks[i-1].hi
}

func (a *Arena) pageAt(addr uint64) *page {
	if i, ok := a.find(addr); ok {
		return a.chunks[i].page
	}
	return nil
}

// setRoom says how long a page's longest free run may be.
func (a *Arena) setRoom(p *page, n uint) {
	p.room = n
	if class := bits.Len(n); class != p.class {
		a.unlist(p)
		p.class, p.index = class, len(a.byRoom[class])
		a.byRoom[class] = append(a.byRoom[class], p)
	}
}

func (a *Arena) unlist(p *page) {
	if p.class < 0 {
		return
	}
	list := a.byRoom[p.class]
	last := list[len(list)-1]
	list[p.index], last.index = last, p.index
	list[len(list)-1] = nil
	a.byRoom[p.class] = list[:len(list)-1]
	p.class = -1
}
