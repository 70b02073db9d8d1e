package idl

import (
	"errors"
	"slices"
	"strings"
)

// What an operation can say of itself, and with which words: cuda/api/ops.idl explains them.
var (
	places   = []string{"worker", "driver", "gpu"}
	orders   = []string{"stream", "none"} // unsaid: "all"
	captures = []string{"any", "node", "refused", "unsafe", "wait"}
	counts   = []string{"nothing", "launch", "bytes", "guest"}
	effects  = []string{string(Creates), string(Destroys), string(Retains), string(Releases), string(Modifies), string(Marks), string(Resets)}
	flags    = []string{"ownresult", "always", "bare", "current", "drains"}
	// others are the further words that may follow the fields of keyed.
	others = []string{"order", "capture", "counts", "awaited", string(Transient), string(Unrecorded)}
)

// Condition restricts an attribute to requests with a value in a field: a number, or the name of a
// constant. The zero Condition holds.
type Condition struct{ Field, Value string }

// words reads the attributes of an operation one behind the other.
type words struct {
	line
	op   *Op
	rest []string
}

// take is the next word if it is one of those that are allowed.
func (w *words) take(allowed []string) (s string, ok bool) {
	if len(w.rest) == 0 || !slices.Contains(allowed, w.rest[0]) {
		return "", false
	}
	s, w.rest = w.rest[0], w.rest[1:]
	return s, true
}

// choose is take for what may be said once.
func (w *words) choose(to *string, allowed []string) bool {
	if *to != "" {
		return false
	}
	s, ok := w.take(allowed)
	*to = s
	return ok
}

// condition reads "when FIELD VALUE", if it is there.
func (w *words) condition() (c Condition) {
	if len(w.rest) >= 3 && w.rest[0] == "when" {
		c, w.rest = Condition{w.rest[1], w.rest[2]}, w.rest[3:]
	}
	return c
}

// attribute reads one attribute into the operation.
func (w *words) attribute() error {
	o, word := w.op, w.rest[0]
	w.rest = w.rest[1:]
	ok := true
	switch {
	case slices.Contains(places, word):
		ok, o.Place = o.Place == "", word
	case word == "order":
		ok = w.choose(&o.Order, orders)
	case word == "capture":
		ok = w.choose(&o.Capture, captures)
		o.CaptureWhen = w.condition()
	case word == "counts":
		ok = w.choose(&o.Counts, counts)
	case word == "awaited":
		o.Awaited = w.condition()
		ok = o.Awaited != Condition{}
	case word == string(Transient) || word == string(Unrecorded):
		ok, o.Effect = o.Effect == "", Effect(word)
	case slices.Contains(effects, word):
		ok = o.Effect == "" && w.choose(&o.Kind, Kinds)
		o.Effect = Effect(word)
		w.keys()
	case slices.Contains(flags, word):
		to := map[string]*bool{"ownresult": &o.OwnResult, "always": &o.Always, "bare": &o.Bare, "current": &o.Current, "drains": &o.Drains}[word]
		ok, *to = !*to, true
	default:
		return w.Errorf("op %s: unknown word %s", o.Name, word)
	}
	if !ok {
		return w.Errorf("op %s: %s is said twice, or with something that it cannot be", o.Name, word)
	}
	return nil
}

// keys reads "keyed [FIELD ...]", if it is there.
func (w *words) keys() {
	if _, w.op.Keyed = w.take([]string{"keyed"}); !w.op.Keyed {
		return
	}
	for len(w.rest) > 0 && !slices.Contains(slices.Concat(places, effects, flags, others), w.rest[0]) {
		w.op.Keys = append(w.op.Keys, w.rest[0])
		w.rest = w.rest[1:]
	}
}

// checkTraits verifies that the operation says what nobody may guess, and nothing that contradicts
// it.
func (o *Op) checkTraits(consts []Const) error {
	var errs []error
	no := func(bad bool, format string, args ...any) {
		if bad {
			errs = append(errs, o.Errorf("op "+o.Name+": "+format, args...))
		}
	}
	stream := o.HasIn("stream")
	no(o.Place == "", "who executes it? %s", strings.Join(places, ", "))
	no(o.Capture == "", "what does a capture do to it? capture %s", strings.Join(captures, ", "))
	no(o.Effect == "", "what is recorded of it? An effect, transient or unrecorded")
	no(o.Place == "gpu" && o.Counts == "", "what is its work counted as? counts %s", strings.Join(counts, ", "))
	no(o.Place == "gpu" && stream && o.Capture == "any", "a capture takes up the work of a stream, or refuses it")
	no((o.Capture == "node" || o.Capture == "refused") && !stream, "capture %s is for work of a stream", o.Capture)
	no(o.Place == "worker" && (o.Order == "stream" || o.Capture != "any"), "what the worker answers itself has no stream, and no capture sees it")
	no(o.Place == "worker" && o.Current, "a context is current for a driver")
	no(o.Place != "worker" && o.Order == "none", "order none is for what no driver sees")
	no(o.Order == "stream" && !stream && !slices.ContainsFunc(o.In, func(f Field) bool { return f.Kind == "event" }), "order stream without a stream or an event")
	no(o.Drains && (o.Place != "driver" || o.Mode == Wait), "drains is for calls of a driver in which the worker waits")
	no(o.Keyed && o.Effect != Modifies && o.Effect != Resets, "keyed is for modifies and resets")
	no(o.Effect == Marks && (o.Mode != Async || !o.HasIn("id")), "marks is for async operations on an id")
	for _, name := range []string{"fresh", "names"} {
		no(o.field(name) != nil && !o.OwnReply(), "field %s gives out ids: ownresult", name)
	}
	for _, k := range o.Keys {
		no(o.field(k) == nil || o.field(k).Span(), "it has no field %s of a fixed size", k)
	}
	for _, c := range []Condition{o.CaptureWhen, o.Awaited} {
		if c == (Condition{}) {
			continue
		}
		known := strings.Trim(c.Value, "0123456789") == "" || slices.ContainsFunc(consts, func(k Const) bool { return k.Name == c.Value })
		no(o.field(c.Field) == nil || o.field(c.Field).Type != "u32" || !known, "no field %s of type u32 can be %s", c.Field, c.Value)
	}
	return errors.Join(errs...)
}

// OwnReply reports whether the reply may not bring the error of another operation: it is the
// worker's own affair, or the guest must learn that an object began or ended, what an id names, or
// what the fields say.
func (o *Op) OwnReply() bool {
	return o.OwnResult || o.Place == "worker" || o.Always || o.Effect.Begins() || o.Effect.Ends() || o.HasIn("newid")
}

// field finds a field of the request, nil if there is none.
func (o *Op) field(name string) *Field {
	if i := slices.IndexFunc(o.In, func(f Field) bool { return f.Name == name }); i >= 0 {
		return &o.In[i]
	}
	return nil
}

// KeyFields are the fields of Keys, which Check has found.
func (o *Op) KeyFields() (list []Field) {
	for _, k := range o.Keys {
		list = append(list, *o.field(k))
	}
	return list
}
