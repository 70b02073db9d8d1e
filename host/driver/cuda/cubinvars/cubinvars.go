// Package cubinvars moves the managed variables of machine code to fixed addresses: what the code's
// relocations would have filled in when it is loaded is filled in beforehand, and the relocations
// go. It owns no goroutine and has no state.
//
// A cubin is an ELF file. Its symbols of managed variables are marked by bit 2 of st_other. Code
// names them by three kinds of relocation: the whole address (in the bank of constants that holds
// addresses, in variables and in debug information; a variable's first value may have it as a
// generic one, which is the same), and its lower and its upper half in an instruction of 128 bits,
// whose immediate value is its second word. Checked with the compilers of CUDA 11.8, 12.9 and 13.0
// for sm_75, sm_90 and sm_100, with and without optimisation, and with what the linkers make of
// their objects.
package cubinvars

import (
	"errors"
	"fmt"

	"causeway/host/driver/cuda/ptxvars"
)

// ErrUnsupported says that the code uses managed variables in a way that cannot be moved.
var ErrUnsupported = errors.New("managed variables of this machine code cannot be moved")

const (
	first   = 256     // where the first variable lies
	maxSize = 1 << 30 // of all variables

	// Bounds of what a guest's image makes this read and keep, well above what compilers write.
	maxVars    = 1 << 16
	maxName    = 1 << 14
	maxNames   = 16 << 20 // bytes of all names
	maxSymbols = 1 << 22  // in all tables; more relocations than that are none either
)

// Kinds of relocation.
const (
	whole   = 2    // R_CUDA_64
	generic = 4    // R_CUDA_G64
	lower   = 0x38 // R_CUDA_ABS32_LO_32
	upper   = 0x39 // R_CUDA_ABS32_HI_32
)

// Find lists the managed variables of a cubin and the bytes that they take together; none is no
// error.
func Find(img []byte) (vars []ptxvars.Var, size uint64, err error) {
	f, err := parse(img)
	if err != nil {
		return nil, 0, err
	}
	size = first
	looked, names := uint64(0), 0
	for i := range f.sections {
		s := &f.sections[i]
		if s.kind != kindSymbols {
			continue
		}
		if looked += f.count(s); looked > maxSymbols {
			return nil, 0, fmt.Errorf("%w: more than %d symbols", ErrUnsupported, maxSymbols)
		}
		for n := range f.symbols(s) {
			y := f.symbol(s, n)
			if !y.managed {
				continue
			}
			v, err := f.variable(y)
			if err != nil {
				return nil, 0, err
			}
			align := alignment(&f.sections[y.section], y.value)
			v.Offset = (size + align - 1) &^ (align - 1)
			if v.Size > maxSize || v.Offset > maxSize-v.Size {
				return nil, 0, fmt.Errorf("%w: more than %d bytes", ErrUnsupported, maxSize)
			}
			if names += len(v.Name); names > maxNames || len(vars) == maxVars {
				return nil, 0, fmt.Errorf("%w: more than %d, or names of more than %d bytes", ErrUnsupported, maxVars, maxNames)
			}
			size = v.Offset + v.Size
			vars = append(vars, v)
		}
	}
	if len(vars) == 0 {
		return nil, 0, nil
	}
	return vars, size, nil
}

// variable is what a symbol says of a managed variable.
func (f *file) variable(y symbol) (ptxvars.Var, error) {
	s := &f.sections[y.section]
	v := ptxvars.Var{Name: y.name, Size: y.size}
	if y.name == "" || y.size == 0 || y.section == 0 || y.value > s.size || y.size > s.size-y.value {
		return v, fmt.Errorf("%w: %q is not in its section", ErrUnsupported, y.name)
	}
	if s.kind != kindNoBits {
		v.Init = s.bytes(f)[y.value : y.value+y.size]
	}
	return v, nil
}

// alignment is what a variable at value of a section is aligned to.
func alignment(s *section, value uint64) uint64 {
	align := uint64(8)
	if s.align >= 1 && s.align <= 4096 && s.align&(s.align-1) == 0 {
		align = max(align, s.align)
	}
	for value%align != 0 {
		align /= 2
	}
	return max(align, 8) // never less than the largest scalar's
}

// Move returns the cubin with vars, of Find, at base plus their offsets.
func Move(img []byte, vars []ptxvars.Var, base uint64) ([]byte, error) {
	f, err := parse(append([]byte(nil), img...))
	if err != nil {
		return nil, err
	}
	addr := map[string]uint64{}
	for _, v := range vars {
		if _, twice := addr[v.Name]; twice {
			return nil, fmt.Errorf("%w: two are called %s", ErrUnsupported, v.Name)
		}
		addr[v.Name] = base + v.Offset
	}
	looked := uint64(0)
	for i := range f.sections {
		if f.sections[i].relocates() {
			if looked += f.sections[i].size / f.sections[i].entry; looked > maxSymbols {
				return nil, fmt.Errorf("%w: more than %d relocations", ErrUnsupported, maxSymbols)
			}
			if err := f.resolve(&f.sections[i], addr); err != nil {
				return nil, err
			}
		}
	}
	return f.b, nil
}

// resolve applies a section's relocations that name managed variables, and takes them out of it.
func (f *file) resolve(s *section, addr map[string]uint64) error {
	if uint64(s.link) >= uint64(len(f.sections)) || !f.sections[s.link].symbols() {
		return nil // names no symbols
	}
	names := &f.sections[s.link]
	entries := s.bytes(f)
	kept := uint64(0)
	for at := uint64(0); s.entry <= uint64(len(entries))-at; at += s.entry {
		r := decodeRelocation(entries[at:], s.addends)
		if uint64(r.symbol) >= f.count(names) {
			return fmt.Errorf("%w: symbol %d", ErrUnsupported, r.symbol)
		}
		y := f.symbol(names, int(r.symbol))
		to, ok := addr[y.name]
		if !y.managed || !ok {
			if y.managed {
				return fmt.Errorf("%w: %s is defined elsewhere", ErrUnsupported, y.name)
			}
			copy(entries[kept:], entries[at:at+s.entry])
			kept += s.entry
			continue
		}
		if err := f.apply(s, r, to); err != nil {
			return fmt.Errorf("%s: %w", y.name, err)
		}
	}
	f.resize(s, kept)
	return nil
}

// apply writes the address to where a relocation wants it.
func (f *file) apply(s *section, r relocation, to uint64) error {
	if uint64(s.info) >= uint64(len(f.sections)) || f.sections[s.info].kind == kindNoBits {
		return fmt.Errorf("%w: a relocation of no section", ErrUnsupported)
	}
	target := f.sections[s.info].bytes(f)
	off, width := r.offset, uint64(8)
	if r.kind == lower || r.kind == upper {
		off, width = off+4, 4
	}
	if off < r.offset || off > uint64(len(target)) || width > uint64(len(target))-off {
		return fmt.Errorf("%w: a relocation outside of its section", ErrUnsupported)
	}
	target = target[off:]
	if !s.addends && (r.kind == lower || r.kind == upper) && le.Uint32(target) != 0 {
		return fmt.Errorf("%w: half an address with an offset", ErrUnsupported)
	}
	to += r.addend
	switch r.kind {
	case whole, generic:
		if !s.addends {
			to += le.Uint64(target)
		}
		le.PutUint64(target, to)
	case lower:
		le.PutUint32(target, uint32(to))
	case upper:
		le.PutUint32(target, uint32(to>>32))
	default:
		return fmt.Errorf("%w: relocation of kind %#x", ErrUnsupported, r.kind)
	}
	return nil
}
