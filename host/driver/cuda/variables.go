package cuda

import (
	"fmt"
	"log/slog"
	"os"
	"strings"

	"causeway/cuda"
	"causeway/cuda/fatbin"
	"causeway/cuda/wire"
	"causeway/host/driver/cuda/bind"
	"causeway/host/driver/cuda/cubinvars"
	"causeway/host/driver/cuda/ptxvars"
)

/*
The driver chooses where variables of modules lie. A session that may move asks for all of them as
soon as code is loaded, in an order that depends on the code alone, and keeps the addresses beside
the request. When the request is made again in another process, variables that come out elsewhere
refuse it, by name: nothing has been handed over then.
*/

// instance is code as one context has it.
type instance struct {
	of  owner
	ctx uint32
}

// moduleVar is one of an instance's.
type moduleVar struct {
	name     string
	at, size uint64
}

// namesOf lists the variables of the code that the driver takes from an image, as traitsOf does.
func namesOf(code *fatbin.Code, sm int) ([]string, error) {
	_, newest, text := chosen(code, sm)
	if newest == nil {
		newest = text
	}
	if newest == nil { // the driver takes a library of such code, and has nothing of it
		return nil, nil
	}
	b, err := newest.Code()
	if err != nil {
		return nil, err
	}
	switch newest.Format {
	case fatbin.PTX:
		return ptxvars.Names(strings.TrimRight(string(b), "\x00"))
	case fatbin.ELF:
		return cubinvars.Names(b)
	}
	return nil, fmt.Errorf("%w: it is neither text nor machine code", ptxvars.ErrHidden)
}

// nameVariables remembers which variables code has, if the session may move.
func (s *session) nameVariables(of owner, code *fatbin.Code) {
	a := &s.arenas
	if !a.on {
		return
	}
	names, err := namesOf(code, s.compute())
	if err != nil {
		s.hide(of, err.Error())
		return
	}
	if a.names == nil {
		a.names = map[owner][]string{}
	}
	a.names[of] = names
}

// hide notes that code has variables that cannot be told.
func (s *session) hide(of owner, why string) {
	if s.arenas.opaque == nil {
		s.arenas.opaque = map[owner]string{}
	}
	s.arenas.opaque[of] = why
}

// settleVariables finds the variables of code in the call's context, if nobody has. A call that is
// made again must find them where they were.
func (s *session) settleVariables(c *wire.Call, of owner) cuda.Result {
	a, key := &s.arenas, instance{of, c.Ctx}
	names := a.names[of]
	if _, known := a.variables[key]; known || len(names) == 0 || c.Ctx == 0 {
		return cuda.Success
	}
	if res := s.use(c); res != cuda.Success {
		return res
	}
	list := make([]moduleVar, 0, len(names))
	for _, name := range names {
		at, size, res := s.findVariable(of, []byte(name))
		switch {
		case res == cuda.ErrorNotFound && constant(name):
			continue
		case res != cuda.Success:
			s.hide(of, fmt.Sprintf("the driver does not tell where %s is: %v", name, res))
			continue
		}
		if constant(name) { // it holds what its image says, and only code of that image knows where
			if _, again := c.Place(); !again && !c.Replay {
				c.Placed = append(c.Placed, at.Value())
			}
			continue
		}
		if res := s.asPlaced(c, fmt.Sprintf("variable %s of %v", name, of), at.Value()); res != cuda.Success {
			slog.Info("a variable comes out elsewhere", "at", fmt.Sprintf("%#x", at.Value()), "mappings", mappingsAround(at.Value()))
			return res
		}
		list = append(list, moduleVar{name, at.Value(), size})
	}
	if a.variables == nil {
		a.variables = map[instance][]moduleVar{}
	}
	a.variables[key] = list
	return cuda.Success
}

// constant reports whether a name is one that compilers give to texts, which nobody writes, and
// which programs do not ask for.
func constant(name string) bool {
	return strings.HasPrefix(name, "$") || strings.HasPrefix(name, "__unnamed")
}

func (s *session) findVariable(of owner, name []byte) (bind.Address, uint64, cuda.Result) {
	if of.lib {
		return s.drv.LibraryGetGlobal(s.libs.m[of.id], name)
	}
	return s.drv.ModuleGetGlobal(s.modules.m[of.id].handle, name)
}

// forgetVariables drops what was known of instances that are gone.
func (s *session) forgetVariables(gone func(instance) bool) {
	for key := range s.arenas.variables {
		if gone(key) {
			delete(s.arenas.variables, key)
		}
	}
	s.arenas.forgotten++
}

// forgetCode drops what was known of code that is unloaded.
func (s *session) forgetCode(of owner) {
	delete(s.arenas.names, of)
	delete(s.arenas.opaque, of)
	s.forgetVariables(func(i instance) bool { return i.of == of })
}

// hasVariable reports whether a variable of that size is at an address.
func (s *session) hasVariable(at, size uint64) bool {
	for _, list := range s.arenas.variables {
		for _, v := range list {
			if v.at == at && v.size == size {
				return true
			}
		}
	}
	return false
}

// immovableCode names code whose variables cannot be told.
func (s *session) immovableCode() error {
	for of, why := range s.arenas.opaque {
		return immovable("%v: %s", of, why)
	}
	return nil
}

// String names code as ids do.
func (o owner) String() string {
	if o.lib {
		return fmt.Sprintf("library %d", o.id)
	}
	return fmt.Sprintf("module %d", o.id)
}

// mappingsAround lists what of this process lies near an address, and is not small, for whoever
// asks why variables lie there.
func mappingsAround(addr uint64) (list []string) {
	const near, small = 4 << 30, 8 << 20
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return nil
	}
	for line := range strings.Lines(string(maps)) {
		var from, to uint64
		var access string
		if n, _ := fmt.Sscanf(line, "%x-%x %s", &from, &to, &access); n == 3 && to-from >= small && from < addr+near && addr < to+near {
			list = append(list, fmt.Sprintf("%x+%dM %s", from, (to-from)>>20, access))
		}
	}
	return list
}
