package device

import (
	"context"
	"testing"
	"time"

	"causeway/host/inventory"
)

// audited is a device without sessions whose driver says of one process that it has worked for so
// long, each time that it is asked.
func audited(t *testing.T, says func() (pid int, worked time.Duration, err error)) *Device {
	t.Helper()
	o := quietDevice(library(t))
	o.Audit = time.Second
	o.Machine = func(context.Context) (*inventory.Reading, error) {
		pid, worked, err := says()
		return &inventory.Reading{Worked: []map[int]time.Duration{{pid: worked}}, Sampled: []bool{true}}, err
	}
	d, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// TestSessionsBetweenAudits: sessions that come after an audit and are gone before the next are
// accounted for as others are, however seldom they come.
func TestSessionsBetweenAudits(t *testing.T) {
	pid := (&fakeWorker{}).PID()
	worked := time.Duration(0)
	d := audited(t, func() (int, time.Duration, error) { return pid, worked, nil })
	now := time.Now()
	for round := range 4 {
		for range 1 + round*40 { // nobody is there
			now = now.Add(time.Second)
			d.look(t.Context(), now)
		}
		worked += 900 * time.Millisecond
		if round == 2 { // so late that another adds up what the driver says
			worked = 900 * time.Millisecond
		}
		d.departedLocked(&fakeWorker{}) // it came and went
		now = now.Add(time.Second)
		d.look(t.Context(), now)
		if want := time.Duration(round+1) * 900 * time.Millisecond; d.card.total != want || len(d.card.gone) != 0 {
			t.Fatalf("round %d: the driver's account is %v, not %v", round, d.card.total, want)
		}
	}
}

// TestAuditsThatFail: what was used while the driver did not answer, for however long, is in the
// next account.
func TestAuditsThatFail(t *testing.T) {
	pid := (&fakeWorker{}).PID()
	worked, fails := time.Duration(0), error(nil)
	d := audited(t, func() (int, time.Duration, error) { return pid, worked, fails })
	now := time.Now()
	d.look(t.Context(), now)
	fails = context.DeadlineExceeded
	for range 30 {
		d.departedLocked(&fakeWorker{})
		now = now.Add(time.Second)
		d.look(t.Context(), now)
	}
	worked, fails = 30*time.Second, nil
	d.look(t.Context(), now.Add(time.Second))
	if d.card.total != worked {
		t.Errorf("the driver's account is %v, not %v", d.card.total, worked)
	}
}

// TestWorkersCountOnce: a worker whose session is being moved counts once; what another process of
// its number has used, and what was said before a device did not tell for a moment, is not counted.
func TestWorkersCountOnce(t *testing.T) {
	const s = time.Second
	type table = map[int]time.Duration
	var c card
	for _, step := range []struct {
		what string
		list table
		pids []int
		want time.Duration
	}{
		{"twice in the list", table{1: s, 2: 60 * s}, []int{1, 1, 1}, s},
		{"its number was another's", table{1: s, 2: 62 * s}, []int{1, 2}, 2 * s},
		{"a device that does not tell", nil, []int{1, 2}, 0},
		{"it tells again", table{1: 2 * s, 2: 63 * s}, []int{1, 2}, 2 * s},
	} {
		r := &inventory.Reading{Worked: []table{step.list}, Sampled: []bool{step.list != nil}}
		if used, each, ok := c.worked(r, step.pids); used != step.want || ok != (step.list != nil) || each[1] > s {
			t.Errorf("%s: %v of %v, not %v", step.what, used, each, step.want)
		}
	}
}
