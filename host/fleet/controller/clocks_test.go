package controller

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
)

// TestLeadersClocks: a controller whose clock is minutes ahead of another's, or behind, writes
// times of its own into the Lease. While it renews it leads alone, and when it has frozen the other
// leads as soon as ever.
func TestLeadersClocks(t *testing.T) {
	for name, off := range map[string]time.Duration{"ahead": 9 * time.Minute, "behind": -9 * time.Minute} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client := fake.NewClientset()
				held := leaseOf("other", 3)
				seconds := int32(LeaseFor / time.Second)
				held.Spec.LeaseDurationSeconds = &seconds
				renew := func(write func(context.Context, *coordinationv1.Lease) error) {
					now := metav1.NewMicroTime(time.Now().Add(off))
					held.Spec.RenewTime = &now
					if err := write(t.Context(), held); err != nil {
						t.Error(err)
					}
				}
				leases := client.CoordinationV1().Leases("causeway")
				renew(func(ctx context.Context, l *coordinationv1.Lease) error {
					_, err := leases.Create(ctx, l, metav1.CreateOptions{})
					return err
				})
				ctx, end := context.WithCancel(t.Context())
				leads, done := make(chan uint64, 1), make(chan error, 1)
				go func() {
					done <- lead(ctx, &Options{Client: client, Namespace: "causeway", Identity: "me", Health: NewHealth(), Log: slog.New(slog.DiscardHandler)}, func(ctx context.Context, l *leader) error {
						leads <- l.Epoch()
						<-ctx.Done()
						return nil
					})
				}()
				for range 60 { // two minutes
					time.Sleep(renewRetry)
					renew(func(ctx context.Context, l *coordinationv1.Lease) error {
						_, err := leases.Update(ctx, l, metav1.UpdateOptions{})
						return err
					})
				}
				select {
				case <-leads:
					t.Fatal("two lead")
				default:
				}
				frozen := time.Now()
				if epoch := <-leads; epoch != 5 {
					t.Errorf("epoch %d", epoch)
				}
				if took := time.Since(frozen); took < LeaseFor-renewRetry || took > LeaseFor+5*renewRetry {
					t.Errorf("it leads %v after the other's last word", took)
				}
				end()
				if err := <-done; err != nil {
					t.Error(err)
				}
			})
		})
	}
}
