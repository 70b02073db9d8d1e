package cubinvars

import "fmt"

const typeSection = 3

// Placeable says why Place cannot put all variables of a cubin that Names lists, but those that are left out, at addresses of their own, nil if it can. Constants
// stay where the driver puts them: no code may hold the address of one.
func Placeable(img []byte, out func(name string) bool) error {
	names, err := Names(img)
	if err != nil || len(names) == 0 {
		return err
	}
	constants, err := Constants(img)
	if err != nil {
		return err
	}
	addr := make(map[string]uint64, len(names))
	for _, name := range names {
		if out(name) {
			continue
		}
		if _, twice := addr[name]; twice {
			return fmt.Errorf("%w: two are called %s", ErrUnsupported, name)
		}
		addr[name] = 1 << 40
	}
	for _, name := range constants {
		delete(addr, name)
	}
	moved, err := Place(img, addr)
	if err != nil {
		return err
	}
	f, err := parse(moved)
	if err != nil {
		return err
	}
	for _, name := range constants {
		if !out(name) {
			addr[name] = 0
		}
	}
	return f.each(func(_ *section, table *section, r relocation) (bool, error) {
		switch y := f.symbol(table, int(r.symbol)); {
		case !lasting(f.sections[y.section].name) && table.name != secondSymbols:
		case f.kindOf(table, int(r.symbol)) == typeSection && lasting(f.sections[y.section].name):
			return true, fmt.Errorf("%w: a section is meant as a whole", ErrUnsupported)
		default:
			if name := f.nameOf(table, int(r.symbol)); name != "" {
				if _, ours := addr[name]; ours {
					return true, fmt.Errorf("%w: code holds the address of %s", ErrUnsupported, name)
				}
			}
		}
		return true, nil
	})
}

// Place returns the cubin with the variables of global memory that addr names at its addresses: what the code's relocations would have filled in
// when it is loaded is filled in beforehand, and the relocations go. The driver has memory for them all the same, which nothing of the code reaches any more.
func Place(img []byte, addr map[string]uint64) ([]byte, error) {
	if len(addr) == 0 { // it stays as it is, whatever else is in it
		return img, nil
	}
	f, err := parse(append([]byte(nil), img...))
	if err != nil {
		return nil, err
	}
	err = f.each(func(s *section, table *section, r relocation) (keep bool, err error) {
		if y := f.symbol(table, int(r.symbol)); !inGlobal(f.sections[y.section].name) && table.name != secondSymbols {
			return true, nil
		}
		name := f.nameOf(table, int(r.symbol))
		to, ok := addr[name]
		if !ok {
			return true, nil
		}
		if err := f.apply(s, r, to); err != nil {
			return true, fmt.Errorf("%s: %w", name, err)
		}
		return false, nil
	})
	if err != nil {
		return nil, err
	}
	return f.b, nil
}

// each calls do for each relocation of a file, with its section and the symbols that it is of, and takes those out of it that are not to be kept.
func (f *file) each(do func(s, table *section, r relocation) (keep bool, err error)) error {
	looked := uint64(0)
	for i := range f.sections {
		s := &f.sections[i]
		if !s.relocates() || s.size == 0 {
			continue
		}
		if looked += s.size / s.entry; looked > maxSymbols {
			return fmt.Errorf("%w: more than %d relocations", ErrUnsupported, maxSymbols)
		}
		if uint64(s.link) >= uint64(len(f.sections)) || !f.sections[s.link].symbols() {
			continue // names no symbols
		}
		table, entries, kept := &f.sections[s.link], s.bytes(f), uint64(0)
		for at := uint64(0); s.entry <= uint64(len(entries))-at; at += s.entry {
			r := decodeRelocation(entries[at:], s.addends)
			if uint64(r.symbol) >= f.count(table) {
				return fmt.Errorf("%w: symbol %d", ErrUnsupported, r.symbol)
			}
			keep, err := do(s, table, r)
			if err != nil {
				return err
			}
			if keep {
				copy(entries[kept:], entries[at:at+s.entry])
				kept += s.entry
			}
		}
		if kept < s.size {
			f.resize(s, kept)
		}
	}
	return nil
}

// nameOf is the name of the n-th symbol of a table.
func (f *file) nameOf(s *section, n int) string {
	if uint64(s.link) >= uint64(len(f.sections)) {
		return ""
	}
	return text(f.sections[s.link].bytes(f), le.Uint32(s.bytes(f)[n*symbolSize:]))
}

// kindOf is what the n-th symbol of a table stands for.
func (f *file) kindOf(s *section, n int) byte { return s.bytes(f)[n*symbolSize+4] & 15 }
