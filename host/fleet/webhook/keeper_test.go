package webhook

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	admission "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
)

const name = "causeway-webhook.causeway.svc"

// store is one in memory, and in it who is trusted.
type store struct {
	pair    *Pair
	trusted []byte
	token   string
	saves   int
	failing error
	lost    bool // another replica has saved meanwhile
}

func (s *store) Load(context.Context) (Pair, error) {
	if s.pair == nil {
		return Pair{}, ErrNone
	}
	return *s.pair, nil
}

func (s *store) Save(_ context.Context, p Pair) error {
	if s.lost {
		other, err := New([]string{name}, time.Now())
		s.pair, s.lost = &other, false
		return errors.Join(err, errors.New("conflict"))
	}
	s.pair = &p
	s.saves++
	return nil
}

func (s *store) Trust(_ context.Context, bundle []byte, token string) error {
	if s.failing == nil {
		s.trusted, s.token = bundle, token
	}
	return s.failing
}

// served is the certificate that a keeper has, checked as the API server does.
func served(t *testing.T, k *Keeper, trusted []byte, now time.Time) *x509.Certificate {
	t.Helper()
	c, err := k.Certificate(nil)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(trusted) {
		t.Fatal("nobody is trusted")
	}
	if _, err := c.Leaf.Verify(x509.VerifyOptions{DNSName: name, Roots: roots, CurrentTime: now}); err != nil {
		t.Errorf("the API server would say: %v", err)
	}
	return c.Leaf
}

// has: there is a certificate to serve.
func has(k *Keeper) bool {
	_, err := k.Certificate(nil)
	return !errors.Is(err, ErrNone)
}

// TestKeeper: one certificate for all replicas, renewed in time, and never served before it is
// trusted; the one before is trusted while it may be served.
func TestKeeper(t *testing.T) {
	now, s := time.Now(), &store{failing: errors.New("forbidden")}
	newKeeper := func() *Keeper {
		return &Keeper{Store: s, Names: []string{name}, Log: slog.New(slog.DiscardHandler)}
	}
	a, b := newKeeper(), newKeeper()
	if err := a.Look(t.Context(), now); !errors.Is(err, s.failing) || has(a) || s.saves != 0 {
		t.Errorf("%v, certificate %v, %d saves", err, has(a), s.saves)
	}
	s.failing, s.lost = nil, true
	if err := a.Look(t.Context(), now); err == nil || has(a) {
		t.Error("it serves what was not kept")
	}
	for _, k := range []*Keeper{a, b} {
		if k.Token() != "" {
			t.Error("a token that nobody shows")
		}
		if err := k.Look(t.Context(), now); err != nil || !has(k) {
			t.Fatal(err)
		}
	}
	token := a.Token()
	if token != b.Token() || token != s.token || !isToken(token) {
		t.Errorf("tokens %q, %q, the API server shows %q", token, b.Token(), s.token)
	}
	first := served(t, a, s.trusted, now)
	if !first.Equal(served(t, b, s.trusted, now)) || s.saves != 0 {
		t.Errorf("two certificates, %d saves", s.saves)
	}
	if err := a.Look(t.Context(), now.Add(Life*2/3-2*time.Hour)); err != nil || s.saves != 0 {
		t.Errorf("renewed too early: %v, %d saves", err, s.saves)
	}
	later := now.Add(Life*2/3 + 2*time.Hour)
	if err := a.Look(t.Context(), later); err != nil || s.saves != 1 {
		t.Fatalf("%v, %d saves", err, s.saves)
	}
	if second := served(t, a, s.trusted, later); second.Equal(first) {
		t.Error("not renewed")
	}
	served(t, b, s.trusted, later) // it has not looked yet, and is trusted
	if err := b.Look(t.Context(), later); err != nil || s.saves != 1 {
		t.Errorf("%v, %d saves", err, s.saves)
	}
	if over := now.Add(Life + time.Hour); bytes.Contains(s.pair.bundle(over), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: first.Raw})) {
		t.Error("one that is over is trusted")
	}
	if a.Token() != token || b.Token() != token || s.token != token {
		t.Error("another token with another certificate: questions would have no answer meanwhile")
	}
	s.pair.Key = []byte("damaged")
	if err := a.Look(t.Context(), later); err != nil || s.saves != 2 {
		t.Errorf("a damaged one: %v, %d saves", err, s.saves)
	}
	other := &Keeper{Store: s, Names: []string{"another.team.svc"}, Log: a.Log}
	if err := other.Look(t.Context(), later); err != nil || s.saves != 3 {
		t.Errorf("another name: %v, %d saves", err, s.saves)
	}
	s.pair.Token = "" // of a version that had none
	if err := other.Look(t.Context(), later); err != nil || s.saves != 4 || !isToken(s.pair.Token) || s.token != s.pair.Token {
		t.Errorf("no token: %v, %d saves", err, s.saves)
	}
}

