package intake

import (
	"maps"
	"math/rand/v2"
	"net"
	"testing"
)

// TestBoundsByChance: connections come and go. Each bound holds to the last, of all and of one, and
// whoever goes leaves a place, and nothing else.
func TestBoundsByChance(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for what, c := range map[string]struct {
		enter     func(i *Intake, who string) bool
		leave     func(i *Intake, who string)
		state     func(i *Intake) (int, map[string]int)
		most, one int
	}{
		"waiting": {(*Intake).enter, (*Intake).leave, func(i *Intake) (int, map[string]int) { return i.waiting, i.from }, mostWaiting, mostFromOne},
		"hosts":   {(*Intake).enterHost, (*Intake).leaveHost, func(i *Intake) (int, map[string]int) { return i.controls, i.hosts }, mostControls, mostOfOneHost},
	} {
		i, all, of := &Intake{}, 0, map[string]int{}
		for n := range 12000 {
			who := string(rune('a' + rng.IntN(20)))
			if leaving := n/2000%2 == 1; rng.IntN(4) > 0 == leaving {
				// They fill up, then most leave.
				if of[who] > 0 {
					c.leave(i, who)
					if all, of[who] = all-1, of[who]-1; of[who] == 0 {
						delete(of, who)
					}
				}
			} else if in := all < c.most && of[who] < c.one; c.enter(i, who) != in {
				t.Fatalf("%s: %d of %d are in, %d of %d of that one: the next is let in: %v", what, all, c.most, of[who], c.one, !in)
			} else if in {
				all, of[who] = all+1, of[who]+1
			}
			if got, each := c.state(i); got != all || !maps.Equal(each, of) && n > 0 {
				t.Fatalf("%s: %d, %v, not %d, %v", what, got, each, all, of)
			}
		}
	}
}

// TestOneMachine: a machine counts as one by all addresses that it may take in its network.
func TestOneMachine(t *testing.T) {
	at := func(text string) string {
		a, err := net.ResolveTCPAddr("tcp", text)
		if err != nil {
			t.Fatal(err)
		}
		return address(a)
	}
	for _, same := range [][2]string{
		{"192.0.2.1:1", "192.0.2.1:2"},
		{"192.0.2.1:1", "[::ffff:192.0.2.1]:2"},
		{"[2001:db8:0:1::1]:1", "[2001:db8:0:1:ffff::2]:2"},
		{"[fe80::1%lo]:1", "[fe80::2%lo]:2"},
	} {
		if a, b := at(same[0]), at(same[1]); a != b || a == "" {
			t.Errorf("%v are %q and %q", same, a, b)
		}
	}
	for _, others := range [][2]string{
		{"192.0.2.1:1", "192.0.2.2:1"},
		{"[2001:db8:0:1::1]:1", "[2001:db8:0:2::1]:1"},
		{"[fe80::1%lo]:1", "[fe80::1%eth0]:1"},
	} {
		if a, b := at(others[0]), at(others[1]); a == b {
			t.Errorf("%v are both %q", others, a)
		}
	}
	i, many := &Intake{}, 0
	for n := range mostWaiting {
		if i.enter(address(&net.TCPAddr{IP: net.IP{0: 0x20, 1: 1, 14: byte(n >> 8), 15: byte(n)}})) {
			many++
		}
	}
	if many > mostFromOne || !i.enter(at("192.0.2.1:1")) {
		t.Errorf("one machine has %d of %d places", many, mostWaiting)
	}
}
