package main

import (
	"context"
	"log/slog"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/record"

	"causeway/host/fleet/overview"
)

// How often it is looked for pods that wait for a claim which is not there, how long one may be
// missing first (a pod and its claim are often made at once), and when it is said again.
const (
	missingEvery = 10 * time.Second
	missingFirst = 15 * time.Second
	missingAgain = 30 * time.Minute
)

// missing has pods say by events that they name a claim which their namespace has not.
type missing struct {
	overview.Cluster
	events record.EventRecorder
	log    *slog.Logger

	seen map[overview.Missing]*waiting
}

// waiting is since when a claim is missing, and when that was reported last.
type waiting struct{ since, reported time.Time }

// run looks until ctx ends.
func (m *missing) run(ctx context.Context) {
	t := time.NewTicker(missingEvery)
	defer t.Stop()
	for {
		select {
		case now := <-t.C:
			if err := m.look(ctx, now); err != nil && ctx.Err() == nil {
				m.log.Warn("pods that name no claim of their namespace are not told", "error", err)
			}
		case <-ctx.Done():
			return
		}
	}
}

// look looks once. The event names no other namespace, and is there whether or not another has a
// claim of that name: it tells nobody what others have.
func (m *missing) look(ctx context.Context, now time.Time) error {
	pods, err := m.Pods(ctx, "")
	if err != nil {
		return err
	}
	claims, err := m.Claims(ctx, "")
	if err != nil {
		return err
	}
	next := map[overview.Missing]*waiting{}
	for _, is := range overview.MissingClaims(pods, claims) {
		w := m.seen[is]
		if w == nil {
			w = &waiting{since: now}
		}
		next[is] = w
		if now.Sub(w.since) < missingFirst || !w.reported.IsZero() && now.Sub(w.reported) < missingAgain {
			continue
		}
		w.reported = now
		m.events.Eventf(&corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: is.Namespace, Name: is.Pod, UID: is.UID}, corev1.EventTypeWarning, "NoResourceClaim",
			"the namespace %s has no ResourceClaim %s, which the pod names: it waits until there is one. A claim of another namespace does not serve it", is.Namespace, is.Claim)
	}
	m.seen = next
	return nil
}