// TestSecret: the Secret is made, changed and read, and both configurations trust what they are to,
// those that are there.
func TestSecret(t *testing.T) {
	hooks := &admission.MutatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "causeway-kubevirt"}, Webhooks: []admission.MutatingWebhook{
		{Name: "pods.kubevirt.causeway.dev", ClientConfig: admission.WebhookClientConfig{Service: &admission.ServiceReference{Name: "causeway-webhook"}}}, {}}}
	client := fake.NewClientset(hooks)
	s := &Secret{Client: client, Namespace: "causeway", Name: "tls", Configuration: "causeway-kubevirt"}
	if _, err := s.Load(t.Context()); !errors.Is(err, ErrNone) {
		t.Fatal(err)
	}
	for _, text := range []string{"a", "b"} {
		if err := s.Save(t.Context(), Pair{[]byte(text), []byte("k" + text), []byte("p" + text), "t" + text}); err != nil {
			t.Fatal(err)
		}
		got, err := s.Load(t.Context())
		if err != nil || string(got.Certificate) != text || string(got.Key) != "k"+text || string(got.Previous) != "p"+text || got.Token != "t"+text {
			t.Errorf("%s, %v", got, err)
		}
		if err := s.Trust(t.Context(), []byte(text), "t"+text); err != nil {
			t.Fatal(err)
		}
	}
	calls := len(client.Actions())
	if err := s.Trust(t.Context(), []byte("b"), "tb"); err != nil || len(client.Actions()) != calls+2 {
		t.Errorf("%v: %v", err, client.Actions()[calls:])
	}
	got, err := client.AdmissionregistrationV1().MutatingWebhookConfigurations().Get(t.Context(), "causeway-kubevirt", metav1.GetOptions{})
	if err != nil || string(got.Webhooks[0].ClientConfig.CABundle) != "b" || string(got.Webhooks[1].ClientConfig.CABundle) != "b" || *got.Webhooks[0].ClientConfig.Service.Path != "/pods/tb" {
		t.Errorf("%+v, %v", got, err)
	}
	// A second replica that found none either does not take the first's place.
	late := &Secret{Client: client, Namespace: "causeway", Name: "tls"}
	if err := late.Save(t.Context(), Pair{}); err == nil {
		t.Error("it overwrote what is there")
	}
}

// TestFiles: a pair that others keep is read again when it has changed, and one that is half
// written changes nothing.
func TestFiles(t *testing.T) {
	dir := t.TempDir()
	f := &Files{Path: filepath.Join(dir, "tls.crt"), KeyPath: filepath.Join(dir, "tls.key")}
	if _, err := f.Certificate(nil); err == nil {
		t.Error("there is none")
	}
	write := func(p Pair, at time.Time) {
		t.Helper()
		for path, b := range map[string][]byte{f.Path: p.Certificate, f.KeyPath: p.Key} {
			if err := os.WriteFile(path, b, 0o600); err != nil {
				t.Fatal(err)
			}
			if err := os.Chtimes(path, at, at); err != nil {
				t.Fatal(err)
			}
		}
	}
	now := time.Now()
	var got [3]*tls.Certificate
	for i := range got {
		p, err := New([]string{name}, now)
		if err != nil {
			t.Fatal(err)
		}
		if i == 2 {
			p.Key = nil // not written yet
		}
		write(p, now.Add(time.Duration(i)*time.Second))
		if got[i], err = f.Certificate(nil); err != nil {
			t.Fatal(err)
		}
	}
	if got[0].Leaf.Equal(got[1].Leaf) || got[1] != got[2] {
		t.Error("not read again, or the half of one taken")
	}
}
