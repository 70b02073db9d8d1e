package controller

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// LeaseName is the Lease by which one controller leads.
const LeaseName = "causeway-fleet"

// Times of leading: another one leads LeaseFor after the last word of one that froze.
const (
	LeaseFor   = 15 * time.Second
	renewFor   = 10 * time.Second
	renewRetry = 2 * time.Second
)

// ErrNotLeader says that another controller leads.
var ErrNotLeader = errors.New("another controller leads the fleet")

// leader is this controller while it leads. Its epoch is how often the Lease has changed hands.
type leader struct {
	client              kubernetes.Interface
	namespace, identity string
	epoch               uint64
	resign              context.CancelCauseFunc
	log                 *slog.Logger
}

// Epoch implements lease.Leader.
func (l *leader) Epoch() uint64 { return l.epoch }

// Confirm implements lease.Leader: whoever the API server says leads now goes above what a host has
// heard, for somebody may have deleted the Lease meanwhile. Anybody else stops.
func (l *leader) Confirm(ctx context.Context, highest uint64) error {
	if _, err := l.leads(ctx); err != nil {
		if errors.Is(err, ErrNotLeader) {
			l.resign(err)
		}
		return err
	}
	l.log.Warn("a GPU host has heard of a newer controller, and this one leads: it goes on there as the newest", "highest", highest, "epoch", l.epoch)
	return nil
}

// leads reports how often the Lease has changed hands, if this one has it by the API server's word
// of now.
func (l *leader) leads(ctx context.Context) (uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, renewFor)
	defer cancel()
	o, err := l.client.CoordinationV1().Leases(l.namespace).Get(ctx, LeaseName, metav1.GetOptions{})
	if err != nil {
		return 0, fmt.Errorf("who leads the fleet: %w", err)
	}
	if o.Spec.HolderIdentity == nil || *o.Spec.HolderIdentity != l.identity {
		return 0, ErrNotLeader
	}
	if o.Spec.LeaseTransitions == nil {
		return 0, nil
	}
	return uint64(max(0, *o.Spec.LeaseTransitions)), nil
}

// lead has work done whenever this controller leads, until ctx ends. A controller that leads no
// more starts nothing, and waits to lead again.
func lead(ctx context.Context, o *Options, work func(context.Context, *leader) error) error {
	client, namespace, identity, log := o.Client, o.Namespace, o.Identity, o.Log
	for ctx.Err() == nil {
		term, resign := context.WithCancelCause(ctx)
		l := &leader{client: client, namespace: namespace, identity: identity, resign: resign, log: log}
		done := make(chan error, 1)
		e, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
			Name:          LeaseName,
			Lock:          &resourcelock.LeaseLock{LeaseMeta: metav1.ObjectMeta{Namespace: namespace, Name: LeaseName}, Client: client.CoordinationV1(), LockConfig: resourcelock.ResourceLockConfig{Identity: identity}},
			LeaseDuration: LeaseFor, RenewDeadline: renewFor, RetryPeriod: renewRetry, ReleaseOnCancel: true, WatchDog: o.Health.watchdog,
			Callbacks: leaderelection.LeaderCallbacks{
				OnStartedLeading: func(ctx context.Context) { done <- l.work(ctx, work) },
				OnStoppedLeading: func() { resign(ErrNotLeader) },
			},
		})
		if err != nil {
			resign(nil)
			return err
		}
		o.Health.elects(e)
		log.Info("waits to lead the fleet", "identity", identity)
		e.Run(term)
		resign(nil)
		select {
		case err = <-done:
			log.Info("leads the fleet no more", "reason", err)
		default: // it never led
		}
		if ctx.Err() == nil {
			select {
			case <-time.After(renewRetry):
			case <-ctx.Done():
			}
		}
	}
	return nil
}

func (l *leader) work(ctx context.Context, work func(context.Context, *leader) error) error {
	transitions, err := l.leads(ctx)
	if err != nil {
		l.resign(err)
		return err
	}
	l.epoch = transitions + 1
	l.log.Info("leads the fleet", "identity", l.identity, "epoch", l.epoch)
	err = work(ctx, l)
	l.resign(err)
	return err
}
