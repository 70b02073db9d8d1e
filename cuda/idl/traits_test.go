package idl

import (
	"reflect"
	"strings"
	"testing"
)

// TestTraits: each word of an operation arrives where it belongs, in any order.
func TestTraits(t *testing.T) {
	const fields = "\n in func id\n in event id\n in stream stream\n in attr i32\n in kind u32\n in wide u64"
	for text, want := range map[string]Op{
		"sync worker order none capture any transient":                         {Mode: Sync, Place: "worker", Order: "none", Capture: "any", Effect: Transient},
		"async transient capture node gpu counts launch order stream":          {Mode: Async, Place: "gpu", Order: "stream", Capture: "node", Effect: Transient, Counts: "launch"},
		"wait driver capture wait unrecorded ownresult bare":                   {Mode: Wait, Place: "driver", Capture: "wait", Effect: Unrecorded, OwnResult: true, Bare: true},
		"sync driver capture unsafe when kind 7 modifies func always":          {Mode: Sync, Place: "driver", Capture: "unsafe", CaptureWhen: Condition{"kind", "7"}, Effect: Modifies, Kind: "func", Always: true},
		"sync modifies func keyed attr wide driver capture any":                {Mode: Sync, Place: "driver", Capture: "any", Effect: Modifies, Kind: "func", Keyed: true, Keys: []string{"attr", "wide"}},
		"sync driver capture any modifies func keyed ownresult":                {Mode: Sync, Place: "driver", Capture: "any", Effect: Modifies, Kind: "func", Keyed: true, OwnResult: true},
		"async gpu capture refused transient counts bytes awaited when kind K": {Mode: Async, Place: "gpu", Capture: "refused", Effect: Transient, Counts: "bytes", Awaited: Condition{"kind", "K"}},
	} {
		f, err := Parse("t.idl", "const K u32 4\nop A "+text+fields)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		got := f.Ops[0]
		got.Pos, got.Name, got.Num, got.In, got.InLen = Pos{}, "", 0, nil, 0
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v, want %+v", text, got, want)
		}
	}
}

// TestTraitErrors: what nobody may guess has to be said, once, with a word that exists, and must
// not contradict the rest.
func TestTraitErrors(t *testing.T) {
	for text, want := range map[string]string{
		"sync capture any transient":                                              "op A: who executes it?",
		"sync driver transient":                                                   "op A: what does a capture do to it?",
		"sync driver capture any":                                                 "op A: what is recorded of it?",
		"async gpu capture node transient\n in s stream":                          "op A: what is its work counted as?",
		"sync driver gpu capture any transient":                                   "op A: gpu is said twice",
		"sync driver driver capture any transient":                                "op A: driver is said twice",
		"sync driver capture any capture any transient":                           "op A: capture is said twice",
		"sync driver capture any transient creates func":                          "op A: creates is said twice",
		"sync driver capture any creates func transient":                          "op A: transient is said twice",
		"sync driver capture sometimes transient":                                 "op A: capture is said twice, or with",
		"sync driver capture any transient order all":                             "op A: order is said twice, or with",
		"sync driver capture any modifies table":                                  "op A: modifies is said twice, or with",
		"sync driver capture any transient counts":                                "op A: counts is said twice, or with",
		"sync driver capture any transient awaited":                               "op A: awaited is said twice, or with",
		"sync driver capture any transient often":                                 "op A: unknown word often",
		"sync driver capture any transient keyed":                                 "op A: unknown word keyed",
		"sync driver capture any transient order none":                            "op A: order none is for what no driver sees",
		"sync driver capture any transient order stream\n in a u32":               "op A: order stream without a stream or an event",
		"sync worker capture unsafe transient":                                    "op A: what the worker answers itself",
		"sync worker capture any order stream transient\n in s stream":            "op A: what the worker answers itself",
		"sync driver capture node transient\n in a u32":                           "op A: capture node is for work of a stream",
		"async gpu capture any transient counts nothing\n in s stream":            "op A: a capture takes up the work of a stream",
		"sync driver capture any destroys func keyed a\n in func id\n in a u32":   "op A: keyed is for modifies",
		"sync driver capture any modifies func keyed b\n in func id\n in a u32":   "op A: it has no field b",
		"sync driver capture any modifies func keyed a\n in func id\n in a bytes": "op A: it has no field a of a fixed size",
		"sync driver capture any marks event\n in event id":                       "op A: marks is for async",
		"sync driver capture any retains ctx\n in ctx id":                         "op A: retains ctx without a newid",
		"sync driver capture any transient\n in names bytes":                      "op A: field names gives out ids: ownresult",
		"sync driver capture unsafe when k 1 transient\n in a u32":                "op A: no field k of type u32 can be 1",
		"sync driver capture unsafe when a K transient\n in a u32":                "op A: no field a of type u32 can be K",
		"sync driver capture any transient awaited when a 1\n in a bytes":         "op A: no field a of type u32 can be 1",
	} {
		if _, err := Parse("t.idl", "op A "+text); err == nil || !strings.HasPrefix(err.Error(), "t.idl:") || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}

// TestOwnReply: who may bring another's error to the guest.
func TestOwnReply(t *testing.T) {
	for text, want := range map[string]bool{
		"driver capture any transient":                           false,
		"driver capture any modifies func\n in func id":          false,
		"driver capture any unrecorded\n in graph id":            false,
		"driver capture any unrecorded ownresult\n in graph id":  true,
		"driver capture any unrecorded\n in graph newid":         true,
		"driver capture any transient always":                    true,
		"worker capture any transient":                           true,
		"driver capture any creates func\n in func newid":        true,
		"driver capture any destroys func\n in func id":          true,
		"driver capture any releases ctx\n in ctx id":            true,
		"driver capture any resets ctx\n in ctx id":              true,
		"driver capture any unrecorded ownresult\n in fresh u32": true,
	} {
		f, err := Parse("t.idl", "op A sync "+text)
		if err != nil {
			t.Fatal(err)
		}
		if got := f.Ops[0].OwnReply(); got != want {
			t.Errorf("%s: %v", text, got)
		}
	}
}
