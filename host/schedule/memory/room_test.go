package memory

import "testing"

// TestRoom: what the limit allows and the room does not is asked for; what is away counts for the
// limit alone.
func TestRoom(t *testing.T) {
	p := page(t, 100)
	a, _ := join(t, p, 10)
	b, _ := join(t, p, 10)
	step := func(what string, got, want bool, short uint64) {
		t.Helper()
		if s := a.Short(); got != want || s != short {
			t.Errorf("%s: %v, short of %d, want %v and %d", what, got, s, want, short)
		}
	}
	step("without bound", a.Reserve(10), true, 0)
	p.SetRoom(30)
	step("within", a.Reserve(20), true, 0)
	step("beyond", a.Reserve(5), false, 5)
	step("a context", a.Enter(), false, 10)
	step("beyond the limit", a.Reserve(71), false, 0)
	if b.Reserve(1) || b.Short() != 1 || a.Short() != 0 {
		t.Error("another session's want is not its own")
	}
	p.AddAway(60)
	if p.Used() != 30 || a.Used() != 90 || p.Away() != 60 {
		t.Errorf("used %d, %d, away %d", p.Used(), a.Used(), p.Away())
	}
	step("the limit, with what is away", a.Reserve(11), false, 0)
	step("within it", a.Reserve(10), false, 10)
	a.Bring(true)
	step("what comes from elsewhere", a.Reserve(1), true, 0)
	a.Bring(false)
	a.Release(1)
	p.SetRoom(40)
	step("with room", a.Reserve(10), true, 0)
	p.AddAway(-60)
	p.SetRoom(0)
	step("as ever", a.Reserve(60), true, 0)
	step("full", a.Reserve(1), false, 0)
	for _, i := range []int{wordRoom, wordAway} { // a worker that lies
		a.words[i] = ^uint64(0)
	}
	a.Reserve(1)
	if p.Room() != 0 || p.Away() != 0 {
		t.Error("the page's owner believes a worker")
	}
}
