package overview

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// TaintDrain is the taint of a node that is being drained of vGPUs: no new pod comes there,
// whatever it wants, and none that is there has to go.
const TaintDrain = "causeway.dev/drain"

// Drained reports whether a node has the taint.
func Drained(n *corev1.Node) bool {
	return slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Key == TaintDrain })
}

// SetDrained gives a node the taint or takes it away, and says whether that changed anything.
func SetDrained(n *corev1.Node, on bool) bool {
	if Drained(n) == on {
		return false
	}
	if on {
		n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: TaintDrain, Effect: corev1.TaintEffectNoSchedule})
	} else {
		n.Spec.Taints = slices.DeleteFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Key == TaintDrain })
	}
	return true
}

// Remaining are the claims that have a GPU of a node still.
func (f *Fleet) Remaining(node string) (list []Claim) {
	for i := range f.Claims {
		if f.Claims[i].On(node) {
			list = append(list, f.Claims[i])
		}
	}
	return list
}

// interval is how often it is looked again while something is waited for.
const interval = 2 * time.Second

// until calls look every interval until it is done, and say with each text of it that is another
// than before.
func until(ctx context.Context, look func() (text string, done bool, err error), say func(string)) error {
	t := time.NewTicker(interval)
	defer t.Stop()
	for said := ""; ; {
		text, done, err := look()
		if err != nil && ctx.Err() == nil {
			return err
		}
		if err == nil && text != said {
			say(text)
			said = text
		}
		if err == nil && done {
			return nil
		}
		select {
		case <-t.C:
		case <-ctx.Done():
		}
		switch err := ctx.Err(); {
		case errors.Is(err, context.DeadlineExceeded):
			return fmt.Errorf("%w: %s", ErrWaited, said)
		case err != nil:
			return fmt.Errorf("interrupted: %s: %w", said, err)
		}
	}
}

// AwaitEmpty waits until no claim has a GPU of a node, and says which ones have whenever they are
// others.
func AwaitEmpty(ctx context.Context, c Cluster, node string, say func(string)) error {
	return until(ctx, func() (string, bool, error) {
		f, err := Read(ctx, c, "")
		if err != nil {
			return "", false, err
		}
		left := f.Remaining(node)
		if len(left) == 0 {
			return "no claim has a GPU of " + node, true, nil
		}
		var names []string
		for i := range left {
			names = append(names, fmt.Sprintf("%s (pods: %s)", left[i].Key(), strings.Join(left[i].Pods, ", ")))
		}
		return fmt.Sprintf("claims that have a GPU of %s still, %d: %s", node, len(left), strings.Join(names, "; ")), false, nil
	}, say)
}
