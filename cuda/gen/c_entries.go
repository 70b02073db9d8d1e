package main

import (
	"strings"

	"causeway/cuda/idl"
)

// prototype writes a function's head; first is an extra leading parameter or empty.
func prototype(name, first string, params []idl.Param) string {
	var list []string
	if first != "" {
		list = append(list, first)
	}
	for _, p := range params {
		list = append(list, p.Type+space(p.Type)+p.Name)
	}
	if len(list) == 0 {
		list = []string{"void"}
	}
	return "CUresult " + name + "(" + strings.Join(list, ", ") + ")"
}

// implementation is the prototype of the hand-written function behind an entry.
func implementation(e *idl.Entry) string {
	first := ""
	if e.Twin != "" {
		first = "int ptds"
	}
	return prototype("cwi_"+e.As, first, e.Params)
}

func cEntriesHeader(w *writer, f *idl.File) {
	w.cFile("CW_GEN_ENTRIES_H", "gen/cuda_abi.h")
	w.f("/*")
	w.f(" * What is written by hand: one function per exported symbol that is not refused. The exported symbol calls it after its preamble")
	w.f(" * (initialised? forked? sticky error?); the comment says which. ptds is 1 when the per-thread variant was called: stream 0 is then")
	w.f(" * the calling thread's own stream.")
	w.f(" */")
	w.f("#pragma GCC visibility push(hidden)")
	theme := ""
	for _, e := range f.Entries {
		if e.Mode == idl.ModeRefuse || e.As != e.Symbol {
			continue
		}
		if e.Theme != theme {
			theme = e.Theme
			w.f("\n/* --- %s --- */", title(f, theme))
		}
		w.f("%s;%s", implementation(&e), guardNote(&e))
	}
	w.f(`
/* What cuGetProcAddress finds, sorted by name, then ascending by since. thread is the per-thread variant or NULL; it exists for
 * versions from max(since, 7000) on. */
struct cw_proc {
	const char *name;
	int since;
	void *plain;
	void *thread;
};
extern const struct cw_proc cw_procs[];
extern const unsigned cw_proc_count;

/* Public name and text of a result; NULL if the API does not define it. */
const char *cw_result_name(int code);
const char *cw_result_text(int code);

#pragma GCC visibility pop
#endif`)
}

func guardNote(e *idl.Entry) string {
	switch e.Guard {
	case "free":
		return " /* no preamble: callable before cuInit */"
	case "alive":
		return " /* works when a context is poisoned */"
	}
	return ""
}

func title(f *idl.File, theme string) string {
	for _, t := range f.Themes {
		if t.Name == theme {
			return t.Title
		}
	}
	return theme
}

// cExports declares every exported symbol.
func cExports(w *writer, f *idl.File) {
	w.cFile("CW_GEN_EXPORTS_H", "gen/cuda_abi.h")
	w.f("/* Every symbol that libcuda.so.1 exports. */\n#pragma GCC visibility push(default)")
	for _, e := range f.Entries {
		for _, s := range e.Symbols() {
			w.f("%s;", prototype(s, "", e.Params))
		}
	}
	w.f("#pragma GCC visibility pop\n\n#endif")
}

// cEntries defines the exported symbols that hand-written functions implement.
func cEntries(w *writer, f *idl.File) {
	w.cFile("", "gen/entries.h", "gen/exports.h", "session/session.h")
	w.f("/* A call that fails names itself with CAUSEWAY_LOG=trace. */\nstatic inline CUresult logged(CUresult res, const char *call)\n{")
	w.f("\treturn cw_unlikely(res) ? cw_failed(call, res) : res;\n}\n")
	for _, e := range f.Entries {
		if e.Mode == idl.ModeRefuse {
			continue
		}
		for i, s := range e.Symbols() {
			var args []string
			if e.Twin != "" {
				args = append(args, string(rune('0'+i)))
			}
			for _, p := range e.Params {
				args = append(args, p.Name)
			}
			call := "cwi_" + e.As + "(" + strings.Join(args, ", ") + ")"
			w.f("%s\n{", prototype(s, "", e.Params))
			switch e.Guard {
			case "free":
				w.f("\treturn logged(%s, %q);", call, s)
			case "alive":
				w.f("\tCUresult r_ = cw_check_alive();\n\treturn logged(cw_unlikely(r_) ? r_ : %s, %q);", call, s)
			default:
				w.f("\tCUresult r_ = cw_check();\n\treturn logged(cw_unlikely(r_) ? r_ : %s, %q);", call, s)
			}
			w.f("}\n")
		}
	}
}

// cRefused defines the exported symbols that answer CUDA_ERROR_NOT_SUPPORTED.
func cRefused(w *writer, f *idl.File) {
	w.cFile("", "gen/exports.h", "session/session.h")
	w.f("#pragma GCC diagnostic ignored \"-Wunused-parameter\"\n")
	w.f("/* Refused entries, by number; each says its name once. */")
	w.f("static const struct {\n\tconst char *symbol, *reason;\n} refused[] = {")
	n := 0
	for _, e := range f.Entries {
		if e.Mode == idl.ModeRefuse {
			w.f("\t{%q, %q},", e.Symbol, e.Reason)
			n++
		}
	}
	w.f("};\nstatic _Atomic unsigned char named[%d];\n", n)
	w.f(`static CUresult refuse(unsigned i)
{
	CUresult r = cw_check_alive();
	if (r)
		return r;
	if (!atomic_exchange_explicit(&named[i], 1, memory_order_relaxed))
		cw_log(CW_LOG_INFO, "%%s is not supported: %%s", refused[i].symbol, refused[i].reason);
	return CUDA_ERROR_NOT_SUPPORTED;
}
`)
	n = 0
	for _, e := range f.Entries {
		if e.Mode != idl.ModeRefuse {
			continue
		}
		for _, s := range e.Symbols() {
			w.f("%s\n{\n\treturn refuse(%d);\n}\n", prototype(s, "", e.Params), n)
		}
		n++
	}
}
