package agent

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"causeway/host/api"
	"causeway/host/fleet/claim"
	"causeway/host/fleet/publish"
)

// final are errors that no repetition cures.
var final = []error{ErrForbid, ErrDomain, ErrServes, ErrTwice, ErrRenamed, ErrLost, claim.ErrClaim, api.ErrName, api.ErrLimit}

// serve has a pod's domain have the vGPUs of its claims, and says so. A pod whose domain is not
// there yet waits for it: the scheduler may choose the host before anybody has defined the domain
// there. One that runs and whose domain is gone has failed.
func (a *Agent) serve(ctx context.Context, pod *corev1.Pod) error {
	err := a.give(ctx, pod)
	switch {
	case err == nil:
		a.forget(a.describe(pod))
		return a.running(ctx, pod)
	case errors.Is(err, ErrWaits):
		return err
	}
	a.warn(pod, err)
	if !passes(err) || pod.Status.Phase == corev1.PodRunning && errors.Is(err, ErrNoDomain) {
		if gone := a.takeBack(ctx, a.recordsOf(pod.UID)); gone != nil {
			return gone
		}
		return a.fail(ctx, pod, err)
	}
	return err
}

// give does it. What it made for a pod that does not run yet, and of which something fails, goes
// again.
func (a *Agent) give(ctx context.Context, pod *corev1.Pod) error {
	if len(a.Namespaces) > 0 && !slices.Contains(a.Namespaces, pod.Namespace) {
		return ErrForbid
	}
	domain := pod.Annotations[DomainKey]
	if err := checkDomain(domain); err != nil {
		return err
	}
	var claims []*resourceapi.ResourceClaim
	for i := range pod.Spec.ResourceClaims {
		rc, err := a.claim(ctx, pod, pod.Spec.ResourceClaims[i].Name)
		if err != nil {
			return err
		}
		claims = append(claims, rc)
	}
	had := a.recordsOf(pod.UID)
	for _, rc := range claims {
		err := a.giveClaim(ctx, pod, rc, domain)
		if err == nil {
			continue
		}
		a.report(pod, rc, rc.UID, err)
		if pod.Status.Phase != corev1.PodRunning {
			made := slices.DeleteFunc(a.recordsOf(pod.UID), func(r Record) bool {
				return slices.ContainsFunc(had, func(h Record) bool { return h.UID == r.UID })
			})
			err = errors.Join(err, a.takeBack(context.WithoutCancel(ctx), made))
		}
		return err
	}
	return nil
}

// claim is one of a pod's, by its name there, as the API server has it: allocated, and the pod's.
func (a *Agent) claim(ctx context.Context, pod *corev1.Pod, name string) (*resourceapi.ResourceClaim, error) {
	of := claim.OfPod(pod, name)
	if of == "" {
		return nil, ErrWaits
	}
	rc, err := a.Client.ResourceV1().ResourceClaims(pod.Namespace).Get(ctx, of, metav1.GetOptions{})
	if apierrors.IsNotFound(err) || err == nil && (rc.Status.Allocation == nil || !slices.ContainsFunc(rc.Status.ReservedFor, func(r resourceapi.ResourceClaimConsumerReference) bool {
		return r.Resource == "pods" && r.UID == pod.UID
	})) {
		return nil, ErrWaits
	}
	if err != nil {
		return nil, fmt.Errorf("the claim %s: %w", of, err)
	}
	return rc, nil
}

// giveClaim has the domain have a claim's vGPUs. It may be asked for again and again.
func (a *Agent) giveClaim(ctx context.Context, pod *corev1.Pod, rc *resourceapi.ResourceClaim, domain string) error {
	c, err := claim.Read(rc)
	if err != nil {
		return err
	}
	gpus, err := a.Causewayd.GPUs(ctx)
	if err != nil {
		return fmt.Errorf("the host's GPUs: %w", err)
	}
	r := Record{Namespace: rc.Namespace, Claim: rc.Name, UID: rc.UID, Pod: pod.Name, PodUID: pod.UID, Domain: domain}
	var wishes []api.Wish
	for i := range c.Devices() {
		d := &c.Devices()[i]
		if d.Parameters.Serves != claim.VirtualMachine {
			return ErrServes
		}
		id, err := publish.Find(gpus, a.Node, d)
		if err != nil {
			return err
		}
		w := c.Wish(d, id)
		w.Owner = "" // who runs QEMU here says the host's configuration
		wishes, r.VGPUs = append(wishes, w), append(r.VGPUs, d.Name)
	}
	if err := a.note(&r); err != nil {
		return err
	}
	defer a.alone(domain)()
	for i := range wishes {
		v, err := a.Causewayd.Ensure(ctx, wishes[i])
		switch {
		case err != nil:
			return fmt.Errorf("vGPU %s: causewayd does not give it: %w", wishes[i].Name, err)
		case v.State == api.Lost:
			return fmt.Errorf("vGPU %s: %w: %s", wishes[i].Name, ErrLost, v.Why)
		}
		if err := a.Domains.Plug(ctx, domain, wishes[i].Key()); err != nil {
			return fmt.Errorf("domain %s, vGPU %s: %w", domain, wishes[i].Name, err)
		}
	}
	return nil
}

