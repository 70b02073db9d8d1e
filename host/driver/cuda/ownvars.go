package cuda

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"slices"
	"time"

	"causeway/cuda"
	"causeway/cuda/fatbin"
	"causeway/host/driver"
	"causeway/host/driver/cuda/bind"
	"causeway/host/driver/cuda/cubinvars"
)

var _ driver.Reserver = (*session)(nil)

/*
Where a driver puts variables depends on all that it has done before, and not all of that is done again in another process. Pages in which variables lay can be
reserved there before anything is loaded, though: nothing has taken them yet, as nothing had where the session came from. A driver that then puts
variables elsewhere, as it has to, is given code that holds their old addresses, for the context that they are of: an edition. Their bytes come with the session's.
Constants stay where the driver puts them: code has no addresses of them, and the guest only those that it has asked for.
*/

// ownPage is what is reserved and backed at once: the unit of a driver's mappings.
const ownPage = 2 << 20

// ownVars are variables in memory of this session's. Worker goroutine; its zero value is ready.
type ownVars struct {
	ahead    *ahead
	pages    map[uint64]*varPage
	images   map[owner][]byte // of code that has variables
	editions map[instance]*edition
	told     map[instance]map[uint64]bool // addresses that the guest has asked for
}

// ahead is what is known of code before it is loaded.
type ahead struct {
	addrs  []uint64
	images [][]byte
}

// varPage is a page of addresses, and what backs it.
type varPage struct {
	at     bind.Mem
	handle bind.MemGenericAllocationHandle // none: nothing does yet
}

// Reserve implements driver.Reserver.
func (s *session) Reserve(addrs []uint64, images [][]byte) {
	if s.arenas.on && len(addrs) > 0 {
		s.arenas.own.ahead = &ahead{addrs, images}
	}
}

// reservePages does that before the first code is loaded, if the variables of all code can be put where they were: else a driver that does
// as it did has the better chance.
func (s *session) reservePages() {
	o := &s.arenas.own
	a := o.ahead
	if o.ahead = nil; a == nil {
		return
	}
	begin, left := time.Now(), 0
	for i, image := range a.images {
		if err := s.placeable(image); err != nil {
			slog.Info("variables are left to the driver", "image", i, "of", len(a.images), "bytes", len(image), "reason", err)
			left++
		}
	}
	if left > 0 {
		return
	}
	wanted := map[uint64]bool{}
	for _, at := range a.addrs {
		wanted[at&^(ownPage-1)] = true
	}
	o.pages, o.images = map[uint64]*varPage{}, map[owner][]byte{}
	for _, at := range slices.Sorted(maps.Keys(wanted)) {
		m, res := s.drv.MemAddressReserve(ownPage, ownPage, bind.Hint(at), 0)
		if res == cuda.Success && m.Address().Value() != at {
			s.drv.MemAddressFree(m)
			res = cuda.ErrorInvalidValue
		}
		if res != cuda.Success { // the driver's own choice may be as it was
			slog.Info("a page of variables is taken", "at", fmt.Sprintf("%#x", at), "result", res, "mappings", mappingsAround(at))
			continue
		}
		o.pages[at] = &varPage{at: m}
	}
	slog.Info("pages of variables are reserved", "pages", len(o.pages), "of", len(wanted), "took", time.Since(begin))
}

// placeable says why variables of code cannot be put where they were.
func (s *session) placeable(image []byte) error {
	code, res := s.check(image)
	if res != cuda.Success {
		return res
	}
	if names, err := namesOf(code, s.compute()); err != nil || len(names) == 0 {
		return err
	}
	b, err := s.machineCode(code)
	if err != nil {
		return err
	}
	return cubinvars.Placeable(b, constant)
}

// machineCode is what the driver takes of code, if that is machine code.
func (s *session) machineCode(code *fatbin.Code) ([]byte, error) {
	_, newest, _ := chosen(code, s.compute())
	if newest == nil || newest.Format != fatbin.ELF {
		return nil, errors.New("it is no machine code")
	}
	return newest.Code()
}

// keepImage remembers code whose variables may have to be put where they were.
func (o *ownVars) keepImage(of owner, code *fatbin.Code) {
	if o.images != nil {
		o.images[of] = code.Bytes()
	}
}

// back has memory behind a variable's addresses.
func (s *session) back(dev uint32, v moduleVar) error {
	for at := v.at &^ (ownPage - 1); at < v.at+v.size; at += ownPage {
		p := s.arenas.own.pages[at]
		switch {
		case p == nil:
			return fmt.Errorf("its page %#x is taken", at)
		case !p.handle.IsZero() || s.opt.Rehearsal:
			continue
		}
		if err := s.backPage(dev, p); err != nil {
			return fmt.Errorf("its page %#x: %w", at, err)
		}
	}
	return nil
}

func (s *session) backPage(dev uint32, p *varPage) error {
	if res := s.charge(ownPage); res != cuda.Success {
		return res
	}
	h, res := s.drv.MemCreate(ownPage, allocationProp(dev, 0, 0), 0)
	if res == cuda.Success {
		if res = s.drv.MemMap(p.at, 0, h, 0); res == cuda.Success {
			if res = s.drv.MemSetAccess(p.at, s.accessTo(dev)); res == cuda.Success {
				p.handle = h
				return nil
			}
			s.drv.MemUnmap(p.at)
		}
		s.drv.MemRelease(h)
	}
	s.refund(ownPage)
	return res
}

// tell notes that the guest has a variable's address.
func (o *ownVars) tell(key instance, at uint64) {
	if o.told == nil {
		o.told = map[instance]map[uint64]bool{}
	}
	if o.told[key] == nil {
		o.told[key] = map[uint64]bool{}
	}
	o.told[key][at] = true
}

// toldTable is all addresses of variables that the guest has.
func (s *session) toldTable() (table []byte) {
	for _, addrs := range s.arenas.own.told {
		for at := range addrs {
			table = binary.LittleEndian.AppendUint64(table, at)
		}
	}
	return table
}

// setTold takes over a toldTable: variables must be where the guest believes them to be.
func (s *session) setTold(size uint64, r io.Reader) error {
	if size%8 != 0 || size > 8*maxTold {
		return fmt.Errorf("addresses of variables: %d bytes", size)
	}
	table := make([]byte, size)
	if _, err := io.ReadFull(r, table); err != nil {
		return fmt.Errorf("addresses of variables: %w", err)
	}
	for ; len(table) > 0; table = table[8:] {
		at := binary.LittleEndian.Uint64(table)
		key, ok := s.variableIn(func(v moduleVar) bool { return v.at == at })
		switch {
		case ok:
			s.arenas.own.tell(key, at)
		case s.arenas.own.pages != nil: // else all that is known is where it was
			return immovable("the program has asked for a variable that lay at %#x, and does not here", at)
		}
	}
	return nil
}

// variableIn is whose a variable is.
func (s *session) variableIn(is func(moduleVar) bool) (instance, bool) {
	for key, list := range s.arenas.variables {
		if slices.ContainsFunc(list, is) {
			return key, true
		}
	}
	return instance{}, false
}

const maxTold = 1 << 20
