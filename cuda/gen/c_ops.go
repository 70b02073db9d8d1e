package main

import (
	"fmt"
	"strings"

	"causeway/cuda/idl"
)

// cOpsHeader declares one encoder per operation and the layout of its fixed parts.
func cOpsHeader(w *writer, f *idl.File) {
	w.cFile("CW_GEN_OPS_H", "gen/cuda_abi.h", "gen/session.h")
	w.f("/*")
	w.f(" * One encoder per operation. Asynchronous ones return 0 once the record is published, the sticky error, or 719; the others")
	w.f(" * return the operation's result. bytes: (pointer, length), copied before the call returns. Results are stored when the")
	w.f(" * operation succeeded (ModuleLoad, LibraryLoad: always), through pointers that may be NULL. bytes that come back: at most cap are")
	w.f(" * copied to buf, *len is the full length.")
	w.f(" */")
	w.f("#pragma GCC visibility push(hidden)\n")
	w.f("/* By number: 1 if a stream does it later, as work that a graph could hold. */")
	w.f("extern const uint8_t cw_op_works[%d];\n", len(f.Ops)+1)
	w.f("/* Which of them run code that may touch any memory, or name memory that nobody has looked at. */")
	w.f("extern const uint8_t cw_op_runs[%d];\n", len(f.Ops)+1)
	w.f("/* In which of them a driver may wait for the device, and the worker with it. */")
	w.f("extern const uint8_t cw_op_drains[%d];\n", len(f.Ops)+1)
	for _, o := range f.Ops {
		cFixed(w, "cw_in_"+o.Name, o.In, o.InLen)
		cFixed(w, "cw_out_"+o.Name, o.Out, o.OutLen)
		if !o.Bare {
			w.f("%s;\n", cProto(&o))
		}
	}
	w.f("#pragma GCC visibility pop\n#endif")
}

// cFixed declares the struct of a fixed part. The wire pads it to 8; so does the struct.
func cFixed(w *writer, name string, fields []idl.Field, size int) {
	if len(fields) == 0 {
		return
	}
	w.f("struct %s {", name)
	end := 0
	for _, fd := range fields {
		w.f("\t%s %s;", cType(fd.Type), fd.Name)
		end = fd.Offset + fieldSize(fd.Type)
	}
	if end < size {
		w.f("\tuint8_t pad_[%d];", size-end)
	}
	w.f("};")
	for _, fd := range fields {
		w.f("_Static_assert(offsetof(struct %s, %s) == %d, \"%s\");", name, fd.Name, fd.Offset, fd.Name)
	}
	w.f("_Static_assert(sizeof(struct %s) == %d, \"%s\");", name, size, name)
}

func fieldSize(t string) int {
	switch t {
	case "u64", "bytes", "data":
		return 8
	}
	return 4
}

func cProto(o *idl.Op) string {
	var params []string
	for _, fd := range o.In {
		if fd.Span() {
			params = append(params, "const void *"+fd.Name, "size_t "+fd.Name+"_len")
		} else {
			params = append(params, cType(fd.Type)+" "+fd.Name)
		}
	}
	for _, fd := range o.Out {
		if fd.Span() {
			params = append(params, "void *"+fd.Name, "size_t "+fd.Name+"_cap", "size_t *"+fd.Name+"_len")
		} else {
			params = append(params, cType(fd.Type)+" *"+fd.Name)
		}
	}
	if len(params) == 0 {
		params = []string{"void"}
	}
	return fmt.Sprintf("CUresult cwop_%s(%s)", o.Name, strings.Join(params, ", "))
}

const cHelpers = `/* A bytes argument on its way into a record. */
struct span_in {
	const void *p;
	size_t len;
	uint32_t blob; /* id, when it was sent ahead */
	int may;       /* may be sent ahead */
	void *own;     /* p then, for put or dropped to free */
};

static size_t var_size(const struct span_in *s, int n)
{
	size_t size = 0;
	for (int i = 0; i < n; i++)
		size += s[i].blob ? 0 : (s[i].len + 7) & ~(size_t)7;
	return size;
}

static CUresult dropped(struct span_in *s, int n, CUresult r)
{
	for (int i = 0; i < n; i++)
		free(s[i].own);
	return r;
}

/* Sends the longest arguments ahead until the rest fits a record. */
static CUresult plan(struct span_in *s, int n, uint32_t fixed, uint32_t *var)
{
	const size_t room = CW_MAX_RECORD - sizeof(struct cw_record) - fixed;
	for (int i = 0; i < n; i++) {
		if (s[i].len > 0x40000000u)
			return dropped(s, n, CUDA_ERROR_INVALID_VALUE);
		if (cw_unlikely(atomic_load_explicit(&cw_copies, memory_order_relaxed) != 0) && !cw_apart(&s[i].p, s[i].len, &s[i].own))
			return dropped(s, n, CUDA_ERROR_OUT_OF_MEMORY);
	}
	while (var_size(s, n) > room) {
		struct span_in *best = NULL;
		for (int i = 0; i < n; i++)
			if (s[i].may && !s[i].blob && s[i].len && (!best || s[i].len > best->len))
				best = &s[i];
		if (!best)
			return dropped(s, n, CUDA_ERROR_INVALID_VALUE);
		CUresult r = cw_blob_send(best->p, best->len, &best->blob);
		if (r)
			return dropped(s, n, r);
	}
	*var = (uint32_t)var_size(s, n);
	return CUDA_SUCCESS;
}

/* Places an argument at *at (from the record's start) and moves *at on. */
static struct cw_span put(uint8_t *rec, struct span_in *s, uint32_t *at)
{
	struct cw_span out = {(uint32_t)s->len, 0};
	if (s->blob) {
		out.off = CW_SPAN_BLOB | s->blob;
	} else if (s->len) {
		out.off = *at;
		memcpy(rec + *at, s->p, s->len);
		*at += ((uint32_t)s->len + 7) & ~7u;
	}
	free(s->own);
	return out;
}

/* Hands out bytes that came back. */
static void take(const struct cw_reply *rep, struct cw_span s, void *buf, size_t cap, size_t *len)
{
	if (s.len && (s.off > rep->len || s.len > rep->len - s.off))
		s.len = 0;
	if (len)
		*len = s.len;
	if (buf && cap && s.len)
		memcpy(buf, rep->data + s.off, s.len < cap ? s.len : cap);
}
`