// note writes down what is about to be made. A claim that another pod has here is that pod's, and
// of two domains one would have the device and the other a socket that hangs.
func (a *Agent) note(r *Record) error {
	a.noting.Lock()
	defer a.noting.Unlock()
	all, err := a.Records.All()
	for i := range all {
		had := &all[i]
		switch {
		case had.UID != r.UID:
			continue
		case had.PodUID == r.PodUID && had.Domain != r.Domain:
			// An annotation can be changed; who forgets the first domain leaves it with a device
			// that leads nowhere.
			return fmt.Errorf("%w: it has it in %s, not in %s", ErrRenamed, had.Domain, r.Domain)
		case had.PodUID == r.PodUID:
			continue
		}
		if had.Domain != r.Domain || a.lives(had) {
			return fmt.Errorf("%w: the pod %s, the domain %s", ErrTwice, had.Pod, had.Domain)
		}
	}
	if err != nil {
		return fmt.Errorf("what this host has of claims: %w", err)
	}
	return a.Records.Put(r)
}

// lives: the record's pod is there.
func (a *Agent) lives(r *Record) bool {
	o, there, err := a.pods.GetStore().GetByKey(r.Namespace + "/" + r.Pod)
	pod, is := o.(*corev1.Pod)
	return err == nil && there && is && pod.UID == r.PodUID
}

// recordsOf are what the host has for a pod. What cannot be read is said where the agent begins.
func (a *Agent) recordsOf(pod types.UID) []Record {
	all, _ := a.Records.All()
	return slices.DeleteFunc(all, func(r Record) bool { return r.PodUID != pod })
}

// takeBackOthers takes back what the host has of a pod of that name which is another.
func (a *Agent) takeBackOthers(ctx context.Context, key string, pod *corev1.Pod) error {
	all, _ := a.Records.All()
	return a.takeBack(ctx, slices.DeleteFunc(all, func(r Record) bool { return r.Namespace+"/"+r.Pod != key || pod != nil && pod.UID == r.PodUID }))
}

// takeBack takes devices out of their domains and ends the vGPUs. A guest that does not let go
// keeps its vGPU, and it is tried again. With a domain that is gone nobody uses it.
func (a *Agent) takeBack(ctx context.Context, list []Record) error {
	var errs []error
	for i := range list {
		if err := a.takeBackOne(ctx, &list[i]); err != nil {
			errs = append(errs, fmt.Errorf("the claim %s/%s is not taken back from the domain %s yet: %w", list[i].Namespace, list[i].Claim, list[i].Domain, err))
		}
	}
	return errors.Join(errs...)
}

func (a *Agent) takeBackOne(ctx context.Context, r *Record) error {
	defer a.alone(r.Domain)()
	for _, name := range r.VGPUs {
		vm := claim.VM(r.UID)
		if err := a.Domains.Unplug(ctx, r.Domain, vm+"/"+name); err != nil && !errors.Is(err, ErrNoDomain) {
			return err
		}
		err := a.Causewayd.Release(ctx, vm, name, false)
		var e *api.Error
		if err != nil && !(errors.As(err, &e) && e.Status == http.StatusNotFound) {
			return err
		}
	}
	a.mu.Lock()
	delete(a.reported[r.Namespace+"/"+r.Pod], r.UID)
	a.mu.Unlock()
	a.Log.Info("a claim is taken back", "claim", r.Namespace+"/"+r.Claim, "domain", r.Domain)
	return a.Records.Remove(r.UID)
}
