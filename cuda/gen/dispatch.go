package main

import "causeway/cuda/idl"

// signature is a Driver method's parameter list: arguments and reply only where the operation has
// them.
func signature(o *idl.Op, named bool) string {
	a, r := "", ""
	if len(o.In) > 0 {
		a = ", a *" + o.Name + "Args"
	}
	if len(o.Out) > 0 {
		r = ", r *" + o.Name + "Reply"
	}
	if named {
		return "(c *Call" + a + r + ") cuda.Result"
	}
	s := "(*Call"
	if a != "" {
		s += ", *" + o.Name + "Args"
	}
	if r != "" {
		s += ", *" + o.Name + "Reply"
	}
	return s + ") cuda.Result"
}

func wireDriver(w *writer, f *idl.File) {
	w.goFile("wire", "causeway/cuda")
	w.f("// Driver executes operations. See the package comment for what a method may keep and when it may answer.")
	w.f("type Driver interface {\nAdmitter\nUser")
	for _, o := range f.Ops {
		w.f("// %s is %s.", o.Name, describe(&o))
		w.f("%s%s", o.Name, signature(&o, true))
	}
	w.f("}\n")
	w.f("// Unsupported implements Driver: every operation is refused. Drivers embed it.\ntype Unsupported struct{}\n\nvar _ Driver = Unsupported{}\n")
	for _, o := range f.Ops {
		w.f("// %s implements Driver.\nfunc (Unsupported) %s%s { return cuda.ErrorNotSupported }\n", o.Name, o.Name, signature(&o, false))
	}
}

func describe(o *idl.Op) string {
	s := map[idl.Mode]string{idl.Sync: "answered at once", idl.Async: "not answered", idl.Wait: "answered at once or later"}[o.Mode]
	if o.Effect.Recorded() {
		s += "; it " + string(o.Effect) + " a " + o.Kind
	}
	return s
}

func wireDispatch(w *writer, f *idl.File) {
	w.goFile("wire", "causeway/cuda")
	w.f("// requests and replies are reused from call to call, so that decoding allocates nothing but bytes arguments.")
	w.f("type requests struct {")
	for _, o := range f.Ops {
		if len(o.In) > 0 {
			w.f("%s %sArgs", o.Name, o.Name)
		}
	}
	w.f("}\n\ntype replies struct {")
	for _, o := range f.Ops {
		if len(o.Out) > 0 {
			w.f("%s %sReply", o.Name, o.Name)
		}
	}
	w.f("}\n")
	w.f("// call decodes the request of c.Op and executes it. ok is false if it was not executed: see d.in.")
	w.f("func (d *Dispatcher) call(drv Driver, c *Call) (res cuda.Result, ok bool) {\nswitch c.Op {")
	for _, o := range f.Ops {
		dispatchCase(w, &o)
	}
	w.f("}\nreturn 0, false\n}\n")
	w.f("// release drops what the last request and reply refer to.\nfunc (d *Dispatcher) release() {\nd.args, d.reply = nil, nil\nswitch d.last {")
	for _, o := range f.Ops {
		in, out := o.HasIn("bytes", "data"), o.HasOut("bytes")
		if !in && !out {
			continue
		}
		w.f("case Op%s:", o.Name)
		if in {
			w.f("d.requests.%s = %sArgs{}", o.Name, o.Name)
		}
		if out {
			w.f("d.replies.%s = %sReply{}", o.Name, o.Name)
		}
	}
	w.f("}\n}")
}

func dispatchCase(w *writer, o *idl.Op) {
	w.f("case Op%s:", o.Name)
	args := "c"
	if len(o.In) > 0 {
		w.f("a := &d.requests.%s\na.decode(&d.in)\nif !d.in.ok() { return 0, false }\nd.args = a", o.Name)
		args += ", a"
	} else {
		w.f("d.args = &%sArgs{}", o.Name)
	}
	if len(o.Out) > 0 {
		w.f("r := &d.replies.%s\n*r = %sReply{}\nd.reply = r", o.Name, o.Name)
		args += ", r"
	}
	if o.Capture != "any" {
		wireAdmit(w, o)
	}
	if o.Current {
		w.f("if res := drv.Use(c); res != cuda.Success { return res, true }")
	}
	w.f("return drv.%s(%s), true", o.Name, args)
}

// wireAdmit asks before an operation that a capture may change or forbid.
func wireAdmit(w *writer, o *idl.Op) {
	reply := "nil"
	if len(o.Out) > 0 {
		reply = "r"
	}
	when := "d.capturing()"
	if o.CaptureWhen != (idl.Condition{}) {
		when += " && " + holds("a", o.CaptureWhen)
	}
	w.f("if %s {\nif done, res := drv.Admit(c, d.args, %s); done { return res, true }\n}", when, reply)
}