func cOps(w *writer, f *idl.File) {
	w.cFile("", "<stdlib.h>", "<string.h>", "gen/ops.h", "session/session.h")
	w.f("%s", cHelpers)
	w.f("const uint8_t cw_op_works[%d] = {", len(f.Ops)+1)
	for _, o := range f.Ops {
		if o.Mode == idl.Async && o.Place != "worker" && o.Capture == "node" {
			w.f("\t[%s] = 1,", opMacro(o.Name))
		}
	}
	w.f("};\n")
	w.f("const uint8_t cw_op_runs[%d] = {", len(f.Ops)+1)
	for _, o := range f.Ops {
		if o.Counts == "launch" || o.Name == "StreamWriteValue" || o.Name == "StreamWaitValue" {
			w.f("\t[%s] = 1,", opMacro(o.Name))
		}
	}
	w.f("};\n")
	w.f("const uint8_t cw_op_drains[%d] = {", len(f.Ops)+1)
	for _, o := range f.Ops {
		if o.Drains {
			w.f("\t[%s] = 1,", opMacro(o.Name))
		}
	}
	w.f("};\n")
	for _, o := range f.Ops {
		if !o.Bare {
			cOp(w, &o)
		}
	}
}

// cOp writes one encoder.
func cOp(w *writer, o *idl.Op) {
	w.f("%s\n{", cProto(o))
	var spans []idl.Field
	for _, fd := range o.In {
		if fd.Span() {
			spans = append(spans, fd)
		}
	}
	w.f("\tstruct cw_tx tx;\n\tuint32_t var = 0;\n\tCUresult r;")
	if len(spans) > 0 {
		w.f("\tstruct span_in s[] = {")
		for _, fd := range spans {
			may := 0
			if fd.Type == "bytes" {
				may = 1
			}
			w.f("\t\t{%s, %s_len, 0, %d, NULL},", fd.Name, fd.Name, may)
		}
		w.f("\t};\n\tr = plan(s, %d, %d, &var);\n\tif (r)\n\t\treturn r;", len(spans), o.InLen)
	}
	reply := 0
	if o.Mode != idl.Async {
		reply = 1
	}
	w.f("\tr = cw_begin(&tx, %s, %d, var, %d);\n\tif (r)", opMacro(o.Name), o.InLen, reply)
	if len(spans) > 0 {
		w.f("\t\treturn dropped(s, %d, r);", len(spans))
	} else {
		w.f("\t\treturn r;")
	}
	cFill(w, o, len(spans) > 0)
	if reply == 0 {
		w.f("\treturn cw_commit(&tx);\n}\n")
		return
	}
	w.f("\tstruct cw_reply rep = {0};\n\tr = cw_commit_wait(&tx, &rep);\n\tif (r)\n\t\treturn r;\n\tr = rep.result;")
	if len(o.Out) > 0 {
		cond := "r == CUDA_SUCCESS && "
		if o.Always {
			cond = ""
		}
		w.f("\tif (%srep.len >= sizeof(struct cw_out_%s)) {", cond, o.Name)
		w.f("\t\tstruct cw_out_%s out;\n\t\tmemcpy(&out, rep.data, sizeof out);", o.Name)
		for _, fd := range o.Out {
			if fd.Span() {
				w.f("\t\ttake(&rep, out.%s, %s, %s_cap, %s_len);", fd.Name, fd.Name, fd.Name, fd.Name)
			} else {
				w.f("\t\tif (%s)\n\t\t\t*%s = out.%s;", fd.Name, fd.Name, fd.Name)
			}
		}
		if !o.Always {
			w.f("\t} else if (r == CUDA_SUCCESS) {\n\t\tr = CUDA_ERROR_UNKNOWN; /* a worker that answers less than it should */")
		}
		w.f("\t}")
	}
	w.f("\tcw_reply_release(&rep);\n\treturn r;\n}\n")
}

func cFill(w *writer, o *idl.Op, spans bool) {
	if len(o.In) == 0 {
		return
	}
	if spans {
		w.f("\tuint32_t at = (uint32_t)sizeof(struct cw_record) + %d;", o.InLen)
	}
	w.f("\tstruct cw_in_%s *in = (void *)(tx.rec + sizeof(struct cw_record));", o.Name)
	i := 0
	for _, fd := range o.In {
		if fd.Span() {
			w.f("\tin->%s = put(tx.rec, &s[%d], &at);", fd.Name, i)
			i++
		} else {
			w.f("\tin->%s = %s;", fd.Name, fd.Name)
		}
	}
}
