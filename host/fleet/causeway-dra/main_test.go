package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/client-go/tools/record"

	"causeway/host/fleet/claim"
)

// TestRefusals: why a claim is refused is an event of the claim.
func TestRefusals(t *testing.T) {
	events := record.NewFakeRecorder(1)
	events.IncludeObject = true
	refusals(events)(claim.ID{Namespace: "team", Name: "c", UID: "1-a"}, errors.New(`unknown field "share"`))
	if got, want := <-events.Events, `Warning CausewayRefused unknown field "share" involvedObject{kind=ResourceClaim,apiVersion=resource.k8s.io/v1}`; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// TestConnect: the client waits between no calls. With its own limit a node with many claims looks
// at them more slowly than docs/KUBERNETES.md says that it fences.
func TestConnect(t *testing.T) {
	file := filepath.Join(t.TempDir(), "kubeconfig")
	text := `{"apiVersion":"v1","kind":"Config","current-context":"c","contexts":[{"name":"c","context":{"cluster":"c","user":"u"}}],"clusters":[{"name":"c","cluster":{"server":"https://127.0.0.1:1"}}],"users":[{"name":"u","user":{"token":"t"}}]}`
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	client, err := connect(file)
	if err != nil {
		t.Fatal(err)
	}
	if limit := client.ResourceV1().RESTClient().GetRateLimiter(); limit != nil && limit.QPS() > 0 {
		t.Errorf("%v calls in a second", limit.QPS())
	}
}

// TestNowhere: who gives no kubeconfig, outside of a pod, is told to.
func TestNowhere(t *testing.T) {
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	if _, err := connect(""); err == nil || !strings.Contains(err.Error(), "no --kubeconfig is given") {
		t.Errorf("%v", err)
	}
}
