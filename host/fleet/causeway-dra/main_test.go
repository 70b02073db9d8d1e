package main

import (
	"os"
	"path/filepath"
	"testing"
)

// TestConnect: the client waits between no calls. With its own limit a node with many claims looks at them more slowly than docs/KUBERNETES.md says that it fences.
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
