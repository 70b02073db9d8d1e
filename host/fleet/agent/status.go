package agent

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// running says that the pod's vGPUs are there: its containers, which are nothing, run.
func (a *Agent) running(ctx context.Context, pod *corev1.Pod) error {
	if pod.Status.Phase == corev1.PodRunning {
		return nil
	}
	now := metav1.Now()
	s := &pod.Status
	s.Phase, s.Reason, s.Message, s.StartTime = corev1.PodRunning, "", "", &now
	for _, c := range []corev1.PodConditionType{corev1.PodInitialized, corev1.PodReady, corev1.ContainersReady} {
		setCondition(s, corev1.PodCondition{Type: c, Status: corev1.ConditionTrue, LastTransitionTime: now})
	}
	s.ContainerStatuses = nil
	for _, c := range pod.Spec.Containers {
		yes := true
		s.ContainerStatuses = append(s.ContainerStatuses, corev1.ContainerStatus{Name: c.Name, Image: c.Image, Ready: true, Started: &yes,
			State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: now}}})
	}
	if err := a.write(ctx, pod); err != nil {
		return err
	}
	a.Log.Info("a domain has the vGPUs of a pod's claims", "pod", a.describe(pod), "domain", pod.Annotations[DomainKey])
	a.Events.Event(pod, corev1.EventTypeNormal, "CausewayAttached", "the domain "+pod.Annotations[DomainKey]+" has the vGPUs of the pod's claims")
	return nil
}

// fail says that the pod will never have what it is for.
func (a *Agent) fail(ctx context.Context, pod *corev1.Pod, why error) error {
	a.over(pod, corev1.PodFailed, 1, why.Error())
	if err := a.write(ctx, pod); err != nil {
		return err
	}
	a.Log.Warn("a pod has failed", "pod", a.describe(pod), "error", why)
	return nil
}

// over has the pod's containers have ended.
func (a *Agent) over(pod *corev1.Pod, phase corev1.PodPhase, code int32, text string) {
	now := metav1.Now()
	s := &pod.Status
	s.Phase, s.Reason, s.Message = phase, "", ""
	if phase == corev1.PodFailed {
		s.Reason, s.Message = reason, text[:min(len(text), mostText)]
	}
	for _, c := range []corev1.PodConditionType{corev1.PodReady, corev1.ContainersReady} {
		setCondition(s, corev1.PodCondition{Type: c, Status: corev1.ConditionFalse, Reason: "PodCompleted", LastTransitionTime: now})
	}
	s.ContainerStatuses = nil
	for _, c := range pod.Spec.Containers {
		s.ContainerStatuses = append(s.ContainerStatuses, corev1.ContainerStatus{Name: c.Name, Image: c.Image,
			State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: code, Reason: s.Reason, FinishedAt: now}}})
	}
}

func setCondition(s *corev1.PodStatus, c corev1.PodCondition) {
	for i := range s.Conditions {
		if s.Conditions[i].Type == c.Type {
			s.Conditions[i] = c
			return
		}
	}
	s.Conditions = append(s.Conditions, c)
}

func (a *Agent) write(ctx context.Context, pod *corev1.Pod) error {
	if _, err := a.Client.CoreV1().Pods(pod.Namespace).UpdateStatus(ctx, pod, metav1.UpdateOptions{}); err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("the status of the pod %s: %w", a.describe(pod), err)
	}
	return nil
}

// end takes back what a pod has that is over or is to go. The pod goes from the API server when the
// host has nothing of it, and not before.
func (a *Agent) end(ctx context.Context, pod *corev1.Pod) error {
	if err := a.takeBack(ctx, a.recordsOf(pod.UID)); err != nil {
		a.warn(pod, err)
		return err
	}
	a.forget(a.describe(pod))
	if pod.DeletionTimestamp == nil {
		return nil
	}
	if pod.Status.Phase == corev1.PodPending || pod.Status.Phase == corev1.PodRunning {
		a.over(pod, corev1.PodSucceeded, 0, "")
		if err := a.write(ctx, pod); err != nil {
			return err
		}
	}
	now := int64(0)
	err := a.Client.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{GracePeriodSeconds: &now, Preconditions: &metav1.Preconditions{UID: &pod.UID}})
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("the pod %s: %w", a.describe(pod), err)
	}
	return nil
}
