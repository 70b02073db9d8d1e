package webhook

import (
	"bytes"
	"context"
	"errors"
	"strings"

	admission "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/retry"
)

// Secret is a Store: a Secret, and the configurations of webhooks that name this server, all of one
// name.
type Secret struct {
	Client          kubernetes.Interface
	Namespace, Name string
	Configuration   string

	last *corev1.Secret // as Load found it
}

// What is kept beside the two that Kubernetes has names for.
const (
	previousKey = "previous.crt"
	tokenKey    = "token"
)

// Load implements Store.
func (s *Secret) Load(ctx context.Context) (Pair, error) {
	s.last = nil
	found, err := s.Client.CoreV1().Secrets(s.Namespace).Get(ctx, s.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return Pair{}, ErrNone
	}
	if err != nil {
		return Pair{}, err
	}
	s.last = found
	return Pair{found.Data[corev1.TLSCertKey], found.Data[corev1.TLSPrivateKeyKey], found.Data[previousKey], string(found.Data[tokenKey])}, nil
}

// Save implements Store.
func (s *Secret) Save(ctx context.Context, p Pair) error {
	data := map[string][]byte{corev1.TLSCertKey: p.Certificate, corev1.TLSPrivateKeyKey: p.Key, previousKey: p.Previous, tokenKey: []byte(p.Token)}
	if s.last == nil {
		fresh := &corev1.Secret{Type: corev1.SecretTypeTLS, Data: data}
		fresh.Name, fresh.Labels = s.Name, map[string]string{"app.kubernetes.io/part-of": "causeway"}
		_, err := s.Client.CoreV1().Secrets(s.Namespace).Create(ctx, fresh, metav1.CreateOptions{})
		return err
	}
	next := s.last.DeepCopy()
	next.Data = data
	_, err := s.Client.CoreV1().Secrets(s.Namespace).Update(ctx, next, metav1.UpdateOptions{})
	return err
}

// Trust implements Store. A configuration that is not there has nobody call this server: applied
// later, it is found when it is looked next.
func (s *Secret) Trust(ctx context.Context, bundle []byte, token string) error {
	api := s.Client.AdmissionregistrationV1()
	return errors.Join(
		trustIn(ctx, api.MutatingWebhookConfigurations(), s.Configuration, func(c *admission.MutatingWebhookConfiguration) (changed bool) {
			for i := range c.Webhooks {
				changed = trust(&c.Webhooks[i].ClientConfig, bundle, pathOf(c.Webhooks[i].Name, token)) || changed
			}
			return changed
		}),
		trustIn(ctx, api.ValidatingWebhookConfigurations(), s.Configuration, func(c *admission.ValidatingWebhookConfiguration) (changed bool) {
			for i := range c.Webhooks {
				changed = trust(&c.Webhooks[i].ClientConfig, bundle, pathOf(c.Webhooks[i].Name, token)) || changed
			}
			return changed
		}),
	)
}

// configurations are those of one kind.
type configurations[T any] interface {
	Get(ctx context.Context, name string, o metav1.GetOptions) (*T, error)
	Update(ctx context.Context, c *T, o metav1.UpdateOptions) (*T, error)
}

// trustIn writes a configuration if edit has changed it, again if another did so meanwhile.
func trustIn[T any](ctx context.Context, api configurations[T], name string, edit func(*T) (changed bool)) error {
	return retry.RetryOnConflict(retry.DefaultRetry, func() error {
		c, err := api.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return notThere(err)
		}
		if edit(c) {
			_, err = api.Update(ctx, c, metav1.UpdateOptions{})
		}
		return err
	})
}

// pathOf is where the API server asks: the first word of the webhook's name, and the token.
func pathOf(webhook, token string) string {
	what, _, _ := strings.Cut(webhook, ".")
	return "/" + what + "/" + token
}

func trust(c *admission.WebhookClientConfig, bundle []byte, path string) (changed bool) {
	changed = !bytes.Equal(c.CABundle, bundle)
	c.CABundle = bundle
	if c.Service != nil && (c.Service.Path == nil || *c.Service.Path != path) {
		c.Service.Path, changed = &path, true
	}
	return changed
}

func notThere(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
