package offer

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func descriptors(t *testing.T) int {
	t.Helper()
	l, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(l)
}

func TestBroker(t *testing.T) {
	var b Broker
	before := descriptors(t)
	pipe := [2]int{}
	if err := unix.Pipe2(pipe[:], unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	x, y := NewToken(), NewToken()
	if x == y {
		t.Fatal("tokens repeat")
	}
	if err := b.Offer("one", x, []byte("memory"), pipe[0], Memory{}); err != nil {
		t.Fatal(err)
	}
	if err := b.Offer("two", x, nil, -1, Memory{}); !errors.Is(err, ErrTaken) {
		t.Errorf("second offer of a token: %v", err)
	}
	if err := b.Offer("one", y, make([]byte, MaxBlob+1), -1, Memory{}); !errors.Is(err, ErrFull) {
		t.Errorf("long offer: %v", err)
	}
	if err := b.Offer("one", y, nil, 1<<30, Memory{}); err == nil {
		t.Error("an offer of no descriptor was kept")
	}
	_ = unix.Close(pipe[0])
	if _, _, err := b.Redeem("else", y); !errors.Is(err, ErrUnknown) {
		t.Errorf("unknown token: %v", err)
	}
	for range 2 {
		blob, file, err := b.Redeem("else", x)
		if err != nil || string(blob) != "memory" || file < 0 {
			t.Fatalf("%q, %d, %v", blob, file, err)
		}
		if flags, err := unix.FcntlInt(uintptr(file), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC == 0 {
			t.Errorf("flags %#x, %v", flags, err)
		}
		_ = unix.Close(file)
	}
	b.Withdraw("two", x)
	if _, f, err := b.Redeem("else", x); err != nil {
		t.Errorf("withdrawn by another: %v", err)
	} else {
		_ = unix.Close(f)
	}
	b.Withdraw("one", x)
	if _, _, err := b.Redeem("else", x); !errors.Is(err, ErrUnknown) {
		t.Errorf("withdrawn: %v", err)
	}
	_ = unix.Close(pipe[1])
	if n := descriptors(t); n != before {
		t.Errorf("%d descriptors, %d before", n, before)
	}
}

// TestAwait: who waits for a token has it once it is offered, whatever else is before, and no
// longer than it wants.
func TestAwait(t *testing.T) {
	var b Broker
	ctx, cancel := context.WithCancel(context.Background())
	x := NewToken()
	type had struct {
		blob []byte
		err  error
	}
	got := make(chan had)
	for range 2 {
		go func() {
			blob, _, err := b.Await(ctx, "else", x)
			got <- had{blob, err}
		}()
	}
	if err := errors.Join(b.Offer(1, NewToken(), []byte("another"), -1, Memory{}), b.Offer(2, x, []byte("it"), -1, Memory{})); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if h := <-got; h.err != nil || string(h.blob) != "it" {
			t.Errorf("%q, %v", h.blob, h.err)
		}
	}
	cancel()
	if _, _, err := b.Await(ctx, "else", NewToken()); !errors.Is(err, ErrUnknown) || !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

func TestGone(t *testing.T) {
	var b Broker
	f, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	before := descriptors(t)
	var tokens []Token
	for range maxFilesOwner {
		tokens = append(tokens, NewToken())
		if err := b.Offer(1, tokens[len(tokens)-1], nil, int(f.Fd()), Memory{}); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.Offer(1, NewToken(), nil, int(f.Fd()), Memory{}); !errors.Is(err, ErrFull) {
		t.Errorf("one more: %v", err)
	}
	if err := b.Offer(2, NewToken(), []byte("x"), int(f.Fd()), Memory{}); err != nil {
		t.Errorf("another owner: %v", err)
	}
	b.Gone(1)
	b.Gone(2)
	b.Gone(3)
	for _, k := range tokens {
		if _, _, err := b.Redeem("else", k); !errors.Is(err, ErrUnknown) {
			t.Fatal("left behind")
		}
	}
	if n := descriptors(t); n != before {
		t.Errorf("%d descriptors, %d before", n, before)
	}
}

// TestBytes: what is kept for workers is bounded, for one and for all, whatever size and number it
// has, and each that ends gives back its own.
func TestBytes(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	var b Broker
	cost := map[Token]int{}
	whose := map[Token]int{}
	used := map[int]int{}
	all := func() (n int) {
		for _, v := range used {
			n += v
		}
		return n
	}
	full := [2]int{}
	for step := range 120_000 {
		who := max(rng.IntN(20)-16, 0) // mostly one
		if rng.IntN(40) == 0 {
			for tok := range whose {
				b.Withdraw(who, tok) // of another's it takes none
				if whose[tok] == who {
					used[who] -= cost[tok]
					delete(whose, tok)
				}
				break
			}
		}
		if step%40_000 == 39_999 {
			b.Gone(who)
			used[who] = 0
			for tok, o := range whose {
				if o == who {
					delete(whose, tok)
				}
			}
		}
		tok, size := NewToken(), rng.IntN(MaxBlob+1)
		err := b.Offer(who, tok, make([]byte, size), -1, Memory{})
		one, most := used[who]+size+offerCost > maxBytesOwner, all()+size+offerCost > maxBytes
		if (err != nil) != (one || most) || err != nil && !errors.Is(err, ErrFull) {
			t.Fatalf("step %d: %d bytes beside %d of %d: %v", step, size, used[who], all(), err)
		}
		if err == nil {
			cost[tok], whose[tok] = size+offerCost, who
			used[who] += size + offerCost
		} else if one {
			full[0]++
		} else {
			full[1]++
		}
		if b.bytes != all() {
			t.Fatalf("step %d: %d bytes by its own account, %d are there", step, b.bytes, all())
		}
	}
	if full[0] == 0 || full[1] == 0 {
		t.Errorf("refused for one worker's sake %d times, for all %d times", full[0], full[1])
	}
	for who := range 4 {
		b.Gone(who)
	}
	if b.bytes != 0 || len(b.offers) != 0 {
		t.Errorf("%d bytes of %d offers are left", b.bytes, len(b.offers))
	}
}

// TestKept: memory counts for nobody's sake while who shares it has it, and once for all when
// others alone have it, however often and in whichever order it is opened, closed, offered by other
// names, withdrawn, or who had it ends.
func TestKept(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 7))
	var b Broker
	var told int64
	b.OnKept(func(n int64) { told += n })
	type thing struct {
		bytes  uint64
		offers int
		opened map[int]int
	}
	type key struct {
		owner int
		of    uint64
	}
	things := map[key]*thing{} // those that their owner has
	var all []*thing
	tokens := map[Token]*thing{}
	whose := map[Token]key{}
	opens := map[int][]Token{} // by worker
	of := map[int][]*thing{}
	kept := func() (n int64) {
		for _, x := range all {
			if x.offers == 0 && len(x.opened) > 0 {
				n += int64(x.bytes)
			}
		}
		return n
	}
	withdraw := func(tok Token) {
		x := tokens[tok]
		if x.offers--; x.offers == 0 {
			delete(things, whose[tok])
		}
		delete(tokens, tok)
		delete(whose, tok)
	}
	letGo := func(who, i int) {
		x := of[who][i]
		if x.opened[who]--; x.opened[who] == 0 {
			delete(x.opened, who)
		}
	}
	most := int64(0)
	for step := range 6_000 {
		who := rng.IntN(4)
		switch k := rng.IntN(20); {
		case k < 6:
			tok, in := NewToken(), key{who, uint64(rng.IntN(4))}
			bytes := uint64(rng.IntN(3)) << 20
			x := things[in]
			if x == nil || in.of == 0 || bytes == 0 {
				x = &thing{bytes: bytes, opened: map[int]int{}}
				all = append(all, x)
				if bytes != 0 && in.of != 0 {
					things[in] = x
				}
			}
			if in.of == 0 || bytes == 0 {
				in = key{who, 1 << 40}
			}
			x.offers++
			tokens[tok], whose[tok] = x, in
			if err := b.Offer(who, tok, nil, -1, Memory{Bytes: bytes, Of: in.of % (1 << 40)}); err != nil {
				t.Fatal(err)
			}
		case k < 12:
			for tok, x := range tokens {
				if _, _, err := b.Redeem(who, tok); err != nil {
					t.Fatal(err)
				}
				if x.bytes != 0 {
					x.opened[who]++
					opens[who], of[who] = append(opens[who], tok), append(of[who], x)
				}
				break
			}
		case k < 15:
			for tok, in := range whose {
				b.Withdraw(in.owner, tok)
				withdraw(tok)
				break
			}
		case k < 19 && len(opens[who]) > 0:
			i := rng.IntN(len(opens[who]))
			b.LetGo(who, opens[who][i])
			letGo(who, i)
			opens[who], of[who] = slices.Delete(opens[who], i, i+1), slices.Delete(of[who], i, i+1)
			b.LetGo(who, NewToken())
		case rng.IntN(20) == 0:
			b.Gone(who)
			for tok, in := range whose {
				if in.owner == who {
					withdraw(tok)
				}
			}
			for i := range opens[who] {
				letGo(who, i)
			}
			opens[who], of[who] = nil, nil
		}
		if told != kept() {
			t.Fatalf("step %d: told of %d bytes, %d are kept", step, told, kept())
		}
		most = max(most, told)
	}
	if most < 2<<20 {
		t.Errorf("never more than %d bytes kept", most)
	}
	for who := range 4 {
		b.Gone(who)
	}
	if told != 0 || len(b.owners) != 0 {
		t.Errorf("%d bytes are left, of %d workers", told, len(b.owners))
	}
}

// TestLasting: a token of memory that lasts is good for as long as anybody has that open, passed on
// from one to the next while its owner lets go of it, or ends; one of other memory is not. Nobody
// owns it then, what it costs is its own, and nothing is left of it behind the last.
func TestLasting(t *testing.T) {
	f, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for name, end := range map[string]func(*Broker, Token){
		"withdrawn": func(b *Broker, k Token) { b.Withdraw("owner", k) },
		"gone":      func(b *Broker, _ Token) { b.Gone("owner") },
	} {
		before := descriptors(t)
		var b Broker
		var kept int64
		b.OnKept(func(n int64) { kept += n })
		lasts, ends, unopened := NewToken(), NewToken(), NewToken()
		for _, k := range []Token{lasts, ends, unopened} {
			if err := b.Offer("owner", k, []byte("memory"), int(f.Fd()), Memory{Bytes: 10, Lasting: k != ends}); err != nil {
				t.Fatal(err)
			}
		}
		redeem := func(who any, k Token) error {
			_, fd, err := b.Redeem(who, k)
			if err == nil {
				_ = unix.Close(fd)
			}
			return err
		}
		if err := errors.Join(redeem(1, lasts), redeem(1, ends)); err != nil {
			t.Fatal(err)
		}
		if !b.Owned(lasts) || !b.Owned(unopened) || b.Owned(NewToken()) {
			t.Errorf("%s: whose tokens are is not known", name)
		}
		for _, k := range []Token{lasts, ends, unopened} {
			end(&b, k)
		}
		if b.Owned(lasts) || b.Has("owner", lasts) {
			t.Errorf("%s: its owner has it still", name)
		}
		if err := b.Offer("another", lasts, nil, -1, Memory{}); !errors.Is(err, ErrTaken) {
			t.Errorf("%s: its token was given to another: %v", name, err)
		}
		b.Withdraw("owner", lasts) // no more than once
		b.Withdraw("another", lasts)
		for who := 2; who < 5; who++ {
			if err := redeem(who, lasts); err != nil {
				t.Fatalf("%s: passed on to %d: %v", name, who, err)
			}
			if who%2 == 0 {
				b.Gone(who - 1)
			} else {
				b.LetGo(who-1, lasts)
			}
			if who == 2 && kept != 10 || kept > 10 {
				t.Errorf("%s: %d bytes are kept for others", name, kept)
			}
		}
		if redeem(5, ends) == nil || redeem(5, unopened) == nil {
			t.Errorf("%s: what does not last, or nobody has open, is there still", name)
		}
		b.LetGo(4, lasts)
		if err := redeem(5, lasts); !errors.Is(err, ErrUnknown) {
			t.Errorf("%s: behind the last: %v", name, err)
		}
		for who := range 6 {
			b.Gone(who)
		}
		b.Gone("owner")
		if kept != 0 || b.bytes != 0 || b.files != 0 || len(b.offers) != 0 || len(b.owners) != 0 || descriptors(t) != before {
			t.Errorf("%s: %d bytes are kept; %d bytes and %d descriptors of %d offers of %d workers are left", name, kept, b.bytes, b.files, len(b.offers), len(b.owners))
		}
	}
}

// TestOpensAreBounded: nobody has the parent remember more than so many.
func TestOpensAreBounded(t *testing.T) {
	var b Broker
	tok := NewToken()
	if err := b.Offer(1, tok, nil, -1, Memory{Bytes: 1}); err != nil {
		t.Fatal(err)
	}
	for n := range maxPerOwner + 1 {
		_, _, err := b.Redeem(2, tok)
		if (err != nil) != (n == maxPerOwner) {
			t.Fatalf("opened %d times: %v", n, err)
		}
	}
	b.LetGo(2, tok)
	if _, _, err := b.Redeem(2, tok); err != nil {
		t.Error(err)
	}
}

// TestManyMemories: who has offered as much as one may, each of other memory, is forgotten at once:
// others of the virtual GPU wait meanwhile.
func TestManyMemories(t *testing.T) {
	var b Broker
	for i := range uint64(maxPerOwner) {
		if err := b.Offer("a", NewToken(), nil, -1, Memory{Bytes: 4096, Of: i + 1}); err != nil {
			t.Fatal(i, err)
		}
	}
	begin := time.Now()
	b.Gone("a")
	if took := time.Since(begin); took > 2*time.Second {
		t.Errorf("others waited for %v", took)
	}
	if len(b.offers)+len(b.owners)+b.bytes != 0 {
		t.Errorf("%d offers of %d owners, %d bytes are left", len(b.offers), len(b.owners), b.bytes)
	}
}
