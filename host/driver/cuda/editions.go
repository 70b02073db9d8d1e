package cuda

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"

	"causeway/cuda"
	"causeway/cuda/fatbin"
	"causeway/cuda/wire"
	"causeway/host/driver/cuda/bind"
	"causeway/host/driver/cuda/cubinvars"
)

// Code that holds addresses of variables for one context.

// edition is a library's code for one context, or says so of a module, whose code it is.
type edition struct {
	lib   bind.Library
	image bind.Image
	vars  managedVars
}

// replace has code of a context hold the addresses of variables that came out elsewhere than they were, but for constants. It answers with all of list, each where it is now.
func (s *session) replace(c *wire.Call, of owner, list []moduleVar) (now map[string]moduleVar, err error) {
	ctx, ok := s.ctxs.get(c.Ctx)
	if !ok {
		return nil, cuda.ErrorInvalidContext
	}
	b, err := s.machineCodeOf(of)
	if err != nil {
		return nil, err
	}
	constants, err := cubinvars.Constants(b)
	if err != nil {
		return nil, err
	}
	now, addr, vars := map[string]moduleVar{}, map[string]uint64{}, managedVars{}
	for _, v := range list {
		if slices.Contains(constants, v.name) {
			if s.arenas.own.pages[v.was&^(ownPage-1)] == nil {
				return nil, fmt.Errorf("%s: another may be where it was", v.name)
			}
			now[v.name] = v
			continue
		}
		v.at = v.was
		if err := s.back(ctx.dev, v); err != nil {
			return nil, fmt.Errorf("%s: %w", v.name, err)
		}
		now[v.name], addr[v.name], vars[v.name] = v, v.at, struct{ addr, size uint64 }{v.at, v.size}
	}
	if len(addr) == 0 {
		return now, nil
	}
	if b, err = cubinvars.Place(b, addr); err != nil {
		return nil, err
	}
	code, res := s.check(b)
	if res != cuda.Success {
		return nil, res
	}
	if of.lib {
		return now, s.publish(c, of, &edition{image: bind.HoldImage(code, true), vars: vars})
	}
	return now, s.reload(c, of, code, &edition{vars: vars})
}

// machineCodeOf is that of code that is loaded.
func (s *session) machineCodeOf(of owner) ([]byte, error) {
	image, ok := s.arenas.own.images[of]
	if !ok {
		return nil, errors.New("its code is not kept")
	}
	code, res := s.check(image)
	if res != cuda.Success {
		return nil, res
	}
	return s.machineCode(code)
}

// reload has a module be of other code.
func (s *session) reload(c *wire.Call, of owner, code *fatbin.Code, e *edition) error {
	im, opt := bind.HoldImage(code, false), newJITOptions(nil, 0, 0)
	defer im.Release()
	defer opt.Free()
	fresh, res := s.drv.ModuleLoadDataEx(im, opt.Options)
	if res != cuda.Success {
		return res
	}
	m := s.modules.m[of.id]
	s.drv.ModuleUnload(m.handle)
	m.handle = fresh
	s.modules.m[of.id] = m
	s.edit(instance{of, c.Ctx}, e)
	return nil
}

// publish loads an edition, and has what is known of the library in that context be of it.
func (s *session) publish(c *wire.Call, of owner, e *edition) error {
	lib, res := s.drv.LibraryLoadData(e.image, nil, nil)
	if res != cuda.Success {
		e.image.Release()
		return res
	}
	e.lib = lib
	s.edit(instance{of, c.Ctx}, e)
	slog.Info("code has its variables where they were", "code", of, "context", c.Ctx, "variables", len(e.vars))
	for _, f := range s.funcs.m {
		if f.isKernel() && f.lib == of.id {
			if res := s.inEdition(f, c.Ctx, e); res != cuda.Success {
				return res
			}
		}
	}
	for id, m := range s.modules.m {
		if m.library && m.lib == of.id && m.ctx == c.Ctx {
			if m.handle, res = s.drv.LibraryGetModule(lib); res != cuda.Success {
				return res
			}
			s.modules.m[id] = m
		}
	}
	return nil
}

func (s *session) edit(key instance, e *edition) {
	if s.arenas.own.editions == nil {
		s.arenas.own.editions = map[instance]*edition{}
	}
	s.arenas.own.editions[key] = e
}

// inEdition has launches of a kernel in a context take that of an edition.
func (s *session) inEdition(f *function, ctx uint32, e *edition) cuda.Result {
	name, res := s.drv.KernelGetName(f.kernel)
	if res != cuda.Success {
		return res
	}
	k, res := s.drv.LibraryGetKernel(e.lib, []byte(name))
	if res != cuda.Success {
		return res
	}
	if f.in == nil {
		f.in = map[uint32]bind.Kernel{}
	}
	f.in[ctx] = k
	return s.sameAttributes(f.kernel, k, s.ctxs.m[ctx].dev)
}

// sameAttributes gives a kernel what programs have set for another.
func (s *session) sameAttributes(from, to bind.Kernel, dev uint32) cuda.Result {
	for _, attr := range []uint32{cuda.FuncAttrMaxDynamicSharedSizeBytes, cuda.FuncAttrPreferredSharedMemoryCarveout, cuda.FuncAttrRequiredClusterWidth, cuda.FuncAttrRequiredClusterHeight, cuda.FuncAttrRequiredClusterDepth, cuda.FuncAttrNonPortableClusterSizeAllowed, cuda.FuncAttrClusterSchedulingPolicyPreference} {
		want, res := s.drv.KernelGetAttribute(attr, from, dev)
		if res != cuda.Success {
			continue // this driver has none such
		}
		if has, res := s.drv.KernelGetAttribute(attr, to, dev); res == cuda.Success && has == want {
			continue
		}
		if res := s.drv.KernelSetAttribute(attr, want, to, dev); res != cuda.Success {
			return res
		}
	}
	return cuda.Success
}

// editionsOf has a kernel that was just found be of its library's editions, too.
func (s *session) editionsOf(f *function) cuda.Result {
	for key, e := range s.arenas.own.editions {
		if key.of.lib && key.of.id == f.lib {
			if res := s.inEdition(f, key.ctx, e); res != cuda.Success {
				return res
			}
		}
	}
	return cuda.Success
}

// edition is a library's for a context, nil if there is none.
func (s *session) edition(lib, ctx uint32) *edition {
	return s.arenas.own.editions[instance{owner{lib: true, id: lib}, ctx}]
}

// forgetEditions drops those that are gone, behind what is known of their code.
func (s *session) forgetEditions(gone func(instance) bool) {
	for key, e := range s.arenas.own.editions {
		if !gone(key) {
			continue
		}
		delete(s.arenas.own.editions, key)
		for _, f := range s.funcs.m {
			if key.of.lib && f.lib == key.of.id {
				delete(f.in, key.ctx)
			}
		}
		if !e.lib.IsZero() {
			s.note(s.drv.LibraryUnload(e.lib))
			e.image.Release()
		}
	}
}
