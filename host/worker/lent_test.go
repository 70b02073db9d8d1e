package worker

import (
	"errors"
	"slices"
	"testing"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/driver"
)

// reserving is a driver that reserves addresses where it is asked to, or elsewhere, or not at all.
type reserving struct {
	driver.Session
	res  cuda.Result
	away uint64
	do   func(string)
}

func (r *reserving) MemAddressReserve(_ *wire.Call, a *wire.MemAddressReserveArgs, p *wire.MemAddressReserveReply) cuda.Result {
	r.do("reserve")
	p.Ptr = a.Addr + r.away
	return r.res
}

func (r *reserving) MemAddressFree(*wire.Call, *wire.MemAddressFreeArgs) cuda.Result {
	r.do("free")
	return r.res
}

// lending has had regions everywhere, or nowhere.
type lending struct {
	none bool
	do   func(string)
}

func (l lending) Lend(uint64, uint64) bool {
	l.do("lend")
	return !l.none
}

func (l lending) Keep(uint64, uint64) error {
	l.do("keep")
	return errors.New("in use") // which is logged
}

// TestAddressesOfRegions: a driver has the addresses at which a region has lain for as long as it
// has them reserved, and only where nothing of this process's comes by itself.
func TestAddressesOfRegions(t *testing.T) {
	const at = 0x6500_0000_0000
	for name, c := range map[string]struct {
		addr, size uint64
		none       bool
		away       uint64
		res        cuda.Result
		want       []string
	}{
		"there":                    {addr: at, size: 4096, want: []string{"lend", "reserve", "free", "keep"}},
		"elsewhere":                {addr: at, size: 4096, away: 4096, want: []string{"lend", "reserve", "keep", "free"}},
		"refused":                  {addr: at, size: 4096, res: cuda.ErrorOutOfMemory, want: []string{"lend", "reserve", "keep", "free"}},
		"no region's":              {addr: at, size: 4096, none: true, want: []string{"lend", "reserve", "free"}},
		"anywhere":                 {size: 4096, want: []string{"reserve", "free"}},
		"among this process's own": {addr: 0x7f00_0000_0000, size: 4096, want: []string{"reserve", "free"}},
		"up to there":              {addr: at, size: lendTo - at + 1, want: []string{"reserve", "free"}},
		"around":                   {addr: at, size: ^uint64(0), want: []string{"reserve", "free"}},
		"below":                    {addr: lendFrom - 4096, size: 8192, want: []string{"reserve", "free"}},
	} {
		var did []string
		do := func(s string) { did = append(did, s) }
		w, _ := newFake(t, nil)
		w.lender, w.lent = lending{c.none, do}, map[uint32]lent{}
		f := &front{w: w, Session: &reserving{res: c.res, away: c.away, do: do}}
		if res := f.MemAddressReserve(nil, &wire.MemAddressReserveArgs{Resv: 7, Addr: c.addr, Size: c.size}, &wire.MemAddressReserveReply{}); res != c.res {
			t.Errorf("%s: %v", name, res)
		}
		f.MemAddressFree(nil, &wire.MemAddressFreeArgs{Resv: 7})
		if !slices.Equal(did, c.want) {
			t.Errorf("%s: %v, want %v", name, did, c.want)
		}
	}
}
