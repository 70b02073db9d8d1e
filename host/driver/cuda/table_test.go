package cuda

import "testing"

// TestHotFindsWhatIsThere: what is found without a search is what the table has under that number,
// whatever left it, came into it or took another's place meanwhile.
func TestHotFindsWhatIsThere(t *testing.T) {
	var list table[module]
	there := func(id uint32, ctx uint32) {
		t.Helper()
		for range 2 {
			if v, ok := list.hot(id); ok != (ctx != 0) || v.ctx != ctx {
				t.Errorf("%d: %v %v, want context %d", id, v, ok, ctx)
			}
		}
	}
	there(0, 0)
	there(7, 0)
	for _, id := range []uint32{7, 7 + recents, 8} {
		if !list.put(id, module{ctx: id}) {
			t.Fatal(id)
		}
	}
	there(0, 0)
	for range 2 { // two that are remembered in one place
		there(7, 7)
		there(7+recents, 7+recents)
	}
	list.drop(7) // which is not the one remembered
	there(7, 0)
	there(7+recents, 7+recents)
	list.set(7+recents, module{ctx: 99})
	there(7+recents, 99)
	if v, ok := list.remove(7 + recents); !ok || v.ctx != 99 {
		t.Error(v, ok)
	}
	there(7+recents, 0)

	there(8, 8)
	list.m[8] = module{ctx: 8, code: code{module: 5}}
	forgetCodeIn(&list, code{module: 5})
	there(8, 0)

	gone := owned[*stream]{}
	gone.put(9, &stream{ctx: 3})
	if _, ok := gone.hot(9); !ok {
		t.Fatal("it is not found")
	}
	gone.contextGone(nil, 3)
	if st, ok := gone.hot(9); ok || st != nil {
		t.Error("a stream outlives its context")
	}
}
