package cuda

import (
	"fmt"
	"log/slog"
	"maps"
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
The driver chooses where variables of modules lie. A session that may move asks for all of them as soon as code is loaded, in an order that depends
on the code alone, and keeps the addresses beside the request. When the request is made again in another process, variables that come out elsewhere
refuse it, by name: nothing has been handed over then.
*/

// instance is code as one context has it.
type instance struct {
	of  owner
	ctx uint32
}

// moduleVar is one of an instance's. Where it lay when its code was loaded first is what it is called when the session moves.
type moduleVar struct {
	name          string
	at, was, size uint64
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
	if len(names) > 0 {
		a.own.keepImage(of, code)
	}
}

// hide notes that code has variables that cannot be told.
func (s *session) hide(of owner, why string) {
	if s.arenas.opaque == nil {
		s.arenas.opaque = map[owner]string{}
	}
	s.arenas.opaque[of] = why
}

// settleVariables finds the variables of code in the call's context, if nobody has. A call that is made again must find them where they were.
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
	var strayed []moduleVar
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
		v := moduleVar{name, at.Value(), at.Value(), size}
		if a.own.pages != nil && c.Replay {
			if was, ok := c.Place(); ok && was != v.at {
				v.was = was
				strayed = append(strayed, v)
			}
		} else if res := s.asPlaced(c, fmt.Sprintf("variable %s of %v", name, of), v.at); res != cuda.Success {
			slog.Info("a variable comes out elsewhere", "at", fmt.Sprintf("%#x", v.at), "mappings", mappingsAround(v.at))
			return res
		}
		list = append(list, v)
	}
	if len(strayed) > 0 {
		now, err := s.replace(c, of, strayed)
		if v := strayed[0]; err != nil {
			slog.Info("variables come out elsewhere", "of", of, "variables", len(strayed), "first", v.name, "was", fmt.Sprintf("%#x", v.was), "error", err)
			c.Because("variable %s of %v comes out at %#x, and was at %#x: %v", v.name, of, v.at, v.was, err)
			return cuda.ErrorNotSupported
		}
		for i, v := range list {
			if v, ok := now[v.name]; ok {
				list[i] = v
			}
		}
	}
	if a.variables == nil {
		a.variables = map[instance][]moduleVar{}
	}
	a.variables[key] = list
	return cuda.Success
}

// constant reports whether a name is one that compilers give to texts, which nobody writes, and which programs do not ask for.
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
	s.forgetEditions(gone)
	maps.DeleteFunc(s.arenas.own.told, func(key instance, _ map[uint64]bool) bool { return gone(key) })
}

// forgetCode drops what was known of code that is unloaded.
func (s *session) forgetCode(of owner) {
	delete(s.arenas.names, of)
	delete(s.arenas.opaque, of)
	delete(s.arenas.own.images, of)
	s.forgetVariables(func(i instance) bool { return i.of == of })
}

// variableAt is where the variable of that size is that was at an address.
func (s *session) variableAt(was, size uint64) (at uint64, ok bool) {
	for _, list := range s.arenas.variables {
		for _, v := range list {
			if v.was == was && v.size == size {
				return v.at, true
			}
		}
	}
	return 0, false
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

// mappingsAround lists what of this process lies near an address, and is not small, for whoever asks why variables lie there.
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
