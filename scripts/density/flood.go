package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// floods has one VM open sessions as fast as it can, and measures how long another's take to start
// meanwhile.
func (t *test) floods(ctx context.Context) error {
	if t.flood == 0 {
		return nil
	}
	bad, _, _, err := t.attach(ctx, "bad", 2*t.perVM)
	if err != nil {
		return err
	}
	good, _, _, err := t.attach(ctx, "good", 4)
	if err != nil {
		return errors.Join(err, bad.close())
	}
	var alone, under time.Duration
	for range tries {
		if alone, under, err = t.flooded(ctx, good, bad); err != nil {
			return err
		}
		if under <= max(mostFlood*alone, mostFloodAnyhow) {
			break
		}
	}
	t.bound(under <= max(mostFlood*alone, mostFloodAnyhow), "under flood a session takes %v to start, alone %v", under, alone)
	err = errors.Join(t.detach(ctx, "bad", bad), t.detach(ctx, "good", good))
	return errors.Join(err, t.settle("worker", 0, settling), t.settle("device", 0, settling))
}

// flooded returns how long good's sessions take to start, the median, alone and while bad opens as
// many as it can.
func (t *test) flooded(ctx context.Context, good, bad *vm) (time.Duration, time.Duration, error) {
	alone, err := sample(good, 20, time.Now())
	if err != nil {
		return 0, 0, err
	}
	line("one session at a time", "%v", alone)

	flooding, stop := context.WithCancel(ctx)
	defer stop()
	var opened, refused atomic.Int64
	var wg sync.WaitGroup
	for lane := range 8 {
		wg.Go(func() {
			var list []*session
			defer func() {
				for _, s := range list {
					_ = s.Close()
				}
			}()
			for n := 0; flooding.Err() == nil; n++ {
				s, err := bad.start(uint32(10000 + 1000*lane + n%1000))
				if err != nil {
					refused.Add(1)
					for _, s := range list {
						_ = s.Close()
					}
					list = nil
					continue
				}
				opened.Add(1)
				list = append(list, s)
			}
		})
	}
	under, err := sample(good, 10, time.Now().Add(t.flood))
	stop()
	wg.Wait()
	if err != nil {
		return 0, 0, fmt.Errorf("the other VM, under flood: %w", err)
	}
	line("the same while another VM floods, 8 at a time", "%v; the flood: %d opened, %d refused", under, opened.Load(), refused.Load())
	return alone.quantile(0.5), under.quantile(0.5), nil
}

// sample starts and ends sessions one after the other: at least n, until a time.
func sample(v *vm, n int, until time.Time) (times, error) {
	var list times
	for i := 0; i < n || time.Now().Before(until); i++ {
		begin := time.Now()
		s, err := v.start(uint32(5000 + i))
		if err != nil {
			return nil, err
		}
		list = append(list, time.Since(begin))
		if err := s.Close(); err != nil {
			return nil, err
		}
		time.Sleep(50 * time.Millisecond)
	}
	return list, nil
}
