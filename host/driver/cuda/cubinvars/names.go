package cubinvars

import (
	"fmt"
	"math"
	"strings"
)

// Bytes is how much memory a driver makes for the managed variables of a cubin, whatever is wrong
// with them.
func Bytes(img []byte) (total uint64) {
	f, err := parse(img)
	if err != nil {
		return 0
	}
	const function = 2
	for i := range f.sections {
		s := &f.sections[i]
		if s.kind != kindSymbols {
			continue
		}
		for b := s.bytes(f); len(b) >= symbolSize; b = b[symbolSize:] {
			if b[4]&15 != function && b[5]&otherManaged != 0 {
				if total += le.Uint64(b[16:]); total < le.Uint64(b[16:]) {
					return math.MaxUint64
				}
			}
		}
	}
	return total
}

// Names lists the variables of a cubin that live in the GPU's memory as long as the module and are
// not managed: the objects in its sections of global memory and of the bank of constants that
// programs name.
func Names(img []byte) (names []string, err error) {
	f, err := parse(img)
	if err != nil {
		return nil, err
	}
	looked, size := uint64(0), 0
	for i := range f.sections {
		s := &f.sections[i]
		if s.kind != kindSymbols || uint64(s.link) >= uint64(len(f.sections)) {
			continue
		}
		if looked += f.count(s); looked > maxSymbols {
			return nil, fmt.Errorf("%w: more than %d symbols", ErrUnsupported, maxSymbols)
		}
		for n := range f.symbols(s) {
			y := f.symbol(s, n)
			if e := s.bytes(f)[n*symbolSize:]; y.managed || y.section == 0 || y.size == 0 || e[4]&15 != typeObject || !lasting(f.sections[y.section].name) {
				continue
			} else if y.name = text(f.sections[s.link].bytes(f), le.Uint32(e)); y.name == "" {
				return nil, fmt.Errorf("%w: one has no name", ErrUnsupported)
			}
			if size += len(y.name); size > maxNames || len(names) == maxVars {
				return nil, fmt.Errorf("%w: more than %d, or names of more than %d bytes", ErrUnsupported, maxVars, maxNames)
			}
			names = append(names, y.name)
		}
	}
	return names, nil
}

// lasting reports whether a section holds variables of the module's life.
func lasting(section string) bool {
	return section == ".nv.global" || section == ".nv.constant3" || strings.HasPrefix(section, ".nv.global.")
}
