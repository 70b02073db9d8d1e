package kubevirt

import (
	"encoding/json"
	"errors"
	"fmt"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	strict "sigs.k8s.io/json"
)

// ErrReview says that what was sent is no question that this webhook answers.
var ErrReview = errors.New("no admission review of a pod or a migration")

// MostReview bounds an AdmissionReview: an object has up to 3 MiB, and comes once, as it is to be
// made.
const MostReview = 4 << 20

// Question is a checked AdmissionReview: may this object be made?
type Question struct {
	UID       types.UID
	Namespace string
	Pod       *corev1.Pod // one of the two
	Migration *Migration
}

// Migration is what is read of a VirtualMachineInstanceMigration.
type Migration struct {
	Name string
	VMI  string
}

// mostName bounds what names things: Kubernetes allows 253 bytes.
const mostName = 253

// ReadQuestion reads and checks an AdmissionReview.
func ReadQuestion(b []byte) (*Question, error) {
	if len(b) > MostReview {
		return nil, fmt.Errorf("%w: %d bytes, more than %d", ErrReview, len(b), MostReview)
	}
	var r admissionv1.AdmissionReview
	if err := strict.UnmarshalCaseSensitivePreserveInts(b, &r); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrReview, err)
	}
	q := r.Request
	switch {
	case r.Kind != "AdmissionReview" || r.APIVersion != admissionv1.SchemeGroupVersion.String():
		return nil, fmt.Errorf("%w: %q of %q", ErrReview, r.Kind, r.APIVersion)
	case q == nil:
		return nil, fmt.Errorf("%w: it has no request", ErrReview)
	case q.UID == "" || len(q.UID) > mostName || len(q.Namespace) > mostName:
		return nil, fmt.Errorf("%w: its uid or namespace is none", ErrReview)
	case q.Operation != admissionv1.Create || q.SubResource != "":
		return nil, fmt.Errorf("%w: %s of %s/%s", ErrReview, q.Operation, q.Resource.Resource, q.SubResource)
	}
	out := &Question{UID: q.UID, Namespace: q.Namespace}
	switch q.Resource {
	case metav1.GroupVersionResource{Version: "v1", Resource: "pods"}:
		out.Pod = &corev1.Pod{}
		return out, object(q.Object.Raw, out.Pod)
	case metav1.GroupVersionResource{Group: "kubevirt.io", Version: "v1", Resource: "virtualmachineinstancemigrations"}:
		var m struct {
			Metadata struct {
				Name         string `json:"name"`
				GenerateName string `json:"generateName"`
			} `json:"metadata"`
			Spec struct {
				VMIName string `json:"vmiName"`
			} `json:"spec"`
		}
		err := object(q.Object.Raw, &m)
		if err == nil && (m.Spec.VMIName == "" || len(m.Spec.VMIName) > mostName) {
			err = fmt.Errorf("%w: it names no VM", ErrReview)
		}
		out.Migration = &Migration{m.Metadata.Name + m.Metadata.GenerateName, m.Spec.VMIName}
		return out, err
	}
	return nil, fmt.Errorf("%w: it is of %s", ErrReview, q.Resource.String())
}

func object(b []byte, into any) error {
	if err := strict.UnmarshalCaseSensitivePreserveInts(b, into); err != nil {
		return fmt.Errorf("%w: its object: %w", ErrReview, err)
	}
	return nil
}

// answer is an AdmissionReview for who asked.
func answer(uid types.UID, patch []byte, refused error) ([]byte, error) {
	r := &admissionv1.AdmissionResponse{UID: uid, Allowed: refused == nil}
	if refused != nil {
		r.Result = &metav1.Status{Status: metav1.StatusFailure, Message: refused.Error(), Reason: metav1.StatusReasonForbidden, Code: 403}
	}
	if refused == nil && patch != nil {
		t := admissionv1.PatchTypeJSONPatch
		r.Patch, r.PatchType = patch, &t
	}
	return json.Marshal(&admissionv1.AdmissionReview{
		TypeMeta: metav1.TypeMeta{APIVersion: admissionv1.SchemeGroupVersion.String(), Kind: "AdmissionReview"}, Response: r})
}
