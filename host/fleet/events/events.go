// Package events has the fleet's programs say by Kubernetes' events what becomes of an object.
package events

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcore "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/record"
)

// Recorder writes events of a source until end is called.
func Recorder(ctx context.Context, client kubernetes.Interface, source corev1.EventSource) (r record.EventRecorder, end func()) {
	b := record.NewBroadcaster(record.WithContext(ctx))
	b.StartRecordingToSink(&typedcore.EventSinkImpl{Interface: client.CoreV1().Events("")})
	return b.NewRecorder(scheme.Scheme, source), b.Shutdown
}
