package cuda

// ofContext is an object that ends with a context: a pointer to nothing, for the driver, from then
// on.
type ofContext interface {
	of() uint32 // the guest's number of the context, 0: none
	// What else is to be forgotten with it; the driver has ended it, or is about to.
	ended(s *session, id uint32)
}

// owned is a table of such objects. They leave it with their context, so that nothing that is
// looked up in it is of one that is gone, whatever context has the number by then.
type owned[T ofContext] struct{ table[T] }

func (t *owned[T]) contextGone(s *session, ctx uint32) {
	for id, v := range t.m {
		if v.of() == ctx {
			t.drop(id)
			v.ended(s, id)
		}
	}
}

// ofContexts are all tables of such objects.
func (s *session) ofContexts() []interface{ contextGone(s *session, ctx uint32) } {
	return []interface{ contextGone(s *session, ctx uint32) }{
		&s.streams, &s.events, &s.funcs, &s.modules, &s.links, &s.textures, &s.surfaces, &s.texRefs, &s.surfRefs, &s.arrays, &s.mipmaps,
	}
}

func (st *stream) of() uint32               { return st.ctx }
func (e *event) of() uint32                 { return e.ctx }
func (f *function) of() uint32              { return f.ctx }
func (m module) of() uint32                 { return m.ctx }
func (l *link) of() uint32                  { return l.ctx }
func (x shaped[H]) of() uint32              { return x.ctx }
func (t object[H]) of() uint32              { return t.ctx }
func (t reference[H]) of() uint32           { return t.ctx }
func (*stream) ended(*session, uint32)      {}
func (*function) ended(*session, uint32)    {}
func (object[H]) ended(*session, uint32)    {}
func (reference[H]) ended(*session, uint32) {}

func (e *event) ended(s *session, id uint32) { s.unshare(shareEvent, uint64(id)) }

func (m module) ended(s *session, id uint32) {
	if !m.library {
		s.forgetSource(owner{id: id})
		s.forgetCode(owner{id: id})
	}
}

func (l *link) ended(*session, uint32) { l.opt.Free() }

// ended takes an array's bytes off the books. Its parts are of the same context.
func (x shaped[H]) ended(s *session, id uint32) { s.shapedGone(x, id) }

// code is whose a function, a module or a reference of one is: a module's that the guest loaded, or
// a library's, of whatever contexts.
type code struct{ module, lib uint32 }

func (c code) isNone() bool { return c == code{} }
func (c code) whose() code  { return c }

// ofCode is how many in a table are of some code.
func ofCode[T interface{ whose() code }](list *table[T], c code) (n int) {
	for _, v := range list.m {
		if v.whose() == c {
			n++
		}
	}
	return n
}

func forgetCodeIn[T interface{ whose() code }](list *table[T], c code) {
	for id, v := range list.m {
		if v.whose() == c {
			list.drop(id)
		}
	}
}

// unloaded forgets all that is of code that is about to go.
func (s *session) unloaded(c code) {
	forgetCodeIn(&s.funcs.table, c)
	forgetCodeIn(&s.modules.table, c)
	forgetCodeIn(&s.texRefs.table, c)
	forgetCodeIn(&s.surfRefs.table, c)
	s.endGraphsWith(need{code: c})
}
